//go:build linux && cgo && rdma

package verbs

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/rdma"
)

// within returns a context that lasts longer than any operation on an emulated machine.
func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// kinds runs a test with windows and without.
func kinds(t *testing.T, test func(t *testing.T, d *device)) {
	for name, windows := range map[string]bool{"windows": true, "registrations": false} {
		t.Run(name, func(t *testing.T) {
			d := opened(t)
			d.limit.Windows = windows // soft-RoCE has windows, but they do not meet the requirements
			test(t, d)
		})
	}
}

// refused checks that the other side's card refuses a read, and that a new pair works afterwards.
func refused(t *testing.T, d *device, r, w *pair, read rdma.Read, from []byte) {
	t.Helper()
	before := bytes.Clone(read.Into)
	err := r.Read(within(t), []rdma.Read{read})
	if !errors.Is(err, rdma.ErrAccess) || !errors.Is(err, rdma.ErrBroken) {
		t.Fatalf("the other side's card should refuse access: %v", err)
	}
	if !bytes.Equal(read.Into, before) {
		t.Error("something was read")
	}
	select {
	case <-r.Broken():
	default:
		t.Error("the pair does not say that it is broken")
	}
	if s, err := r.q.query(); err != nil || s != 6 { // the state IBV_QPS_ERR
		t.Errorf("the card has the queue pair in state %d: %v", s, err)
	}
	if err := r.Read(within(t), []rdma.Read{read}); !errors.Is(err, rdma.ErrBroken) {
		t.Errorf("a read through a broken pair: %v", err)
	}
	for _, p := range []*pair{r, w} {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	r, w = connected(t, d, d, rdma.PairOptions{})
	key := granted(t, w, from)[0].Key()
	if err := r.Read(within(t), []rdma.Read{{Into: read.Into[:64], From: key}}); err != nil ||
		!bytes.Equal(read.Into[:64], from[:64]) {
		t.Errorf("a pair made anew: %v", err)
	}
}

// unbounded checks that soft-RoCE has a known error: it serves a read outside a window if it is
// inside the region. Because of this error, soft-RoCE's windows are used only in tests.
func unbounded(t *testing.T, r *pair, read rdma.Read) {
	t.Helper()
	if err := r.Read(within(t), []rdma.Read{read}); err != nil {
		t.Errorf("this card refuses what lies beside a window, and its windows are said to be of no use: %v", err)
	}
	t.Log("served by soft-RoCE, which looks at the region's bounds only")
}

func TestRefused(t *testing.T) {
	kinds(t, func(t *testing.T, d *device) {
		from, into := registeredIn(t, d, 1<<20), registeredIn(t, d, 1<<20)
		fill(from, 2)
		for name, read := range map[string]func(r, w, other *pair) (*pair, rdma.Read){
			"wrong key": func(r, w, _ *pair) (*pair, rdma.Read) {
				key := granted(t, w, from)[0].Key()
				return r, rdma.Read{Into: into[:4096], From: rdma.Key{Addr: key.Addr, RKey: key.RKey ^ 0x5500}}
			},
			"key of the arena": func(r, w, _ *pair) (*pair, rdma.Read) {
				granted(t, w, from)
				region, err := d.find(from)
				if err != nil {
					t.Fatal(err)
				}
				// soft-RoCE's remote key of a region is equal to its local key
				return r, rdma.Read{Into: into[:4096], From: rdma.Key{Addr: address(from), RKey: uint32(region.c.lkey)}}
			},
			"key of before": func(r, w, _ *pair) (*pair, rdma.Read) {
				old := granted(t, w, from)
				if err := w.Revoke(within(t), old); err != nil {
					t.Fatal(err)
				}
				granted(t, w, from)
				return r, rdma.Read{Into: into[:4096], From: old[0].Key()}
			},
			"revoked": func(r, w, _ *pair) (*pair, rdma.Read) {
				windows := granted(t, w, from, from[4096:8192])
				if err := w.Revoke(within(t), windows[1:]); err != nil {
					t.Fatal(err)
				}
				if err := r.Read(within(t), []rdma.Read{{Into: into[:4096], From: windows[0].Key()}}); err != nil {
					t.Errorf("the window beside: %v", err)
				}
				return r, rdma.Read{Into: into[:4096], From: windows[1].Key()}
			},
			"beyond the window": func(r, w, _ *pair) (*pair, rdma.Read) {
				return r, rdma.Read{Into: into[:4096], From: granted(t, w, from[:8192])[0].Key(), Skip: 4097}
			},
			"before the window": func(r, w, _ *pair) (*pair, rdma.Read) {
				key := granted(t, w, from[4096:8192])[0].Key()
				return r, rdma.Read{Into: into[:4096], From: rdma.Key{Addr: key.Addr - 1, RKey: key.RKey}}
			},
			"another pair": func(_, w, other *pair) (*pair, rdma.Read) {
				return other, rdma.Read{Into: into[:4096], From: granted(t, w, from)[0].Key()}
			},
		} {
			t.Run(name, func(t *testing.T) {
				r, w := connected(t, d, d, rdma.PairOptions{})
				if d.limit.Windows && d.has.windows == 0 && strings.HasSuffix(name, "the window") {
					_, wanted := read(r, w, nil)
					unbounded(t, r, wanted)
					return
				}
				other, otherSide := connected(t, d, d, rdma.PairOptions{})
				by, wanted := read(r, w, other)
				if by == other {
					w = otherSide
				}
				refused(t, d, by, w, wanted, from)
			})
		}
	})
}

// loop reads until a read fails.
func loop(p *pair, into []byte, key rdma.Key, reads *atomic.Int64) error {
	for {
		if err := p.Read(context.Background(), []rdma.Read{{Into: into, From: key}}); err != nil {
			return err
		}
		reads.Add(1)
	}
}

// busyLoops runs loops over pairs of two devices, which may be the same, until each loop ends.
// under returns once each loop has read.
func busyLoops(t *testing.T, reader, owner *device, n int,
	o rdma.PairOptions) (under func(), owners []*pair, ends chan error) {
	t.Helper()
	const size = 4 << 20
	from := registeredIn(t, owner, size)
	fill(from, 3)
	ends = make(chan error, n)
	var counts []*atomic.Int64
	for range n {
		into := registeredIn(t, reader, size)
		r, w := connected(t, reader, owner, o)
		key := granted(t, w, from)[0].Key()
		count := new(atomic.Int64)
		counts, owners = append(counts, count), append(owners, w)
		go func() {
			ends <- loop(r, into, key, count)
			r.Close()
		}()
	}
	return func() {
		for _, c := range counts {
			for ctx := within(t); c.Load() < 2; runtime.Gosched() {
				if ctx.Err() != nil {
					t.Fatal("a loop does not read")
				}
			}
		}
	}, owners, ends
}

func TestOtherSideCloses(t *testing.T) { kinds(t, otherSideCloses) }

func otherSideCloses(t *testing.T, d *device) {
	const timeout = time.Second
	under, owners, ends := busyLoops(t, d, d, 2, rdma.PairOptions{Timeout: timeout})
	under()
	began := time.Now()
	for _, w := range owners {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	for range owners {
		// The error depends on whether the window or the queue pair was destroyed first.
		if err := <-ends; !errors.Is(err, rdma.ErrUnreachable) && !errors.Is(err, rdma.ErrAccess) {
			t.Errorf("reads from a side that closed end with %v", err)
		}
	}
	t.Logf("told after %v, with a timeout of %v", time.Since(began), timeout)
}

func TestContextEnds(t *testing.T) {
	size := 64 << 20
	if watched {
		size = 16 << 20
	}
	d := opened(t)
	from, into := registeredIn(t, d, size), registeredIn(t, d, size)
	paint := func(b byte) {
		for n := copy(from, []byte{b}); n < size; n *= 2 {
			copy(from[n:], from[:n])
		}
	}
	paint(0xa5)
	r, w := connected(t, d, d, rdma.PairOptions{})
	ctx, cancel := context.WithCancelCause(within(t))
	tired := errors.New("tired")
	var wait sync.WaitGroup
	wait.Go(func() {
		first := (*byte)(&into[0])
		for limit := within(t); *first == 0 && limit.Err() == nil; runtime.Gosched() {
		}
		cancel(tired)
	})
	// So often that the read lasts until the other goroutine runs, however late that is.
	err := r.Read(ctx, slices.Repeat([]rdma.Read{{Into: into, From: granted(t, w, from)[0].Key()}}, 256))
	got := mapped(t, size) // not Go's memory, of which the race detector would check each byte
	copy(got, into)
	wait.Wait()
	if !errors.Is(err, tired) || !errors.Is(err, rdma.ErrBroken) {
		t.Fatalf("a read whose context ended: %v", err)
	}
	t.Logf("%d of %d bytes were read", bytes.Count(got, []byte{0xa5}), size)
	// A second read of the same size, through another pair, takes longer than any rest of the first
	// read. A rest would overwrite other bytes now.
	paint(0x5a)
	again := registeredIn(t, d, size)
	r, w = connected(t, d, d, rdma.PairOptions{})
	if err := r.Read(within(t), []rdma.Read{{Into: again, From: granted(t, w, from)[0].Key()}}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, into) {
		t.Error("memory was written after Read had returned")
	}
	ended, stop := context.WithCancelCause(context.Background())
	stop(tired)
	if err := r.Read(ended, []rdma.Read{{Into: again, From: rdma.Key{}}}); !errors.Is(err, tired) ||
		errors.Is(err, rdma.ErrBroken) {
		t.Errorf("a read whose context had ended before: %v", err)
	}
}
