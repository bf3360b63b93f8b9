package ssd

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/cognitora/dataplane/kv/block"
)

// quiet drops the log of tests in which operations fail all the time.
var quiet = slog.New(slog.DiscardHandler)

// seedOf prints the seed of a test; CGN_SEED sets it.
func seedOf(t *testing.T) uint64 {
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("CGN_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("CGN_SEED=%d", seed)
	return seed
}

func rounds(short, soak int) int {
	if os.Getenv("CGN_SOAK") != "" {
		return soak
	}
	return short
}

// known is what a test knows of a block: its version now, and the versions that it may have after a
// crash. Version 0: absent.
type known struct {
	now   uint64
	later []uint64
	going uint64   // version when reclaim chose the block, until it is gone
	gone  int      // how often it was evicted
	vague bool     // the block changed meanwhile, so it may be absent, too
	past  []string // the last events, for the message
}

func (k *known) note(format string, args ...any) {
	k.past = append(k.past[max(0, len(k.past)-20):len(k.past):len(k.past)], fmt.Sprintf(format, args...))
}

const absent = 0

// model knows all blocks. Its lock is held while the power fails, so whatever the model has
// acknowledged happened before.
type model struct {
	mu      sync.Mutex
	blocks  []known
	sizes   map[uint64]int // by version
	version uint64
	counts  struct{ checked, durable, kept, lost, deleted, evicted int }
}

func newModel(n int) *model {
	m := &model{blocks: make([]known, n), sizes: map[uint64]int{}}
	for i := range m.blocks {
		m.blocks[i].later = []uint64{absent}
	}
	return m
}

// begin notes that block i may become version v. done notes that it has, and which versions it may
// have after a crash.
func (m *model) begin(i int, v uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blocks[i].later = append(m.blocks[i].later, v)
	m.blocks[i].note("begin %d", v)
}

func (m *model) done(i int, was known, v uint64, later ...uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blocks[i].vague = m.blocks[i].gone != was.gone
	if m.blocks[i].vague {
		later = append(later, absent)
	}
	m.blocks[i].now, m.blocks[i].going, m.blocks[i].later = v, absent, later
	m.blocks[i].note("is %d, later %v", v, later)
}

func (m *model) evicting(a block.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.blocks {
		if keyAddr(i) == a {
			m.blocks[i].gone++
			m.blocks[i].going = m.blocks[i].now // the second call, when the block is gone, finds it absent
			m.blocks[i].now, m.blocks[i].later = absent, append(m.blocks[i].later, absent)
			m.blocks[i].note("evict")
			m.counts.evicted++
		}
	}
}

func (m *model) draw(size int) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.version++
	m.sizes[m.version] = size
	return m.version
}

func (m *model) get(i int) known {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := m.blocks[i]
	k.later = slices.Clone(k.later)
	return k
}

// versionOf reads block i and returns which of the versions it has.
func (m *model) versionOf(tier *Tier, i int, versions []uint64) (uint64, error) {
	dst := alignedBytes(64 << 10)
	info, err := tier.Read(ctx, keyAddr(i), dst)
	if errors.Is(err, ErrMiss) {
		return absent, nil
	}
	if err != nil {
		return absent, err
	}
	for _, v := range versions {
		m.mu.Lock()
		size := m.sizes[v]
		m.mu.Unlock()
		if v != absent && info.Length == size && bytes.Equal(dst[:size], content(i, v, size)) {
			return v, nil
		}
	}
	return absent, fmt.Errorf("block %d has %d bytes that are none of the versions %v: %v", i, info.Length, versions,
		m.get(i).past)
}

// step does one random thing with a block of its own.
func (m *model) step(tier *Tier, rng *rand.Rand, i int) error {
	was := m.get(i)
	switch what := rng.IntN(10); {
	case what < 5:
		size := rng.IntN(12000)
		switch rng.IntN(4) {
		case 0:
			size = rng.IntN(200)
		case 1:
			size = rng.IntN(60000)
		}
		v, durable := m.draw(size), rng.IntN(3) == 0
		m.begin(i, v)
		if err := tier.Write(ctx, record(i), content(i, v, size), durable); err != nil {
			return err
		}
		if was.now != absent && !was.vague || durable {
			m.done(i, was, v, v)
		} else {
			m.done(i, was, v, absent, v)
		}
	case what < 7:
		m.begin(i, absent)
		var err error
		if rng.IntN(2) == 0 {
			_, err = tier.Delete(ctx, keyAddr(i))
		} else if err = tier.Drop(keyAddr(i)); err == nil {
			err = tier.Settle()
		}
		if err != nil {
			return err
		}
		m.done(i, was, absent, absent)
	default:
		v, err := m.versionOf(tier, i, []uint64{was.now, was.going})
		if err != nil {
			return err
		}
		if now := m.get(i); v != now.now && v != was.now && v != was.going && !(v == absent && was.vague) {
			return fmt.Errorf("block %d is version %d, not %d: %v", i, v, now.now, m.get(i).past)
		}
	}
	return nil
}

// settle reads every block after a crash.
func (m *model) settle(t *testing.T, tier *Tier) {
	t.Helper()
	for i := range m.blocks {
		k := m.get(i)
		v, err := m.versionOf(tier, i, k.later)
		if err != nil {
			t.Fatal("after a crash:", err)
		}
		if !slices.Contains(k.later, v) {
			if again := m.get(i); !slices.Contains(again.later, v) {
				t.Fatalf("after a crash block %d is version %d, not one of %v: %v", i, v, again.later, again.past)
			}
		}
		m.counts.checked++
		switch {
		case !slices.Contains(k.later, absent):
			m.counts.durable++
		case v != absent:
			m.counts.kept++
		case len(k.later) > 1:
			m.counts.lost++
		default:
			m.counts.deleted++
		}
		m.done(i, k, v, v)
	}
}

func simOptions(sim *simFS, rows vfs.FS) Options {
	return Options{Dir: "/d", Cap: MinCap, segmentSize: 128 << 10, rowShare: MinCap - 2<<20, Logger: quiet, fs: sim,
		rowFS: rows, checkpointBytes: 200 << 10}
}

// work starts goroutines that each work on their own blocks. It returns after n steps, and the work
// goes on until stop.
func (m *model) work(t *testing.T, tier *Tier, seed uint64, n int) (stop func()) {
	const workers = 4
	quit, steps := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	for w := range workers {
		rng := rand.New(rand.NewPCG(seed, uint64(w)))
		wg.Go(func() {
			for {
				select {
				case <-quit:
					return
				case steps <- struct{}{}:
				}
				if err := m.step(tier, rng, rng.IntN(len(m.blocks)/workers)*workers+w); err != nil {
					t.Error(err)
					<-quit
					return
				}
			}
		})
	}
	for i := 0; i < n && !t.Failed(); i++ {
		select {
		case <-steps:
		case <-time.After(time.Minute):
			t.Error("nothing happens")
		}
	}
	return func() {
		close(quit)
		wg.Wait()
	}
}

// crashed returns the model at the moment when the power fails. The lock is held.
func (m *model) crashed(round int) *model {
	after := &model{blocks: slices.Clone(m.blocks), sizes: m.sizes, version: m.version, counts: m.counts}
	for i := range after.blocks {
		k := &after.blocks[i]
		k.note("crash %d", round)
		k.later = slices.Clone(k.later)
	}
	return after
}

// TestCrash loses power again and again, at any moment.
func TestCrash(t *testing.T) {
	seed := seedOf(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	m := newModel(96)
	sim, rows := newSimFS(), vfs.NewCrashableMem()
	var total Stats
	n := rounds(20, 500)
	for round := range n {
		o := simOptions(sim, rows)
		if round%4 == 3 {
			o.rowShare -= 8 << 20 // no reclaim
		}
		o.evicting, o.Evicted = m.evicting, m.evicting
		tier := open(t, o)
		m.settle(t, tier)
		if rng.IntN(2) > 0 {
			<-tier.Ready()
			m.settle(t, tier)
		}
		stop := m.work(t, tier, seed+uint64(round), rng.IntN(600))
		m.mu.Lock()
		nextSim := sim.crash(rng, func() {
			rows = rows.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(101), RNG: rng})
		})
		after := m.crashed(round)
		m.mu.Unlock()
		stop()
		s := tier.Stats()
		total.Writes, total.Moved, total.Evicted, total.Torn, total.Corrupt = total.Writes+s.Writes,
			total.Moved+s.Moved, total.Evicted+s.Evicted,
			total.Torn+s.Torn, total.Corrupt+s.Corrupt
		mustClose(t, tier)
		m.mu.Lock()
		after.version = m.version
		m.mu.Unlock()
		m, sim = after, nextSim
		if t.Failed() {
			t.FailNow()
		}
	}
	t.Logf("%d crashes: %d blocks checked, %d of them durable, %d others there, %d lost that were not durable, %d "+
		"absent; %d writes, %d moved, %d evicted, %d torn",
		n, m.counts.checked, m.counts.durable, m.counts.kept, m.counts.lost, m.counts.deleted, total.Writes,
		total.Moved, total.Evicted, total.Torn)
	if total.Corrupt > 0 {
		t.Errorf("%d records were taken for damaged", total.Corrupt)
	}
}
