package ssd

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// killed returns what is left when the process dies now and the power stays: everything that was
// written.
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

// TestFailedWriteStaysDeleted: the record of a write that failed may be in the log; deletion and
// replacement see to it that it does not come back after a crash.
func TestFailedWriteStaysDeleted(t *testing.T) {
	for _, doubts := range []int{1, maxDoubts + 1} {
		sim, rows := newSimFS(), vfs.NewCrashableMem()
		var failing atomic.Bool
		sim.fault = func(op string) error {
			if op == "sync" && failing.Load() {
				return syscall.EIO
			}
			return nil
		}
		o := simOptions(sim, rows)
		tier := open(t, o)
		<-tier.Ready()
		write(t, tier, 1, 1, 100, true)
		for i := range doubts - 1 {
			tier.doubts.add(uint64(i), place{0, 1})
		}
		failing.Store(true)
		if err := tier.Write(ctx, record(2), content(2, 1, 100), true); !errors.Is(err, ErrIO) {
			t.Fatal(err)
		}
		failing.Store(false)
		if _, there := tier.Find(keyAddr(2)); there || !tier.Doubtful(keyAddr(2)) {
			t.Error("a write that failed: found", there, "and not doubtful")
		}
		if _, err := tier.Delete(ctx, keyAddr(2)); err != nil {
			t.Fatal(err)
		}
		if doubts == 1 && tier.Doubtful(keyAddr(2)) {
			t.Error("doubtful after a deletion")
		}
		after := sim.killed(func() { rows = rows.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0}) })
		mustClose(t, tier)
		tier = open(t, simOptions(after, rows))
		misses(t, tier, 2)
		holds(t, tier, 1, 1, 100)
		mustClose(t, tier)
	}
}

// TestDoubtsEnd: a checkpoint behind what failed ends the doubt.
func TestDoubtsEnd(t *testing.T) {
	var d doubts
	for i := range uint64(maxDoubts + 10) {
		d.add(i, place{uint32(i), 1})
	}
	d.pass(place{5, 0})
	if got := slices.Collect(maps.Keys(d.of)); len(got) != maxDoubts-5 || !d.has(1<<40) {
		t.Error(len(got), d.all)
	}
	d.pass(place{1 << 20, 0})
	if d.has(7) || d.some.Load() {
		t.Error("doubts are left")
	}
}
