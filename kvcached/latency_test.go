package kvcached

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// doorOf returns a door to a store with one block of n bytes.
func doorOf(t testing.TB, in *instruments, name string, n int) (blocks, store.Item) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{RAM: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	space := block.Namespace{Space: "resp.0"}
	it := store.Item{Addr: block.OfKey(space.ID(), []byte("a")), Namespace: space.String()}
	if _, err := s.Put(t.Context(), it, make([]byte, n), false); err != nil {
		t.Fatal(err)
	}
	return blocks{here: s, door: in.latency.doors[name]}, it
}

func TestLatencies(t *testing.T) {
	in := newInstruments()
	b, it := doorOf(t, in, "resp", 1000)
	got, err := b.Get(t.Context(), it.Addr)
	if err != nil {
		t.Fatal(err)
	}
	got.Release()
	absent := it.Addr
	absent.Digest[0]++
	if _, err := b.Get(t.Context(), absent); !errors.Is(err, store.ErrMiss) {
		t.Fatal(err)
	}
	for _, abort := range []bool{true, false} {
		d, err := b.Create(t.Context(), it, 10)
		if err != nil {
			t.Fatal(err)
		}
		if abort {
			d.Abort()
		} else if _, err := d.Commit(t.Context(), store.CommitOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	in.latency.pulled(transport.TLS, time.Millisecond)
	page := httptest.NewRecorder()
	in.set.Handler().ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for series, want := range map[string]int{
		`get_seconds_count{door="resp",result="hit"}`: 1, `get_seconds_count{door="resp",result="miss"}`: 1,
		`get_seconds_count{door="resp",result="error"}`: 0, `get_seconds_count{door="s3",result="hit"}`: 0,
		`put_seconds_count{door="resp"}`: 1, `put_seconds_count{door="lease"}`: 0,
		`pull_seconds_count{lane="tls"}`: 1, `pull_seconds_bucket{lane="tls",le="0.001"}`: 1,
		`pull_seconds_count{lane="quic"}`: 0,
	} {
		if line := fmt.Sprintf("\ncgn_kvcached_%s %d\n", series, want); !strings.Contains(page.Body.String(), line) {
			t.Errorf("not exported: %q", line)
		}
	}
}

func TestTimingAllocatesNothing(t *testing.T) {
	d := newInstruments().latency.doors["lease"]
	if n := testing.AllocsPerRun(100, func() { d.got(time.Now(), nil); d.got(time.Now(), store.ErrMiss) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkDoor measures the cost of timing the Get of a block in RAM.
func BenchmarkDoor(b *testing.B) {
	with, it := doorOf(b, newInstruments(), "lease", 1000)
	without := with
	without.door = nil
	for name, s := range map[string]blocks{"timed": with, "untimed": without} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				got, err := s.Get(b.Context(), it.Addr)
				if err != nil {
					b.Fatal(err)
				}
				got.Release()
			}
		})
	}
}
