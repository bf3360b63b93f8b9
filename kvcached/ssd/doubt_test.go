package ssd

import (
	"bytes"
	"errors"
	"maps"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// killed returns the files as they are if the process dies now and the power stays: every write is
// in them.
func (s *simFS) killed(also func()) *simFS {
	s.mu.Lock()
	defer s.mu.Unlock()
	after := newSimFS()
	for name, f := range s.files {
		c := &simFile{fs: after, data: bytes.Clone(f.data), synced: bytes.Clone(f.data), dirty: map[int64]bool{}}
		after.files[name] = c
	}
	after.stable = maps.Clone(after.files)
	also()
	return after
}

// failSyncs makes syncs of the files fail while the result is true.
func (s *simFS) failSyncs() *atomic.Bool {
	var failing atomic.Bool
	s.fault = func(op string) error {
		if op == "sync" && failing.Load() {
			return syscall.EIO
		}
		return nil
	}
	return &failing
}

// TestFailedWriteStaysDeleted: the log may have the record of a failed write. A deletion makes sure
// that the record does not come back after a crash.
func TestFailedWriteStaysDeleted(t *testing.T) {
	sim, rows := newSimFS(), vfs.NewCrashableMem()
	failing := sim.failSyncs()
	tier := open(t, simOptions(sim, rows))
	<-tier.Ready()
	write(t, tier, 1, 1, 100, true)
	tier.checkpointMu.Lock() // no checkpoint ends the doubt
	failing.Store(true)
	if err := tier.Write(ctx, record(2), content(2, 1, 100), true); !errors.Is(err, ErrIO) {
		t.Fatal(err)
	}
	failing.Store(false)
	if _, there := tier.Find(keyAddr(2)); there || !tier.Doubtful(keyAddr(2)) {
		t.Error("a write that failed: found", there, "or not doubtful")
	}
	if n, err := tier.Delete(ctx, keyAddr(2)); n != 0 || err != nil {
		t.Fatal(n, err)
	}
	after := sim.killed(func() { rows = rows.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0}) })
	tier.checkpointMu.Unlock()
	for i := 0; tier.Doubtful(keyAddr(2)); i++ {
		if time.Sleep(time.Millisecond); i > 10_000 {
			t.Fatal("no checkpoint ends the doubt")
		}
	}
	mustClose(t, tier)
	tier = open(t, simOptions(after, rows))
	misses(t, tier, 2)
	holds(t, tier, 1, 1, 100)
	mustClose(t, tier)
}

// TestSettleWithDoubt settles while the record of a failed write has no row. The next start would
// find that record after a crash, so Settle fails until a checkpoint has passed the record.
func TestSettleWithDoubt(t *testing.T) {
	sim, rows := newSimFS(), vfs.NewCrashableMem()
	failing := sim.failSyncs()
	tier := open(t, simOptions(sim, rows))
	<-tier.Ready()
	defer mustClose(t, tier)
	write(t, tier, 1, 1, 100, true)
	r := record(9)
	slow, err := tier.allocate(1, tableEntry{addr: r.Addr, size: 10}, false) // another write keeps the checkpoint back
	if err != nil {
		t.Fatal(err)
	}
	failing.Store(true)
	if err := tier.Write(ctx, record(2), content(2, 1, 100), true); !errors.Is(err, ErrIO) {
		t.Fatal(err)
	}
	failing.Store(false)
	if err := tier.Settle(); !errors.Is(err, ErrIO) {
		t.Error("settled although a record may come back:", err)
	}
	tier.land(slow, false)
	if err := tier.Settle(); err != nil {
		t.Error(err)
	}
}

// TestSettleWithDoubtfulCopy is TestSettleWithDoubt for a copy that reclaim could not sync.
func TestSettleWithDoubtfulCopy(t *testing.T) {
	sim, rows := newSimFS(), vfs.NewCrashableMem()
	failing := sim.failSyncs()
	tier := open(t, simOptions(sim, rows))
	<-tier.Ready()
	defer mustClose(t, tier)
	write(t, tier, 2, 1, 100, true)
	s := tier.segs.all()[0]
	for i := 10; tier.log.active == s; i++ {
		write(t, tier, i, 1, 10_000, true)
	}
	tier.sealFull()
	slow, err := tier.allocate(1, tableEntry{addr: keyAddr(900), size: 10}, false) // keeps the checkpoint back
	if err != nil {
		t.Fatal(err)
	}
	table, err := tier.readTable(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	moves := tier.copyOut(s, table, true)
	failing.Store(true)
	if len(moves) == 0 || tier.settle(s, moves) {
		t.Fatal("copies that are not on the disk count as moved: ", len(moves))
	}
	failing.Store(false)
	if err := tier.Settle(); !errors.Is(err, ErrIO) {
		t.Error("settled although a copy may come back:", err)
	}
	tier.land(slow, false)
	if err := tier.Settle(); err != nil {
		t.Error(err)
	}
}
