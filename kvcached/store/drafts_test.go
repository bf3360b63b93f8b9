package store

import (
	"errors"
	"testing"
)

// TestDraftsLeaveRoom begins drafts and does not commit them. Drafts get no more than half of the
// arena.
func TestDraftsLeaveRoom(t *testing.T) {
	s := open(t, Options{RAM: 16 << 20})
	kept := item(1, false)
	put(t, s, kept, make([]byte, 1<<20))
	var drafts []*Draft
	for i := range 100 {
		d, err := s.Create(ctx, item(10+i, false), 1<<20)
		if errors.Is(err, ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		drafts = append(drafts, d)
	}
	if len(drafts) != 8 {
		t.Errorf("%d drafts of 1 MiB in an arena of 16 MiB", len(drafts))
	}
	put(t, s, item(2, false), make([]byte, 64<<10)) // a small draft is still allowed
	if _, err := s.Stat(ctx, kept.Addr); err != nil {
		t.Error("what is read has been pushed out:", err)
	}
	if _, err := drafts[0].Commit(ctx, CommitOptions{}); err != nil {
		t.Error(err)
	}
	if d, err := s.Create(ctx, item(3, false), 1<<20); err != nil {
		t.Error("a draft that has ended still counts:", err)
	} else {
		drafts = append(drafts, d)
	}
	for _, d := range drafts {
		d.Abort()
	}
	if s.draftBytes != 0 {
		t.Errorf("%d bytes without drafts", s.draftBytes)
	}
	whole, err := s.Create(ctx, item(4, false), 15<<20) // a single draft may have any size
	if err != nil {
		t.Fatal(err)
	}
	whole.Abort()
}

// TestPurgeOfDrafts purges while blocks are being written. A block that was created before the
// purge is a miss after its Commit, in RAM and on SSD. That holds even if the SSD is writing the
// block during the purge. A block that was created after the purge stays.
func TestPurgeOfDrafts(t *testing.T) {
	for _, deep := range []bool{false, true} {
		o, dir := Options{RAM: 4 << 20}, t.TempDir()
		var s *Store
		var g *gate
		if deep {
			s, g = tiered(t, dir, o)
		} else {
			s = open(t, o)
		}
		purge := func() {
			if _, err := s.Purge(ctx, func(ns string, key []byte) bool { return string(key) != "kept" }); err != nil {
				t.Fatal(err)
			}
		}
		create := func(key string) *Draft {
			d, err := s.Create(ctx, keyed(key), 5)
			if err != nil {
				t.Fatal(err)
			}
			copy(d.Bytes(), "value")
			return d
		}
		commit := func(d *Draft, durable bool) {
			if i, err := d.Commit(ctx, CommitOptions{Durable: durable}); err != nil || i.Length != 5 || i.CRC != d.crc {
				t.Error(i, err)
			}
		}
		old, copied, gone, kept := create("old"), create("copied"), create("gone"), create("kept")
		gone.Abort()
		purge()
		commit(old, deep)
		commit(kept, deep)
		if _, err := copied.Commit(ctx, CommitOptions{Copy: true}); !errors.Is(err, ErrMiss) {
			t.Error("a copy older than a purge:", err)
		}
		commit(create("new"), deep)
		if has(s, keyed("old").Addr) || has(s, keyed("copied").Addr) || !has(s, keyed("kept").Addr) ||
			!has(s, keyed("new").Addr) {
			t.Error("the purge and its drafts, SSD:", deep)
		}
		if len(s.open.all) != 0 || s.draftBytes != 0 {
			t.Errorf("%d drafts, %d bytes left", len(s.open.all), s.draftBytes)
		}
		if !deep {
			continue
		}
		writing, purged := make(chan struct{}), make(chan struct{})
		g.set(nil, func() error {
			close(writing)
			eventually(t, "the purge is there", func() bool {
				s.open.mu.Lock()
				defer s.open.mu.Unlock()
				return s.open.all[0].purged.Load()
			})
			return nil
		}, nil)
		go func() {
			defer close(purged)
			<-writing
			purge()
		}()
		commit(create("late"), true)
		<-purged
		if has(s, keyed("late").Addr) {
			t.Error("a block that SSD wrote during a purge is there")
		}
	}
}
