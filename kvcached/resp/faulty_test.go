package resp

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/store"
)

// lone is a store that is in no fleet.
type lone struct{ *store.Store }

func (lone) Know(string) {}

func (lone) Reachable(context.Context, []block.Addr, []bool) bool { return false }

// openStore opens a store with an arena of the given size; 0: 256 MiB.
func openStore(t testing.TB, arena int64) lone {
	t.Helper()
	if arena == 0 {
		arena = 256 << 20
	}
	st, err := store.Open(context.Background(), store.Options{RAM: arena})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	})
	return lone{st}
}

// purgeOf removes blocks of a store that is in no fleet.
func purgeOf(t testing.TB, st *store.Store) purge.Func {
	ledger, err := purge.Open(t.Context(), purge.Options{Store: st})
	if err != nil {
		t.Fatal(err)
	}
	return ledger.Purge
}

// faulty is a store whose calls fail while fails is set.
type faulty struct {
	lone
	fails atomic.Bool
}

var errFire = errors.New("the disk is on fire")

func (f *faulty) err() error {
	if f.fails.Load() {
		return errFire
	}
	return nil
}

func (f *faulty) Get(ctx context.Context, a block.Addr) (*store.Block, error) {
	if err := f.err(); err != nil {
		return nil, err
	}
	return f.Store.Get(ctx, a)
}

func (f *faulty) Create(ctx context.Context, it store.Item, n int) (*store.Draft, error) {
	if err := f.err(); err != nil {
		return nil, err
	}
	return f.Store.Create(ctx, it, n)
}

func (f *faulty) Stat(context.Context, block.Addr) (store.Info, error) { return store.Info{}, f.err() }

func (f *faulty) StatAll(context.Context, []block.Addr, []store.Info) error { return f.err() }

func (f *faulty) Delete(context.Context, block.Addr) (bool, error) { return false, f.err() }

func (f *faulty) Scan(context.Context, uint64, func(store.Info) bool) (uint64, error) {
	return 0, f.err()
}

func (f *faulty) Count(context.Context) (map[string]int, error) { return nil, f.err() }

func (f *faulty) purge(context.Context, purge.Selector) ([]purge.Done, error) {
	return []purge.Done{{Err: f.err()}}, nil
}

// twice is a store that visits every block twice.
type twice struct{ lone }

func (s *twice) Scan(ctx context.Context, cursor uint64, visit func(store.Info) bool) (uint64, error) {
	if _, err := s.Store.Scan(ctx, cursor, visit); err != nil {
		return 0, err
	}
	return s.Store.Scan(ctx, cursor, visit)
}
