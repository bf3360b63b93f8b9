package store

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

// ifAbsent commits payload durably if its address has no block.
func ifAbsent(t *testing.T, s *Store, it Item, payload []byte) (Info, error) {
	t.Helper()
	d, err := s.Create(ctx, it, len(payload))
	if err != nil {
		t.Fatal(err)
	}
	copy(d.Bytes(), payload)
	return d.Commit(ctx, CommitOptions{IfAbsent: true, Durable: true})
}

// TestExistsDurable checks that ErrExists to a durable Commit means a durable block. Any other
// error says that the block is not durable.
func TestExistsDurable(t *testing.T) {
	dir := t.TempDir()
	s, g := tiered(t, dir, Options{})
	it := item(1, false)
	put(t, s, it, fill(100, '1'))
	g.set(nil, func() error { return ssd.ErrIO }, nil)
	if _, err := ifAbsent(t, s, it, fill(100, '2')); !errors.Is(err, ssd.ErrIO) || errors.Is(err, ErrExists) {
		t.Error("the disk fails, and the block is said to be durable:", err)
	}
	g.set(nil, nil, nil)
	if info, err := ifAbsent(t, s, it, fill(100, '2')); !errors.Is(err, ErrExists) || info.Tiers != RAM|SSD {
		t.Error(info, err)
	}
	behind := item(2, false)
	put(t, s, behind, fill(100, '3'))
	get(t, s, behind, fill(100, '3'))
	eventually(t, "it is written behind", func() bool { return s.Stats().WrittenBehind == 1 })
	synced := s.Stats().SSD.Syncs
	if info, err := ifAbsent(t, s, behind, fill(100, '4')); !errors.Is(err, ErrExists) || info.Tiers != RAM|SSD {
		t.Error(info, err)
	}
	if s.Stats().SSD.Syncs == synced {
		t.Error("a block that was written without a sync is said to be durable")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = tiered(t, dir, Options{})
	get(t, s, it, fill(100, '1'))
	get(t, s, behind, fill(100, '3'))
}

// doubting is an SSD tier that does not find blocks which may be there after a crash.
type doubting struct{ disk }

func (doubting) Doubtful(block.Addr) bool { return true }

// TestDoubtful deletes and replaces blocks that SSD does not find but that may come back. The
// blocks are deleted for good, or the call fails.
func TestDoubtful(t *testing.T) {
	s, g := tiered(t, t.TempDir(), Options{})
	g.disk = doubting{g.disk}
	it := item(1, false)
	var deleted atomic.Int32
	g.set(nil, nil, func() error { deleted.Add(1); return nil })
	put(t, s, it, fill(100, '1'))
	if there, err := s.Delete(ctx, it.Addr); !there || err != nil || deleted.Load() != 2 {
		t.Error(there, err, deleted.Load())
	}
	if there, err := s.Delete(ctx, it.Addr); there || err != nil {
		t.Error(there, err)
	}
	g.set(nil, nil, func() error { return ssd.ErrIO })
	if _, err := s.Put(ctx, it, fill(100, '1'), false); !errors.Is(err, ssd.ErrIO) {
		t.Error(err)
	}
	if _, err := s.Delete(ctx, it.Addr); !errors.Is(err, ssd.ErrIO) {
		t.Error(err)
	}
}
