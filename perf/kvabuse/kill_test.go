package kvabuse

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Parameters of the kills.
const (
	killSubjects = 400
	killWorkers  = 6
	killRounds   = 200 // unless ROUNDS is set
	firstStarts  = 60
	tellRounds   = 20
)

// totals counts the events of a killing.
type totals struct {
	rounds, starting, stopping atomic.Int64 // rounds, and those in which it was killed while starting or while stopping
	reads, acked, durable      atomic.Int64
	checked, warm, durableWarm atomic.Int64 // reads after restarts; reads that found data; reads that had to find data
	// lost: acknowledged in RAM only and gone; evicted: misses that are allowed because not
	// everything fits
	lost, evicted atomic.Int64
	// unknown: operations in progress at a kill; full: operations refused for lack of room
	unknown, full     atomic.Int64
	wrong, missing    atomic.Int64
	admitted, corrupt int64
}

func (n *totals) String() string {
	return fmt.Sprintf("%d kills (%d while starting, %d while stopping), %d writes acknowledged (%d of them "+
		"durable), %d under way, %d refused; "+
		"%d reads under load, %d after restarts, of which %d warm (%d of what was durable), %d acknowledged in RAM "+
		"only and gone, %d evicted; "+
		"wrong bytes %d, durable and missing %d, damaged records %d",
		n.rounds.Load(), n.starting.Load(), n.stopping.Load(), n.acked.Load(), n.durable.Load(), n.unknown.Load(),
		n.full.Load(),
		n.reads.Load(), n.checked.Load(), n.warm.Load(), n.durableWarm.Load(), n.lost.Load(), n.evicted.Load(),
		n.wrong.Load(), n.missing.Load(), n.corrupt)
}

// TestKillTheFirstStart kills the daemon while it makes its data directory. The next start must be
// able to use the directory.
func TestKillTheFirstStart(t *testing.T) {
	d := newDaemon(t, "--ram", "64MiB", "--ssd", "128MiB")
	for i := range firstStarts {
		d.launch(t)
		pause(time.Duration(rand.IntN(40_000)) * time.Microsecond)
		d.kill()
		if rand.IntN(2) == 0 {
			continue // kills the second start too
		}
		d.start(t)
		d.kill()
		if err := os.RemoveAll(d.data); err != nil {
			t.Fatal(i, err)
		}
	}
}

// killing is a daemon that is killed, with the model of its blocks.
type killing struct {
	t        *testing.T
	d        *daemon
	evicts   bool // RAM and SSD are too small for all subjects
	subjects []*subject
	entries  []*entry
	n        totals
	dying    atomic.Bool
	broken   atomic.Bool        // the disk fails, so writes may be refused
	last     map[string]float64 // metrics of the last start
}

// TestKill kills the daemon under load, once with room for all subjects and once with too little.
func TestKill(t *testing.T) {
	rounds := killRounds
	if text := os.Getenv("ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatalf("ROUNDS: %v", err)
		}
	}
	t.Run("room", func(t *testing.T) { kill(t, rounds/2, false, "--ram", "512MiB", "--ssd", "1GiB") })
	t.Run("evictions", func(t *testing.T) { kill(t, rounds-rounds/2, true, "--ram", "24MiB", "--ssd", "128MiB") })
}

func newKilling(t *testing.T, evicts bool, flags ...string) *killing {
	k := &killing{t: t, d: newDaemon(t, flags...), evicts: evicts, subjects: makeSubjects(killSubjects)}
	for range k.subjects {
		k.entries = append(k.entries, newEntry())
	}
	return k
}

func kill(t *testing.T, rounds int, evicts bool, flags ...string) {
	k := newKilling(t, evicts, flags...)
	began := time.Now()
	for i := range rounds {
		k.round(i)
		if t.Failed() {
			break
		}
		if (i+1)%tellRounds == 0 {
			t.Logf("round %d of %d, %.0f s: %s", i+1, rounds, time.Since(began).Seconds(), &k.n)
		}
	}
	k.d.start(t)
	k.check()
	t.Logf("in all, %.2f s a round: %s", time.Since(began).Seconds()/float64(rounds), &k.n)
	if k.n.warm.Load() == 0 || k.n.durableWarm.Load() == 0 {
		t.Error("nothing was warm")
	}
	if evicts && k.n.evicted.Load() == 0 {
		t.Error("nothing was evicted, though there was to be too little room")
	}
}

// round starts the daemon, checks it, puts it under load and kills it.
func (k *killing) round(i int) {
	k.n.rounds.Add(1)
	k.dying.Store(false)
	if rand.IntN(8) == 0 {
		k.d.launch(k.t)
		pause(time.Duration(rand.IntN(60_000)) * time.Microsecond)
		k.n.starting.Add(1)
		k.d.kill()
		return
	}
	k.d.start(k.t)
	k.check()
	wait := k.work()
	pause(time.Duration(20+rand.IntN(400)) * time.Millisecond)
	k.dying.Store(true)
	if rand.IntN(8) == 0 {
		k.n.stopping.Add(1)
		k.d.signal(syscall.SIGTERM)
		pause(time.Duration(rand.IntN(60_000)) * time.Microsecond)
	}
	k.d.kill()
	wait()
	for _, e := range k.entries {
		e.killed()
	}
}

// work loads the daemon until it dies. wait returns when all workers have ended.
func (k *killing) work() (wait func()) {
	var done sync.WaitGroup
	for w := range killWorkers {
		ways := k.d.connect(k.t)
		done.Go(func() {
			defer ways.close()
			k.load(ways, w)
		})
	}
	return done.Wait
}

// check reads all subjects after a start and stores the results as their states.
func (k *killing) check() {
	ways := k.d.connect(k.t)
	defer ways.close()
	warm := k.n.warm.Load()
	for i, s := range k.subjects {
		k.n.checked.Add(1)
		e := k.entries[i]
		at := e.before()
		is, ok := k.read(ways, s, e)
		if !ok {
			continue
		}
		firm := !mayMiss(at, time.Now().UnixMilli())
		switch {
		case is.version != 0:
			k.n.warm.Add(1)
			if firm {
				k.n.durableWarm.Add(1)
			}
		case !firm && at.maybe[0].version != 0:
			k.n.lost.Add(1)
		}
		e.settle(is)
	}
	m := k.d.metrics(k.t)
	k.last = m
	k.n.admitted += int64(m["ssd_admitted_total"])
	if corrupt := m["ssd_corrupt_total"] + m["ssd_read_errors_total"]; corrupt > 0 && !k.broken.Load() {
		k.n.corrupt += int64(corrupt)
		k.t.Errorf("%.0f damaged records after a kill, which can tear nothing that is pointed to", corrupt)
	}
	if gone := m["ssd_evictions_total"]; !k.evicts && gone > 0 {
		k.t.Errorf("%.0f evictions where there is room", gone)
	}
	if k.n.rounds.Load() > 3 && k.n.warm.Load() == warm {
		k.t.Error("a restart was not warm")
	}
}

// read reads a subject by a random protocol and checks the result against its possible states.
func (k *killing) read(ways *ways, s *subject, e *entry) (is state, ok bool) {
	b := e.before()
	by := s.ways[rand.IntN(len(s.ways))]
	payload, err := ways.by[by].get(context.Background(), s)
	switch {
	case errors.Is(err, errMiss):
	case err != nil:
		k.failed(by+" get", err)
		return is, false
	}
	var version uint64
	if err == nil {
		if version, err = checkPayload(s.name, payload); err != nil {
			k.n.wrong.Add(1)
			k.t.Errorf("%s %.60s: %v", by, s.key, err)
			return is, false
		}
	}
	j := e.judge(b, version)
	switch {
	case j.wrong != "":
		k.n.wrong.Add(1)
		k.t.Errorf("%s %.60s: %s", by, s.key, j.wrong)
		return is, false
	case j.missing && k.evicts:
		k.n.evicted.Add(1)
	case j.missing:
		k.n.missing.Add(1)
		k.t.Errorf("%s %.60s: a miss, where only %v can be", by, s.key, b.maybe)
		return is, false
	}
	return j.is, true
}

// failed counts an operation that has failed. failed reports an error if the daemon is alive,
// unless there was no room for the operation.
func (k *killing) failed(what string, err error) {
	switch {
	case k.dying.Load():
		k.n.unknown.Add(1)
	case k.broken.Load(), errors.Is(err, errFull) && k.evicts:
		k.n.full.Add(1)
	default:
		k.t.Errorf("%s: %v", what, err)
	}
}

// load reads any subjects and changes its own ones until the daemon dies.
func (k *killing) load(ways *ways, worker int) {
	for !k.dying.Load() && !k.t.Failed() {
		if i := rand.IntN(len(k.subjects)); rand.IntN(5) < 2 {
			k.n.reads.Add(1)
			k.read(ways, k.subjects[i], k.entries[i])
			continue
		}
		i := rand.IntN((len(k.subjects)-worker+killWorkers-1)/killWorkers)*killWorkers + worker
		k.change(ways, k.subjects[i], k.entries[i])
	}
}

// change overwrites or deletes a subject.
func (k *killing) change(ways *ways, s *subject, e *entry) {
	by := s.ways[rand.IntN(len(s.ways))]
	w := ways.by[by]
	if rand.IntN(8) == 0 {
		next := e.begin(true, false, 0)
		if err := w.del(context.Background(), s); err != nil && !errors.Is(err, errMiss) {
			k.failed(by+" delete", err)
			return
		}
		e.acknowledged(next, true)
		k.n.acked.Add(1)
		return
	}
	var o putOptions
	if by != "resp" {
		o.durable = rand.IntN(3) == 0
	}
	if by != "s3" && rand.IntN(8) == 0 {
		o.expires = time.Now().UnixMilli() + int64(50+rand.IntN(3000))
	}
	next := e.begin(false, o.durable, o.expires)
	if err := w.put(context.Background(), s, makePayload(s.name, next.version, killSize()), o); err != nil {
		k.failed(by+" put", err)
		return
	}
	e.acknowledged(next, o.durable)
	k.n.acked.Add(1)
	if o.durable {
		k.n.durable.Add(1)
	}
}

// killSize returns a payload's length: mostly small, sometimes larger than RESP's buffers or very
// large.
func killSize() int {
	switch n := rand.IntN(100); {
	case n < 30:
		return leastLen + rand.IntN(500)
	case n < 60:
		return 4096*(1+rand.IntN(4)) - 2 + rand.IntN(5)
	case n < 97:
		return 20_000 + rand.IntN(300_000)
	case n < 99:
		return 1 << 20
	}
	return 4<<20 + rand.IntN(100)
}
