package ssd

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// dirSize returns the sum of the sizes of all files.
func dirSize(dir string) (sum int64) {
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if info, err := d.Info(); err == nil {
				sum += info.Size()
			}
		}
		return nil
	})
	return sum
}

// watchCap fails the test if the files of dir together ever exceed limit.
func watchCap(t *testing.T, dir string, limit int64) (stop func() (most int64)) {
	done, finished := make(chan struct{}), make(chan struct{})
	most := int64(0)
	go func() {
		defer close(finished)
		for {
			most = max(most, dirSize(dir))
			select {
			case <-done:
				return
			default:
			}
		}
	}()
	return func() int64 {
		close(done)
		<-finished
		if most > limit {
			t.Errorf("the files had %d bytes, %d are allowed", most, limit)
		}
		return most
	}
}

// TestCap writes four times as much as fits, while readers use some blocks again and again. Those
// blocks stay.
func TestCap(t *testing.T) {
	o := small(t.TempDir())
	tier := open(t, o)
	stop := watchCap(t, o.Dir, o.Cap)
	const size, hot, n = 128 << 10, 16, 2000
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := w; i < n; i += 4 {
				if err := tier.Write(ctx, record(i), content(i, 1, size), false); err != nil {
					t.Error(err)
					return
				}
				if i%16 == w {
					dst := make([]byte, size)
					for h := range hot {
						if _, err := tier.Read(ctx, keyAddr(h), dst); err != nil && !errors.Is(err, ErrMiss) {
							t.Error(err)
						}
					}
				}
			}
		})
	}
	wg.Wait()
	most := stop()
	awaitRoom(t, tier)
	s := tier.Stats()
	user := s.Writes * (size + page)
	t.Logf("at most %d of %d bytes; amplification %.3f; %d moved, %d evicted, %d segments reclaimed, %d waits", most,
		o.Cap,
		float64(s.WrittenBytes)/float64(user), s.Moved, s.Evicted, s.Reclaimed, s.Waits)
	if s.Reclaimed == 0 || float64(s.WrittenBytes+s.RowBytes)/float64(user) > 1.3 || s.Corrupt > 0 {
		t.Errorf("%+v", s)
	}
	there := 0
	for i := range n {
		if _, ok := tier.Find(keyAddr(i)); ok {
			holds(t, tier, i, 1, size)
			there++
			if i < hot {
				continue
			}
		} else if i < hot {
			t.Errorf("block %d was evicted though it was used all the time", i)
		}
	}
	if int64(there) != s.Records || int64(there)*(size+page) < o.Cap/3 {
		t.Errorf("%d blocks are there, the index says %d", there, s.Records)
	}
	mustClose(t, tier)
	tier = open(t, o)
	<-tier.Ready()
	awaitRoom(t, tier)
	if again := tier.Stats(); again.Records+int64(again.Evicted) != s.Records {
		t.Errorf("%d blocks after a restart and %d evicted, %d before: %+v", again.Records, again.Evicted, s.Records,
			again)
	}
	mustClose(t, tier)
}

// awaitRoom waits until reclaim has nothing to do.
func awaitRoom(t *testing.T, tier *Tier) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !tier.roomFor(tier.segmentSize(), false) ||
		tier.reclaiming.Load(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatal("reclaim makes no room")
		}
	}
}

// TestCapAllUsed reads every block once it is written, so that reclaim copies as much as possible.
func TestCapAllUsed(t *testing.T) {
	tier := open(t, small(t.TempDir()))
	defer mustClose(t, tier)
	const size = 64 << 10
	payload := alignedBytes(size)
	for i := range 2500 {
		if err := tier.Write(ctx, record(i), payload, false); err != nil {
			t.Fatal(err)
		}
		tier.Touch(keyAddr(i))
	}
	s := tier.Stats()
	x := float64(s.WrittenBytes+s.RowBytes) / float64(s.Writes*(size+page))
	t.Logf("amplification %.3f; %d moved, %d evicted", x, s.Moved, s.Evicted)
	if s.Moved == 0 || x > 1.3 {
		t.Errorf("%+v", s)
	}
}

func TestBudget(t *testing.T) {
	o := small(t.TempDir())
	o.DailyWrites = 100 << 10
	start := time.Unix(1e9, 0)
	var passed atomic.Int64 // nanoseconds; the loading goroutine reads the time, too
	o.now = func() time.Time { return start.Add(time.Duration(passed.Load())) }
	tier := open(t, o)
	write(t, tier, 1, 1, 80<<10, false)
	if err := tier.Write(ctx, record(2), make([]byte, 40<<10), false); !errors.Is(err, ErrBudget) {
		t.Fatal(err)
	}
	write(t, tier, 3, 1, 80<<10, true)
	mustClose(t, tier)
	tier = open(t, o)
	if err := tier.Write(ctx, record(2), make([]byte, 10<<10), false); !errors.Is(err, ErrBudget) ||
		tier.Stats().OverBudget != 1 {
		t.Fatal("a restart renewed the budget:", err)
	}
	passed.Store(int64(24 * time.Hour))
	write(t, tier, 2, 1, 10<<10, false)
	mustClose(t, tier)
}

// TestBudgetOutlivesKill: writes behind the last checkpoint count as written today.
func TestBudgetOutlivesKill(t *testing.T) {
	sim, rows := newSimFS(), vfs.NewCrashableMem()
	now := time.Unix(1e9, 0)
	options := func(sim *simFS) Options {
		o := simOptions(sim, rows)
		o.DailyWrites, o.now = 100<<10, func() time.Time { return now }
		return o
	}
	tier := open(t, options(sim))
	write(t, tier, 1, 1, 80<<10, true)
	after := sim.killed(func() { rows = rows.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 0}) })
	mustClose(t, tier)
	var first int64
	for round := range 2 { // a start that ends early counts nothing twice
		tier = open(t, options(after))
		used := tier.Stats().WrittenToday
		if round == 0 {
			first = used // twice the record's size if a checkpoint was made while it was written
		}
		if used < 84<<10 || used != first {
			t.Error("written today:", used, "at first:", first)
		}
		if err := tier.Write(ctx, record(2), make([]byte, 20<<10), false); !errors.Is(err, ErrBudget) {
			t.Error("a kill renewed the budget:", err)
		}
		if round > 0 {
			<-tier.Ready() // without a checkpoint everything would count for tomorrow
		}
		mustClose(t, tier)
	}
	now = now.Add(24 * time.Hour)
	tier = open(t, options(after))
	write(t, tier, 2, 1, 20<<10, false)
	mustClose(t, tier)
}

// TestCloseWhileFull closes a tier whose writers wait for space, while reclaim is too slow to free
// any.
func TestCloseWhileFull(t *testing.T) {
	o := small(t.TempDir())
	o.ReclaimRate = 1
	tier := open(t, o)
	ended := waitForSpace(ctx, t, tier, 500<<10, ErrClosed)
	mustClose(t, tier)
	ended()
}

// waitForSpace makes three writers fill the tier until one of them waits for space. Each writer
// goes on until it fails, which must be with the error last. ended waits for the end of all
// writers.
func waitForSpace(ctx context.Context, t *testing.T, tier *Tier, size int, last error) (ended func()) {
	var writers sync.WaitGroup
	waiting := make(chan struct{})
	one := sync.OnceFunc(func() { close(waiting) })
	for w := range 3 {
		writers.Go(func() {
			defer one()
			for i := w; ; i += 3 {
				if err := tier.Write(ctx, record(i), content(i, 1, size), false); err != nil {
					if !errors.Is(err, last) {
						t.Error(err)
					}
					return
				}
				tier.Touch(keyAddr(i))
				if tier.stats.waits.Load() > 0 {
					one()
				}
			}
		})
	}
	<-waiting
	return writers.Wait
}

// TestFailedWriteCostsNoBudget: failed writes would exceed the day's budget if they counted.
func TestFailedWriteCostsNoBudget(t *testing.T) {
	f := &faults{rng: rand.New(rand.NewPCG(1, 1)), err: syscall.EIO, some: 1}
	sim := newSimFS()
	sim.fault = f.trip
	o := simOptions(sim, vfs.NewMem())
	o.DailyWrites = 100 << 10
	tier := open(t, o)
	f.armed.Store(true)
	for range 3 {
		if err := tier.Write(ctx, record(1), make([]byte, 80<<10), false); !errors.Is(err, ErrIO) {
			t.Fatal(err)
		}
	}
	f.armed.Store(false)
	write(t, tier, 1, 1, 80<<10, false)
	if used := tier.Stats().WrittenToday; used != 84<<10 {
		t.Error("written today:", used)
	}
	mustClose(t, tier)
}

// TestBudgetGivesBackTheSameDay: a write that began yesterday has cost today nothing.
func TestBudgetGivesBackTheSameDay(t *testing.T) {
	var b budget
	noon := time.Unix(1e9, 0)
	day, _ := b.take(noon, 100, 60, false)
	b.take(noon.Add(24*time.Hour), 100, 10, false)
	b.giveBack(day, 60)
	if _, used := b.state(); used != 10 {
		t.Error("used today:", used)
	}
}

// TestCloseBehindStuckOperation closes a tier while the disk holds an operation: later ones fail at
// once.
func TestCloseBehindStuckOperation(t *testing.T) {
	tier := open(t, small(t.TempDir()))
	if !tier.users.enter() {
		t.Fatal("an open tier admits nothing")
	}
	closed := make(chan error, 1)
	go func() { closed <- tier.Close() }()
	<-tier.closing
	for tier.users.enter() { // Close has not come to wait yet
		tier.users.leave()
		time.Sleep(time.Millisecond)
	}
	if _, err := tier.Read(ctx, keyAddr(1), nil); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	tier.users.leave()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if err := tier.Write(ctx, record(1), nil, false); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
