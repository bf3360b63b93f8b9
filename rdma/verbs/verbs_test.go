//go:build linux && cgo && rdma

package verbs

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/rdma"
)

// deviceName returns the card to test with. If the environment requires a card, as in perf/vm, a
// missing card is a failure.
func deviceName(t testing.TB) string {
	name := os.Getenv("RDMA_DEVICE")
	if name == "" {
		if os.Getenv("RDMA_REQUIRED") != "" {
			t.Fatal("RDMA_DEVICE names no card")
		}
		t.Skip("RDMA_DEVICE names no card: make check-rdma runs this in a virtual machine that has one")
	}
	return name
}

func opened(t testing.TB) *device {
	t.Helper()
	d, err := open(deviceName(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// mapped returns memory that does not belong to Go.
func mapped(t testing.TB, size int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

func registeredIn(t testing.TB, d *device, size int) []byte {
	t.Helper()
	mem := mapped(t, size)
	if err := d.Register(mem); err != nil {
		t.Fatal(err)
	}
	return mem
}

func fill(mem []byte, seed uint64) {
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(mem)
}

func paired(t testing.TB, d *device, o rdma.PairOptions) *pair {
	t.Helper()
	p, err := d.pair(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil && !givenUp(d) {
			t.Error(err)
		}
	})
	return p
}

// connected returns the two sides of a connection.
func connected(t testing.TB, reader, owner *device, o rdma.PairOptions) (r, w *pair) {
	t.Helper()
	r, w = paired(t, reader, o), paired(t, owner, o)
	connect(t, r, w)
	return r, w
}

func connect(t testing.TB, r, w *pair) {
	t.Helper()
	if err := w.Connect(r.Local()); err != nil {
		t.Fatal(err)
	}
	if err := r.Connect(w.Local()); err != nil {
		t.Fatal(err)
	}
}

func granted(t testing.TB, p *pair, mems ...[]byte) []rdma.Window {
	t.Helper()
	ws, err := p.Grant(context.Background(), mems)
	if err != nil {
		t.Fatal(err)
	}
	return ws
}

func TestRead(t *testing.T) {
	kinds(t, func(t *testing.T, d *device) {
		const most = 64 << 20
		from, into := registeredIn(t, d, most), registeredIn(t, d, most)
		fill(from, 1)
		r, w := connected(t, d, d, rdma.PairOptions{})
		for _, size := range []int{1, 64, 4096, 4097, 1<<20 - 1, 1 << 20, 8 << 20, 8<<20 + 1, 64 << 20} {
			key := granted(t, w, from[most-size:])
			behind := into[size:min(size+4096, most)]
			clear(into[:size+len(behind)])
			if err := r.Read(context.Background(), []rdma.Read{{Into: into[:size], From: key[0].Key()}}); err != nil {
				t.Fatalf("%d bytes: %v", size, err)
			}
			if !bytes.Equal(into[:size], from[most-size:]) {
				t.Errorf("%d bytes are not those of the other side", size)
			}
			if !bytes.Equal(behind, make([]byte, len(behind))) {
				t.Errorf("%d bytes: what lies behind them was written too", size)
			}
			if err := w.Revoke(context.Background(), key); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestReadIsSplit: a read that is longer than the card's messages is split. A split read gets all
// bytes of its range and no byte behind the range.
func TestReadIsSplit(t *testing.T) {
	kinds(t, func(t *testing.T, d *device) {
		const most, skip = 1000, 24
		d.limit.MaxMessage = most
		from, into := registeredIn(t, d, 1<<16), registeredIn(t, d, 1<<16)
		fill(from, 2)
		r, w := connected(t, d, d, rdma.PairOptions{MaxReads: 4})
		key := granted(t, w, from)[0].Key()
		for size, messages := range map[int]int{most - 1: 1, most: 1, most + 1: 2, 5 * most: 5, 60*most + 1: 61} {
			clear(into)
			reads := []rdma.Read{{Into: into[:size], From: key, Skip: skip}}
			if parts, err := r.parts(nil, reads); err != nil || len(parts) != messages {
				t.Errorf("%d bytes in %d messages, want %d: %v", size, len(parts), messages, err)
			}
			if err := r.Read(within(t), reads); err != nil {
				t.Fatalf("%d bytes: %v", size, err)
			}
			if !bytes.Equal(into[:size], from[skip:skip+size]) ||
				!bytes.Equal(into[size:], make([]byte, len(into)-size)) {
				t.Errorf("%d bytes: not those of the other side, or more than those", size)
			}
		}
	})
}
