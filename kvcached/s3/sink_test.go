package s3

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"

	"github.com/cognitora/dataplane/kvcached/store"
)

// lone is a store that is in no fleet.
type lone struct{ *store.Store }

func (lone) Know(string) {}

// arena is a store of the given size. At the end of the test it must have got everything back.
func arena(t testing.TB, size int64) lone {
	t.Helper()
	s, err := store.Open(context.Background(), store.Options{RAM: size, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if held := s.Stats().RAM.Held; held != 0 {
			t.Errorf("%d bytes of drafts and blocks in use were not given back", held)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return lone{s}
}

// fillable is a Sink that has no room if the test says so.
type fillable struct {
	lone
	full atomic.Bool
}

func (f *fillable) Create(ctx context.Context, it store.Item, length int) (*store.Draft, error) {
	if f.full.Load() {
		return nil, store.ErrFull
	}
	return f.Store.Create(ctx, it, length)
}
