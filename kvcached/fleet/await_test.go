package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

// TestAwait: a host finds blocks that another one stores after it was asked for them, whichever
// host is their keeper.
func TestAwait(t *testing.T) {
	a, b := start(t, "a", Options{}), start(t, "b", Options{})
	meet(a, b)
	var addrs []block.Addr
	for i := range awaitWindow + 40 {
		addrs = append(addrs, addr(i))
	}
	asked, half := make(chan struct{}), make(chan struct{})
	came, looks := map[int]bool{}, 0
	done := make(chan error, 1)
	go func() {
		done <- b.Await(t.Context(), "a", addrs, time.Hour, func(at []int) (missing []int, err error) {
			if looks++; looks == 1 {
				close(asked)
			}
			for _, n := range at {
				if b.text(addrs[n]) != fmt.Sprint("block ", n) {
					missing = append(missing, n)
				} else if came[n] = true; len(came) == len(addrs)/2 {
					close(half)
				}
			}
			return missing, nil
		})
	}()
	<-asked
	for i := range addrs {
		if i == len(addrs)/2 {
			<-half
		}
		a.put(blocks, addrs[i], fmt.Sprint("block ", i))
	}
	if err := <-done; err != nil || len(came) != len(addrs) {
		t.Errorf("%d of %d blocks: %v", len(came), len(addrs), err)
	}
	if s := b.Stats(); s.Awaited != uint64(len(addrs)) || s.AwaitedInVain != 0 || s.Pulled != uint64(len(addrs)) {
		t.Errorf("%+v", s)
	}
}

// TestAwaitLooksAtTheFirst: the keepers are not asked for the blocks behind those that do not come.
func TestAwaitLooksAtTheFirst(t *testing.T) {
	b := start(t, "b", Options{})
	var addrs []block.Addr
	for i := range 40 {
		if addrs = append(addrs, addr(i)); i > 0 {
			b.put(blocks, addrs[i], "here")
		}
	}
	for from, want := range [][]int{{1, 2, 3}, nil} { // without the first one all are there
		var seen []int
		if err := b.Await(t.Context(), "a", addrs[from:], time.Nanosecond, func(at []int) ([]int, error) {
			seen = append(seen, at...)
			return nil, nil
		}); err != nil || want != nil && !slices.Equal(seen, want) || want == nil && len(seen) != 39 {
			t.Errorf("from %d: %v, %v", from, seen, err)
		}
	}
}

// TestAStuckHostLeavesPlaces: waits for a host that stores nothing take half of the places. Further
// ones end at once, and those for another host wait.
func TestAStuckHostLeavesPlaces(t *testing.T) {
	a, b := start(t, "a", Options{}), start(t, "b", Options{})
	meet(a, b)
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	take := func(at []int) (missing []int, err error) {
		if b.text(addr(1)) != "here" {
			return at, nil
		}
		return nil, nil
	}
	for range maxAwaits {
		all.Go(func() { _ = b.Await(ctx, "stuck", []block.Addr{addr(0)}, time.Hour, take) })
	}
	waiting := func(n int64) func() bool { return func() bool { return b.Stats().Awaiting == n } }
	eventually(t, "half of the places are taken", func() bool {
		return waiting(maxAwaits/2)() && b.Stats().AwaitsRefused == maxAwaits/2
	})
	all.Go(func() {
		if err := b.Await(ctx, "a", []block.Addr{addr(1)}, time.Hour, take); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "another host's block is waited for", waiting(maxAwaits/2+1))
	a.put(blocks, addr(1), "here")
	eventually(t, "the block has come", waiting(maxAwaits/2))
	if n := b.Stats().Awaited; n != 1 {
		t.Errorf("%d blocks came", n)
	}
}

// TestAwaitEnds: a wait ends at its limit, with its caller, with an error, and when too many wait.
func TestAwaitEnds(t *testing.T) {
	b := start(t, "b", Options{})
	b.put(blocks, addr(1), "here")
	addrs := []block.Addr{addr(0), addr(1)}
	var seen []int
	take := func(at []int) ([]int, error) {
		seen = append(seen, at...)
		return nil, nil
	}
	if err := b.Await(t.Context(), "a", addrs, time.Millisecond, take); err != nil || !slices.Equal(seen, []int{1}) {
		t.Errorf("%v, %v", seen, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	leave := func(at []int) ([]int, error) {
		cancel()
		return take(at)
	}
	if err := b.Await(ctx, "a", addrs, time.Hour, leave); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	failed := errors.New("failed")
	fail := func([]int) ([]int, error) { return nil, failed }
	if err := b.Await(t.Context(), "a", addrs, time.Hour, fail); err != failed {
		t.Error(err)
	}
	for b.awaits.Take("a") {
	}
	if err := b.Await(t.Context(), "a", addrs, time.Hour, take); err != nil {
		t.Error(err)
	}
	if n := b.Stats().Awaiting; n != maxAwaits/2 {
		t.Errorf("one host has %d of %d places", n, maxAwaits)
	}
	if s := b.Stats(); s.Awaited != 3 || s.AwaitedInVain != 3 || s.AwaitsRefused != 1 {
		t.Errorf("%+v", s)
	}
	b.stop()
	if err := b.Await(t.Context(), "a", addrs, time.Hour, take); !errors.Is(err, store.ErrClosed) {
		t.Error(err)
	}
}
