// Package queue lets requests wait in a fair order while every node that could take them is full.
//
// Requests that compete for the same nodes wait in one Line. The order in a line is: the higher
// band of priority, then the tenant with the fewest weighted tokens, then the earliest deadline,
// then the earliest arrival. The tokens of a tenant are those of the virtual token counter (VTC,
// arXiv 2401.00588): a request is charged when it gets a node and settled at its end. A tenant
// that begins to wait is lifted to the settled counter of the first one that waits, so that nobody
// saves up time. A tenant with any number of waiting requests therefore delays another one's single
// request by no more than one service time.
//
// A request can need certain nodes, and must not hold up those behind it that need others. Its Lane
// says which requests are alike: in a line, the first of each lane is tried in the line's order.
//
// One goroutine, that of Run, tries the waiting requests. It looks after each Wake, and every 20 ms
// while requests wait, for changes that wake nobody: thresholds, reports of load, nodes that
// appear. The package knows nothing of nodes and does no I/O.
//
// With n waiting requests a join, a turn and a settlement take O(log n) steps, and besides one for
// each lane in use, and for each group of the tenant. Expect takes one for each of the tenant's own
// requests in the band, up to countMost. Idle tenants are swept in one go once their number has
// doubled.
package queue

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Bands is the number of priorities: 0, the lowest, to Bands-1.
const Bands = 11

const (
	// lanes is the number of lanes in use in a line from which on new ones are shared. There are
	// at most twice as many.
	lanes = 64
	// lookEvery is the time between two looks while requests wait and nothing wakes the queue.
	lookEvery = 20 * time.Millisecond
	// paceGain is the inverse of the weight of a dispatch in the mean time between two.
	paceGain = 8
	// oldPace is the time after which a line's mean time between dispatches says nothing any more.
	oldPace = time.Minute
)

// Errors of Join.
var (
	ErrFull   = errors.New("queue: too many requests wait")
	ErrMemory = errors.New("queue: the waiting requests take too much memory")
)

// Options bound a Queue.
type Options struct {
	MaxRequests int                // waiting at once
	MaxBytes    int64              // of the waiting requests together, as Claim.Bytes counts them
	Weights     map[string]float64 // of tenants, above 0; 1 for a tenant that is not there
}

// Queue holds the waiting requests of a router. Queue is safe for concurrent use. A nil Queue has
// none, and only Wake, Depth, Forgotten and Drop may be called.
type Queue struct {
	o       Options
	waiting atomic.Int64
	woken   chan struct{}

	mu      sync.Mutex // guards the following, and all lines
	lines   map[string]*Line
	busy    []*Line // those in which requests wait
	round   []*Line // scratch memory of serve
	first   int     // of busy, at the last look
	holders map[string]*holder
	shares  heap[*holder] // the holders with waiting requests
	bytes   int64
	depth   [Bands]int
	arrival uint64
	forgot  uint64
}

// New returns an empty queue. Nobody gets a turn before Run.
func New(o Options) *Queue {
	return &Queue{o: o, woken: make(chan struct{}, 1), lines: map[string]*Line{}, holders: map[string]*holder{}}
}

// Wake makes the queue look for room, because a node may have some. Wake does not block, and
// returns at once if nothing waits.
func (q *Queue) Wake() {
	if q != nil && q.waiting.Load() > 0 {
		q.wake()
	}
}

func (q *Queue) wake() {
	select {
	case q.woken <- struct{}{}:
	default:
	}
}

// Depth returns the number of waiting requests by their bands, and the bytes that they take.
func (q *Queue) Depth() (requests [Bands]int, bytes int64) {
	if q == nil {
		return requests, 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.depth, q.bytes
}

// Forgotten returns how many tenants' counters were forgotten because a line had too many of them.
func (q *Queue) Forgotten() uint64 {
	if q == nil {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.forgot
}

// Line returns the line with a name, always the same one until Drop.
func (q *Queue) Line(name string) *Line {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lines[name]
	if l == nil {
		l = &Line{q: q, tenants: map[string]*tenant{}}
		q.lines[name] = l
	}
	return l
}

// Drop forgets a line, unless requests wait in it or have to be settled. Drop returns whether it
// has. A nil Queue has dropped all lines.
func (q *Queue) Drop(name string) bool {
	if q == nil {
		return true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.lines[name]; l != nil && l.open > 0 {
		return false
	}
	delete(q.lines, name)
	return true
}

// Run gives the waiting requests their turns until ctx ends. Requests that still wait then get no
// turn any more.
func (q *Queue) Run(ctx context.Context) error {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		if q.waiting.Load() == 0 {
			look.Stop()
		} else {
			look.Reset(lookEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-q.woken:
		case <-look.C:
		}
		q.serve()
	}
}

// serve tries the waiting requests in their order, until the first of each lane finds no room. The
// lines take turns to be the first.
func (q *Queue) serve() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.first++
	q.round = append(q.round[:0], q.busy...) // lines come and go during a try
	for i := range q.round {
		q.round[(q.first+i)%len(q.round)].serve()
	}
	clear(q.round)
}

// serve is Queue.serve for one line. The caller holds q.mu, which serve gives up during a try.
func (l *Line) serve() {
	for _, at := range l.lanes {
		at.blocked = false
	}
	for t := l.next(); t != nil; t = l.next() {
		t.state = trying
		l.q.mu.Unlock()
		o := t.claim.Waiter.Try(time.Now())
		l.q.mu.Lock()
		l.tried(t, o)
	}
}

// tried takes in the outcome of a try.
func (l *Line) tried(t *Ticket, o Outcome) {
	switch {
	case o == Placed:
		l.placed(t)
	case o == Refused || t.leaving:
		l.abandon(t)
		close(t.done)
	default:
		t.state, t.group.lane.blocked = waiting, true
	}
}

// placed takes a ticket with a node out of the line and charges it.
func (l *Line) placed(t *Ticket) {
	of := t.group.tenant
	l.floor = max(l.floor, of.settled)
	l.turns++
	of.turn = l.turns
	l.remove(t)
	l.charge(t, of, t.claim.Waiter.Tokens())
	l.paced(time.Now())
	close(t.done)
}

// paced notes that a request has been dispatched while requests waited.
func (l *Line) paced(now time.Time) {
	if !l.last.IsZero() {
		took := now.Sub(l.last)
		if l.every == 0 {
			l.every = took
		}
		l.every += (took - l.every) / paceGain
	}
	if l.last = now; l.waiting == 0 { // the next one need not wait for a node
		l.last, l.paused = time.Time{}, now
	}
}
