package store

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

func TestDiskFails(t *testing.T) {
	s, g := tiered(t, t.TempDir(), Options{})
	it := item(1, false)
	durable(t, s, it, fill(100, '1'))
	crowd(t, s)
	for _, fault := range []error{ssd.ErrCorrupt, ssd.ErrIO} {
		g.set(func() error { return fault }, nil, nil)
		if _, err := s.Get(ctx, it.Addr); !errors.Is(err, ErrMiss) {
			t.Error(err)
		}
	}
	g.set(nil, func() error { return ssd.ErrIO }, nil)
	get(t, s, it, fill(100, '1'))
	if _, err := s.Put(ctx, item(2, false), fill(10, '1'), true); !errors.Is(err, ssd.ErrIO) ||
		has(s, item(2, false).Addr) {
		t.Error(err)
	}
	put(t, s, item(3, false), fill(10, '1'))
	get(t, s, item(3, false), fill(10, '1'))
	eventually(t, "a write has failed", func() bool { return s.Stats().BehindFailed > 0 })
	if st := s.Stats(); st.PromotionsFailed != 2 || st.Promotions != 1 {
		t.Errorf("%+v", st.Counts)
	}
	g.set(nil, nil, func() error { return ssd.ErrIO })
	if _, err := s.Delete(ctx, it.Addr); !errors.Is(err, ssd.ErrIO) {
		t.Error(err)
	}
	g.set(nil, nil, nil)
}

func TestQueueFull(t *testing.T) {
	s, g := tiered(t, t.TempDir(), Options{})
	hook, reached, goOn := stopped()
	g.set(nil, hook, nil)
	for i := range 10 {
		put(t, s, item(i+1, false), fill(200<<10, 'q'))
		get(t, s, item(i+1, false), fill(200<<10, 'q'))
	}
	<-reached
	if st := s.Stats(); st.BehindBytes > 4<<20/behindShare || st.BehindDropped == 0 {
		t.Errorf("%+v", st)
	}
	g.set(nil, nil, nil)
	close(goOn)
	eventually(t, "all are written, with further uses", func() bool {
		for i := range 10 {
			get(t, s, item(i+1, false), fill(200<<10, 'q'))
		}
		return s.Stats().WrittenBehind == 10
	})
}

func TestExpiryTiers(t *testing.T) {
	var mu sync.Mutex
	now := time.Now().UnixMilli()
	s, _ := tiered(t, t.TempDir(), Options{Now: func() int64 { mu.Lock(); defer mu.Unlock(); return now }})
	it := item(1, false)
	it.Expires = now + 100_000
	durable(t, s, it, fill(10, 'e'))
	if there, err := s.SetExpiry(ctx, it.Addr, now+50_000); !there || err != nil {
		t.Error(there, err)
	}
	crowd(t, s)
	get(t, s, it, fill(10, 'e'))
	mu.Lock()
	now += 60_000
	mu.Unlock()
	crowd(t, s)
	if _, err := s.Get(ctx, it.Addr); !errors.Is(err, ErrMiss) {
		t.Error(err)
	}
	if there, err := s.SetExpiry(ctx, it.Addr, 0); there || err != nil {
		t.Error(there, err)
	}
	if there, err := s.Delete(ctx, it.Addr); there || err != nil {
		t.Error(there, err)
	}
}

// TestNoRoomToPromote gets blocks from SSD when RAM or the blocks' quota has no room for them.
func TestNoRoomToPromote(t *testing.T) {
	s, _ := tiered(t, t.TempDir(), Options{Quota: func(ns string) (string, int64) {
		if ns == space {
			return "tenant", 1 << 20
		}
		return "", 0
	}})
	for i := range 3 {
		durable(t, s, keyed(fmt.Sprint(i)), fill(500<<10, byte(i)))
	}
	crowd(t, s)
	for i := range 3 {
		get(t, s, keyed(fmt.Sprint(i)), fill(500<<10, byte(i)))
	}
	for _, u := range s.Namespaces() {
		if u.Namespace == space && u.Bytes > 1<<20 {
			t.Errorf("%+v", u)
		}
	}
	first, err := s.Get(ctx, keyed("1").Addr)
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.Get(ctx, keyed("2").Addr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, keyed("0").Addr); !errors.Is(err, ErrQuota) {
		t.Error(err)
	}
	first.Release()
	second.Release()
	get(t, s, keyed("0"), fill(500<<10, 0))
	durable(t, s, item(1, false), fill(100, 'd'))
	crowd(t, s)
	eventually(t, "nothing is held for SSD", func() bool { return s.Stats().BehindBytes == 0 })
	d, err := s.Create(ctx, item(2, false), 4<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, item(1, false).Addr); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
	d.Abort()
	get(t, s, item(1, false), fill(100, 'd'))
	if u := s.Stats().RAM; u.Blocks != 1 {
		t.Errorf("%+v", u)
	}
}

func TestScanAndPurgeTiers(t *testing.T) {
	var mu sync.Mutex
	where := map[block.Addr]Tiers{}
	changed := func(c Change) {
		mu.Lock()
		defer mu.Unlock()
		if c.Present {
			where[c.Addr] |= c.Tier
		} else if where[c.Addr] &^= c.Tier; where[c.Addr] == 0 {
			delete(where, c.Addr)
		}
	}
	dir := t.TempDir()
	s, _ := tiered(t, dir, Options{Changed: changed})
	for i := range 300 {
		if i%3 == 0 {
			durable(t, s, keyed(fmt.Sprint(i)), fill(10_000, 'd'))
		} else {
			put(t, s, keyed(fmt.Sprint(i)), fill(10_000, 'r'))
		}
	}
	same := func() {
		t.Helper()
		seen := map[block.Addr]Tiers{}
		for cursor := uint64(0); ; {
			next, err := s.Scan(ctx, cursor, func(i Info) bool { seen[i.Item.Addr] |= i.Tiers; return true })
			if err != nil {
				t.Fatal(err)
			}
			if cursor = next; next == 0 {
				break
			}
		}
		mu.Lock()
		defer mu.Unlock()
		if len(seen) != len(where) {
			t.Errorf("%d seen, %d were told of", len(seen), len(where))
		}
		for a, tiers := range where {
			if seen[a] != tiers {
				t.Fatalf("seen in %d, told of in %d", seen[a], tiers)
			}
		}
	}
	same()
	if len(where) != 300 {
		t.Error(len(where), "blocks")
	}
	crowd(t, s)
	same()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	clear(where)
	s, _ = tiered(t, dir, Options{Changed: changed})
	eventually(t, "what SSD has is told", func() bool { mu.Lock(); defer mu.Unlock(); return len(where) == 100 })
	for i := range 30 {
		get(t, s, keyed(fmt.Sprint(3*i)), fill(10_000, 'd'))
	}
	put(t, s, keyed("more"), nil)
	put(t, s, item(1, false), nil)
	if n, err := s.Purge(ctx, func(ns string, _ []byte) bool { return ns == space }); n != 101 || err != nil {
		t.Error(n, err)
	}
	same()
	if len(where) != 1 {
		t.Error(len(where), "blocks left")
	}
}

// TestChangesHaveTheAttribute checks that every change to present has the block's attribute: a
// write, a durable one, a write behind, a promotion, and the announcement after a start.
func TestChangesHaveTheAttribute(t *testing.T) {
	var mu sync.Mutex
	told := map[block.Addr]map[Tiers]int{}
	changed := func(c Change) {
		if !c.Present {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if string(c.Attr) != "attribute" && len(c.Attr) != 0 || c.Parent[0] != 7 && len(c.Attr) != 0 {
			t.Errorf("%+v", c)
		}
		if told[c.Addr] == nil {
			told[c.Addr] = map[Tiers]int{}
		}
		if len(c.Attr) != 0 {
			told[c.Addr][c.Tier]++
		}
	}
	times := func(it Item, tier Tiers) int { mu.Lock(); defer mu.Unlock(); return told[it.Addr][tier] }
	named := func(n int) Item {
		it := item(n, false)
		it.Attr, it.Parent = []byte("attribute"), block.Digest{7}
		return it
	}
	dir := t.TempDir()
	s, _ := tiered(t, dir, Options{Changed: changed})
	durable(t, s, named(1), fill(4096, 'd'))
	put(t, s, named(2), fill(10_000, 'b'))
	put(t, s, named(3), fill(10_000, 'r'))
	if _, err := s.Put(ctx, named(3), nil, true); err != nil {
		t.Fatal(err)
	}
	get(t, s, named(2), fill(10_000, 'b'))
	eventually(t, "the read block is on SSD", func() bool { return times(named(2), SSD) > 0 })
	// The announcement after the start may tell a block of this run once more.
	if times(named(1), RAM) != 1 || times(named(1), SSD) == 0 || times(named(3), RAM) != 2 ||
		times(named(3), SSD) == 0 {
		t.Errorf("%v", told)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	clear(told)
	s, _ = tiered(t, dir, Options{Changed: changed})
	eventually(t, "what SSD has is told", func() bool {
		return times(named(1), SSD) > 0 && times(named(2), SSD) > 0 && times(named(3), SSD) > 0
	})
	get(t, s, named(2), fill(10_000, 'b'))
	if times(named(2), RAM) != 1 {
		t.Errorf("%v", told)
	}
}
