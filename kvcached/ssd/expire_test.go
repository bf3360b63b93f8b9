package ssd

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// TestExpiredAreDropped lets blocks expire that nobody asks for. They leave the index and the rows,
// and the store is told. A crash does not bring them back without their expiry.
func TestExpiredAreDropped(t *testing.T) {
	o := small(t.TempDir())
	var later atomic.Int64
	o.now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	told := make(chan block.Addr, 3000)
	o.Evicted = func(a block.Addr) { told <- a }
	tier := open(t, o)
	<-tier.Ready()
	const all, dying = 3000, 2900
	soon := o.now().Add(time.Minute).UnixMilli()
	for i := range all {
		r := record(i)
		if i < dying/2 {
			r.Expires = soon
		}
		if err := tier.Write(ctx, r, content(i, 1, 100), false); err != nil {
			t.Fatal(err)
		}
	}
	for i := dying / 2; i < dying; i++ {
		if ok, err := tier.SetExpiry(keyAddr(i), soon); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if ok, err := tier.SetExpiry(keyAddr(0), 0); !ok || err != nil { // it does not expire after all
		t.Fatal(ok, err)
	}
	tier.dropDue(0)
	if n := len(told); n != 0 {
		t.Fatal(n, "blocks were dropped before they had expired")
	}
	later.Store(int64(2 * time.Minute))
	gone := map[block.Addr]bool{}
	for range dying - 1 {
		select {
		case a := <-told:
			gone[a] = true
		case <-time.After(time.Minute):
			t.Fatal("only ", len(gone), " expired blocks were dropped")
		}
	}
	if s := tier.Stats(); len(gone) != dying-1 || gone[keyAddr(0)] || s.Expired != dying-1 || s.Evicted != 0 ||
		s.Records != all-dying+1 {
		t.Fatalf("%d dropped: %+v", len(gone), s)
	}
	mustClose(t, tier)
	later.Store(0) // the clock goes back, so only what was dropped is missing
	tier = open(t, o)
	defer mustClose(t, tier)
	holds(t, tier, 0, 1, 100)
	misses(t, tier, 1)
	misses(t, tier, dying-1)
	holds(t, tier, dying, 1, 100)
}

// TestExpiredAndDamaged lets a block expire whose header is damaged. Its entry goes.
func TestExpiredAndDamaged(t *testing.T) {
	o := small(t.TempDir())
	var later atomic.Int64
	o.now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	tier := open(t, o)
	defer mustClose(t, tier)
	<-tier.Ready()
	write(t, tier, 1, 1, 100, true)
	if ok, err := tier.SetExpiry(keyAddr(1), o.now().Add(time.Minute).UnixMilli()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	a := keyAddr(1)
	e, _ := tier.index.get(tier.index.hash(&a))
	s := tier.segs.acquire(e.segment)
	if err := s.f.WriteAt([][]byte{alignedBytes(page)}, int64(e.page)*page); err != nil {
		t.Fatal(err)
	}
	tier.release(s)
	later.Store(int64(2 * time.Minute))
	for end := time.Now().Add(time.Minute); tier.Stats().Records > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the entry of a damaged record stays: %+v", tier.Stats())
		}
	}
}
