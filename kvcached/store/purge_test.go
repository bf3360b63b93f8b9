package store

import (
	"errors"
	"sync"
	"testing"
)

// TestPurgeWhileSSDEvicts purges while SSD evicts a block. The block's row is gone, so the scan
// does not find the block. Reads find it until the eviction has ended. Afterwards the block is not
// in RAM. It leaves RAM, and a Get that runs during the purge does not promote it, even if the Get
// ends later.
func TestPurgeWhileSSDEvicts(t *testing.T) {
	s, g := tiered(t, t.TempDir(), Options{})
	both, old, slow := keyed("both"), keyed("old"), keyed("slow")
	for _, it := range []Item{old, slow, both} {
		durable(t, s, it, fill(4096, 'x'))
	}
	for _, it := range []Item{old, slow} {
		a := it.Addr
		s.mu.Lock()
		s.remove(s.tier.Find(s.tier.Hash(&a), &a)) // SSD alone has it
		s.mu.Unlock()
	}
	purged := make(chan struct{})
	var late sync.WaitGroup
	g.scan = func() error {
		if _, err := s.Get(ctx, old.Addr); !errors.Is(err, ErrMiss) {
			t.Error("a block that is being purged is promoted:", err)
		}
		reading := make(chan struct{})
		g.set(func() error {
			close(reading)
			<-purged
			return nil
		}, nil, nil)
		late.Go(func() {
			if _, err := s.Get(ctx, slow.Addr); !errors.Is(err, ErrMiss) {
				t.Error("a block is promoted that SSD has dropped:", err)
			}
		})
		<-reading
		return nil
	}
	g.settle = func() error { // the evictions end
		for _, it := range []Item{both, old, slow} {
			s.droppedByDisk(it.Addr)
		}
		return nil
	}
	if _, err := s.Purge(ctx, func(string, []byte) bool { return true }); err != nil {
		t.Fatal(err)
	}
	close(purged)
	late.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range []Item{both, old, slow} {
		if a := it.Addr; s.tier.Find(s.tier.Hash(&a), &a) != 0 {
			t.Errorf("%s is in RAM", it.Key)
		}
	}
}

// TestPurgeWaitsForMoves purges while SSD writes a block behind that RAM has evicted meanwhile. The
// purge looks at SSD only afterwards.
func TestPurgeWaitsForMoves(t *testing.T) {
	s, g := tiered(t, t.TempDir(), Options{})
	it := keyed("k")
	writing := make(chan struct{})
	evicted := make(chan struct{})
	g.set(nil, func() error {
		close(writing)
		<-evicted
		return nil
	}, nil)
	put(t, s, it, fill(4096, 'x'))
	put(t, s, it, fill(4096, 'x')) // a second write not long after the first goes to SSD
	<-writing
	a := it.Addr
	s.mu.Lock()
	s.remove(s.tier.Find(s.tier.Hash(&a), &a))
	s.mu.Unlock()
	done := make(chan error)
	go func() {
		_, err := s.Purge(ctx, func(string, []byte) bool { return true })
		done <- err
	}()
	eventually(t, "the purge runs", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.match != nil
	})
	close(evicted)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if has(s, a) {
		t.Error("a block that was written behind during the purge is there")
	}
}

// TestIfAbsentWhileHidden writes with IfAbsent while the store is hidden. A block of an earlier run
// is a miss then, so the write succeeds.
func TestIfAbsentWhileHidden(t *testing.T) {
	dir := t.TempDir()
	s, _ := tiered(t, dir, Options{})
	durable(t, s, keyed("k"), fill(4096, 'x'))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = tiered(t, dir, Options{Hidden: true})
	d, err := s.Create(ctx, keyed("k"), 3)
	if err != nil {
		t.Fatal(err)
	}
	copy(d.Bytes(), "new")
	if _, err := d.Commit(ctx, CommitOptions{IfAbsent: true}); err != nil {
		t.Error(err)
	}
	s.Show()
	get(t, s, keyed("k"), []byte("new"))
}
