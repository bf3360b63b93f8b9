package store

import (
	"context"
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
)

// TestCount checks that a block in two tiers counts once.
func TestCount(t *testing.T) {
	s, _ := tiered(t, t.TempDir(), Options{RAM: 4 << 20})
	durable(t, s, keyed("a"), fill(100, '1'))
	durable(t, s, keyed("b"), fill(100, '2'))
	crowd(t, s)
	get(t, s, keyed("b"), fill(100, '2'))
	put(t, s, keyed("c"), fill(100, '3'))
	for _, u := range s.Namespaces() {
		if u.Namespace == space && (u.Blocks != 2 || u.Bytes == 0 || u.SSDBlocks != 2 || u.SSDBytes == 0) {
			t.Errorf("%+v, want b and c in RAM, a and b on SSD", u)
		}
	}
	s.recount()
	for _, want := range []int{3, 0} {
		blocks, err := s.Count(ctx)
		if err != nil || blocks[space] != want {
			t.Errorf("%v, %v; want %d", blocks, err, want)
		}
		if _, err := s.Purge(ctx, func(ns string, _ []byte) bool { return ns == space }); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCountExpired checks that Count leaves out expired blocks in every tier, wherever the sweep
// stands.
func TestCountExpired(t *testing.T) {
	now := int64(1000)
	s := open(t, Options{RAM: 32 << 20, Now: func() int64 { return atomic.LoadInt64(&now) }})
	for i := range 5000 {
		it := keyed(strconv.Itoa(i))
		if i >= 10 {
			it.Expires = 2000
		}
		put(t, s, it, nil)
	}
	s.sweepSlots(1500)
	atomic.StoreInt64(&now, 2000)
	blocks, err := s.Count(ctx)
	if err != nil || blocks[space] != 10 {
		t.Errorf("%v, %v", blocks, err)
	}
}

// TestCountWaits: while another caller counts, Count waits only as long as its context, and a purge
// does not wait.
func TestCountWaits(t *testing.T) {
	s, _ := tiered(t, t.TempDir(), Options{RAM: 4 << 20})
	durable(t, s, keyed("a"), fill(100, '1'))
	if blocks, err := s.Count(ctx); err != nil || blocks[space] != 1 {
		t.Errorf("%v, %v", blocks, err)
	}
	s.counting.turn <- struct{}{}
	soon, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	if _, err := s.Count(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	if _, err := s.Purge(ctx, func(ns string, _ []byte) bool { return ns == space }); err != nil {
		t.Error(err)
	}
	<-s.counting.turn
	if blocks, err := s.Count(ctx); err != nil || blocks[space] != 0 {
		t.Errorf("%v, %v", blocks, err)
	}
}
