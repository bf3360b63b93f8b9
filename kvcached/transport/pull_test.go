package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// TestRangeOfOneVersion replaces a block while a part of it is pulled. The part is large enough for
// several connections. The result is a part of one version, or an error.
func TestRangeOfOneVersion(t *testing.T) {
	onBothLanes(t, func(t *testing.T, l Lane) {
		s := newSite(t, ServerOptions{}, PoolOptions{})
		const size, from, length = 8 << 20, 4096, 6 << 20
		version := func(c byte) []byte { return bytes.Repeat([]byte{c}, size) }
		it := Item{Addr: addr("b"), Namespace: namespace}
		s.store.put(it, version('1'))
		var asked atomic.Int32
		s.store.hook(func(h *hooks) {
			h.onGet = func(context.Context, block.Addr) error {
				if asked.Add(1) == 2 {
					s.store.put(it, version('2'))
				}
				return nil
			}
		})
		for range 2 {
			var got []byte
			_, err := s.peer(l).Get(t.Context(), Get{Addr: it.Addr, Namespace: namespace, Offset: from, Length: length,
				Hint:  size,
				Alloc: func(_ Found, n int) ([]byte, error) { got = make([]byte, n); return got, nil }})
			if errors.Is(err, wire.Busy) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != length || bytes.Count(got, got[:1]) != length {
				t.Error("a part is of two versions, and success was said")
			}
		}
	})
}

// TestUnknownLength pulls blocks whose length the reader does not know, or expects too small or too
// large. After the first answer the rest comes over all connections, and each byte once.
func TestUnknownLength(t *testing.T) {
	for _, stripes := range []int{1, 4, 16} {
		s := newSite(t, ServerOptions{}, PoolOptions{Stripes: stripes})
		p := s.peer(QUIC)
		for _, n := range []int{0, 64<<10 + 1, 1<<20 - 1, 1<<20 + 1, 2<<20 + 300_003} {
			for _, hint := range []int{0, 5, 2 << 20} {
				key := fmt.Sprint(n, hint, stripes)
				want := s.store.fill(key, n)
				got := make([]byte, n)
				before := s.server.Stats().Sent
				f, err := p.Get(t.Context(), Get{Addr: addr(key), Namespace: namespace, Hint: hint,
					Alloc: func(Found, int) ([]byte, error) { return got, nil }})
				if err != nil || f.CRC != block.Sum(want) || !bytes.Equal(got, want) {
					t.Errorf("%d bytes, hint %d, %d stripes: %v", n, hint, stripes, err)
				}
				eventually(t, "each byte was sent once", func() bool {
					return s.server.Stats().Sent == before+uint64(n)
				})
			}
			if striped := s.pool.Stats().QUIC.Striped; n >= 1<<20 && striped == 0 && stripes > 1 {
				t.Errorf("no pull of %d bytes over %d connections", n, stripes)
			}
		}
		if held := p.lanes[overQUIC].(*streams).parts.Load(); held != 0 {
			t.Errorf("%d parts are still counted", held)
		}
	}
}

// TestUnknownLengthOfOneVersion replaces a block after the first answer. Parts of two versions are
// an error.
func TestUnknownLengthOfOneVersion(t *testing.T) {
	for name, second := range map[string]int{"as long": 4 << 20, "shorter": 100, "longer": 5 << 20} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, ServerOptions{}, PoolOptions{})
			s.store.fill("b", 4<<20)
			_, err := s.peer(QUIC).Get(t.Context(), Get{Addr: addr("b"), Namespace: namespace,
				Alloc: func(_ Found, n int) ([]byte, error) {
					s.store.put(Item{Addr: addr("b"), Namespace: namespace}, bytes.Repeat([]byte{7}, second))
					return make([]byte, n), nil
				}})
			if !errors.Is(err, errChanged) {
				t.Error(err)
			}
		})
	}
}

// TestManyStriped: beyond the bound on parts, blocks come in one part each.
func TestManyStriped(t *testing.T) {
	s := newSite(t, ServerOptions{}, PoolOptions{})
	p := s.peer(QUIC)
	want := s.store.fill("b", 1<<20)
	lane := p.lanes[overQUIC].(*streams)
	lane.parts.Store(mostParts)
	got, _, err := get(t.Context(), p, "b")
	if err != nil || s.pool.Stats().QUIC.Striped != 0 {
		t.Error("striped beyond the bound", err)
	}
	same(t, "in one part", got, want)
	lane.parts.Store(mostParts - 4)
	if _, _, err := get(t.Context(), p, "b"); err != nil || s.pool.Stats().QUIC.Striped != 1 {
		t.Error("not striped within the bound", err)
	}
}
