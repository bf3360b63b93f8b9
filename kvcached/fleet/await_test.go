package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
		done <- b.Await(t.Context(), addrs, time.Hour, func(at []int) (missing []int, err error) {
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
		if err := b.Await(t.Context(), addrs[from:], time.Nanosecond, func(at []int) ([]int, error) {
			seen = append(seen, at...)
			return nil, nil
		}); err != nil || want != nil && !slices.Equal(seen, want) || want == nil && len(seen) != 39 {
			t.Errorf("from %d: %v, %v", from, seen, err)
		}
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
	if err := b.Await(t.Context(), addrs, time.Millisecond, take); err != nil || !slices.Equal(seen, []int{1}) {
		t.Errorf("%v, %v", seen, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	leave := func(at []int) ([]int, error) {
		cancel()
		return take(at)
	}
	if err := b.Await(ctx, addrs, time.Hour, leave); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	failed := errors.New("failed")
	if err := b.Await(t.Context(), addrs, time.Hour, func([]int) ([]int, error) { return nil, failed }); err != failed {
		t.Error(err)
	}
	b.awaits.Store(maxAwaits)
	if err := b.Await(t.Context(), addrs, time.Hour, take); err != nil {
		t.Error(err)
	}
	if s := b.Stats(); s.Awaited != 3 || s.AwaitedInVain != 3 || s.AwaitsRefused != 1 {
		t.Errorf("%+v", s)
	}
	b.stop()
	if err := b.Await(t.Context(), addrs, time.Hour, take); !errors.Is(err, store.ErrClosed) {
		t.Error(err)
	}
}
