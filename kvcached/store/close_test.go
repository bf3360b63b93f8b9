package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kvcached/ssd"
)

// full is an SSD tier in which there is never room for a write.
type full struct{ disk }

func (full) Write(ctx context.Context, _ ssd.Record, _ []byte, _ bool) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestCloseWhileFull checks that Close ends although the queued writes wait for room that never
// comes.
func TestCloseWhileFull(t *testing.T) {
	s, g := tiered(t, t.TempDir(), Options{patience: time.Millisecond})
	g.disk = full{g.disk}
	for i := range 5 {
		put(t, s, item(i, false), fill(100, '1'))
		get(t, s, item(i, false), fill(100, '1'))
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		if n := s.Stats().BehindFailed; err != nil || n != 5 {
			t.Error(err, n)
		}
	case <-time.After(time.Minute):
		t.Fatal("Close waits for ever")
	}
}

// TestCloseCutShort checks that CloseWithin returns when its context ends. The next start finds the
// durable blocks.
func TestCloseCutShort(t *testing.T) {
	dir := t.TempDir()
	s, g := tiered(t, dir, Options{patience: time.Hour})
	if _, err := ifAbsent(t, s, item(9, false), fill(100, '9')); err != nil {
		t.Fatal(err)
	}
	g.disk = full{g.disk}
	for i := range 5 {
		put(t, s, item(i, false), fill(100, '1'))
		get(t, s, item(i, false), fill(100, '1'))
	}
	ctx, cancel := context.WithCancel(t.Context())
	closed := make(chan error, 1)
	go func() { closed <- s.CloseWithin(ctx) }()
	cancel()
	if err, n := <-closed, s.Stats().BehindFailed; !errors.Is(err, context.Canceled) || n != 5 {
		t.Error(err, n)
	}
	s, _ = tiered(t, dir, Options{})
	get(t, s, item(9, false), fill(100, '9'))
}
