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
	put(t, s, item(2, false), make([]byte, 64<<10)) // a small draft is allowed all the same
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
	if s.drafts != 0 {
		t.Errorf("%d bytes without drafts", s.drafts)
	}
	whole, err := s.Create(ctx, item(4, false), 15<<20) // a single draft may have any size
	if err != nil {
		t.Fatal(err)
	}
	whole.Abort()
}
