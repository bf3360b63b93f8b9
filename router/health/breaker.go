package health

import (
	"cmp"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// Outcome is the result of a request, as evidence about its node.
type Outcome uint8

// These are the outcomes.
const (
	OK           Outcome = iota // an answer began, whatever its status below 500
	ConnectError                // refused, unreachable or timed out while connecting
	Reset                       // the connection broke before the first byte
	ServerError                 // 5xx before the first byte, and another node answered the same request well
	Timeout                     // the first byte did not come in time
	Busy                        // 429; no evidence about the node's health
	probeFailure                // the health check failed
	silent                      // the node acknowledges no packets
)

func (o Outcome) String() string {
	return [...]string{"ok", "connect error", "reset", "server error", "first-byte timeout", "busy",
		"health check failed", "no packet is acknowledged"}[o]
}

// State is the state of a breaker.
type State int32

// These are the states. Only a healthy node takes its full share.
const (
	Unproven State = iota // the node has never answered since it was configured
	Healthy
	HalfOpen // the node is returning; it gets a few trial requests at a time
	Open     // the node is failing; it gets no requests
	Aside    // the node accepts requests and answers none
)

func (s State) String() string {
	return [...]string{"unproven", "healthy", "half-open", "open", "aside"}[s]
}

// These are the rules of the breaker.
const (
	connectErrorsToOpen = 2
	failuresToOpen      = 3  // in a row
	windowMin           = 10 // outcomes before the share of failures in the last 32 counts; one half opens
	winsToClose         = 3
	// checksToClose checks in a row, over checkedFor at least, close a half-open breaker. Health
	// checks count if they detect the fault that opened the breaker; otherwise only completion
	// checks count.
	checksToClose = 3
	checkedFor    = 2 * time.Second
	backoffFirst  = 250 * time.Millisecond
	// backoffLast is short so that a recovered node has its share back within 2 s. At most one
	// request a second tries a node that goes on failing; that request is then retried at another
	// node.
	backoffLast = time.Second
	// trialEvery is the wait for the outcome of earlier trial requests before another one may go.
	trialEvery = 500 * time.Millisecond
	// flapWithin is the time after a recovery in which another failure doubles the backoff.
	flapWithin = 10 * time.Second
	// asideProofFirst is the shortest time aside when the completion check cannot prove that the
	// node computes.
	asideProofFirst = time.Second
	asideProofLast  = 16 * time.Second
)

// breaker holds one node's health. Three calls take no lock: eligible, admit on a healthy node, and
// report(OK) on a node without recent failures. A change of state takes the lock.
type breaker struct {
	state   atomic.Int32
	blame   atomic.Uint32 // the Outcome that opened the breaker
	permits atomic.Int32  // half-open: trial requests allowed now
	retryAt atomic.Int64  // open: earliest retry; half-open: next extra trial (Unix ns)
	tried   atomic.Int64  // half-open: time of the last admitted request (Unix ns); 0: none
	proven  atomic.Bool   // a request has succeeded since the node was set aside
	clean   atomic.Bool   // the breaker remembers only successes
	opens   atomic.Uint64
	moved   atomic.Int64                     // last sign of life from a request (Unix ns)
	changed func(from, to State, why string) // called without mu

	mu       sync.Mutex // guards the fields below
	said     transition // reported once mu is free
	failures failures
	doubts   doubts
	trial    trial
	unwell   bool // a health check has failed while the node was out of service
	backoff  time.Duration
	flapping bool // the node has failed again within flapWithin of a recovery
	closedAt time.Time
	aside    aside
}

// failures counts the evidence against a healthy node.
type failures struct {
	consecutive int    // outcomes in a row
	refused     int    // connect errors in a row
	probesLost  int    // health checks in a row
	window      uint32 // the last 32 outcomes, newest in the lowest bit; 1: a failure
	seen        int    // number of outcomes in window
}

// trial is the progress of a half-open node's return.
type trial struct {
	wins        int       // answered trial requests
	checks      int       // passed checks in a row
	checkedFrom time.Time // time of the first of these checks
}

// aside holds the facts of the last time that the node was set aside.
type aside struct {
	at    time.Time
	times int // times set aside with less than flapWithin of health in between
}

// check is the result of a health check.
type check uint8

const (
	checkWell    check = iota
	checkFailed        // no answer in time, or a bad one
	checkRefused       // no process listens
	// checkConfirmed is checkRefused after a request's connection has failed. A refused check and a
	// failed connection together open the breaker.
	checkConfirmed
)

// transition is a change of state. An empty why means no change.
type transition struct {
	from, to State
	why      string
}

// unlock unlocks b.mu. Then unlock reports the change of state made under the lock, if any.
func (b *breaker) unlock() {
	t := b.said
	b.said = transition{}
	b.mu.Unlock()
	if t.why != "" && b.changed != nil {
		b.changed(t.from, t.to, t.why)
	}
}

func (b *breaker) init(s State, changed func(from, to State, why string)) {
	b.state.Store(int32(s))
	b.clean.Store(true)
	b.changed = changed
}

func (b *breaker) eligible(now time.Time) (bool, string) {
	switch State(b.state.Load()) {
	case Healthy:
		return true, ""
	case HalfOpen:
		if b.permits.Load() > 0 || now.UnixNano() >= b.retryAt.Load() {
			return true, ""
		}
		return false, OnTrial + "; those that it may have are still out"
	case Open:
		if b.triesLive() && now.UnixNano() >= b.retryAt.Load() {
			return true, ""
		}
		return false, "breaker open: " + cmp.Or(openReasons[Outcome(b.blame.Load())], "health check fails")
	case Aside:
		return false, "set aside: it makes no progress"
	}
	return false, "has not answered yet"
}

// openReasons are the reasons of the outcomes that open a breaker. Any other outcome means that a
// health check has failed.
var openReasons = map[Outcome]string{
	ConnectError: "connections fail",
	Reset:        "connections break",
	ServerError:  "server errors",
	silent:       "it acknowledges no packets",
}

// triesLive tells whether only requests can try the node, because it passes its health checks and
// fails requests.
func (b *breaker) triesLive() bool { return Outcome(b.blame.Load()) == ServerError }

// admit says whether a request may go to the node. A request to a node on trial uses up a trial
// permit.
func (b *breaker) admit() bool {
	switch State(b.state.Load()) {
	case Healthy:
		return true
	case Open:
		return b.triesLive() && b.tryOpen(time.Now()) && b.takePermit(time.Now())
	case HalfOpen:
		return b.takePermit(time.Now())
	}
	return false
}

// tryOpen makes an open breaker half-open when its backoff is over.
func (b *breaker) tryOpen(now time.Time) bool {
	b.mu.Lock()
	defer b.unlock()
	if State(b.state.Load()) == Open && now.UnixNano() >= b.retryAt.Load() {
		b.halfOpen(now)
	}
	return State(b.state.Load()) == HalfOpen
}

// report counts one outcome. report returns true if the outcome has set the node aside.
func (b *breaker) report(o Outcome) (aside bool) {
	now := time.Now()
	if o == OK {
		b.moved.Store(now.UnixNano())
		if State(b.state.Load()) == Healthy && b.clean.Load() {
			return false
		}
	}
	if o == Busy && State(b.state.Load()) != HalfOpen {
		return false
	}
	b.mu.Lock()
	defer b.unlock()
	opens := b.opens.Load()
	switch State(b.state.Load()) {
	case Healthy:
		b.countHealthy(o, now)
	case HalfOpen:
		b.countTrial(o, now)
	case Open:
		if o == OK {
			b.doubts.answer()
		}
	case Aside:
		if o == OK {
			b.halfOpen(now)
		}
	}
	return State(b.state.Load()) == Aside && b.opens.Load() != opens
}

func (b *breaker) countHealthy(o Outcome, now time.Time) {
	if o == Busy {
		return
	}
	f := &b.failures
	f.window <<= 1
	f.seen = min(f.seen+1, 32)
	if o == OK {
		f.consecutive, f.refused = 0, 0
		b.doubts.answer()
		b.clean.Store(f.window == 0 && b.doubts.window == 0)
		return
	}
	b.clean.Store(false)
	f.window |= 1
	f.consecutive++
	if o == ConnectError {
		f.refused++
	}
	failed := bits.OnesCount32(f.window)
	if f.refused >= connectErrorsToOpen || f.consecutive >= failuresToOpen ||
		f.seen >= windowMin && 2*failed >= f.seen {
		b.fail(o, now)
	}
}

// fail opens the breaker. When requests hang, fail sets the node aside instead, because then only
// an answered completion proves that the node computes.
func (b *breaker) fail(o Outcome, now time.Time) {
	if o == Timeout {
		b.putAside(now, "first bytes do not come")
		return
	}
	from := State(b.state.Load())
	b.flapping = from == HalfOpen || now.Sub(b.closedAt) < flapWithin
	if b.flapping && b.backoff > 0 {
		b.backoff = min(2*b.backoff, backoffLast)
	} else {
		b.backoff = backoffFirst
	}
	b.unwell = false
	b.blame.Store(uint32(o))
	b.retryAt.Store(now.Add(b.backoff).UnixNano())
	b.move(Open, o.String())
	b.opens.Add(1)
}

func (b *breaker) putAside(now time.Time, why string) {
	if now.Sub(b.closedAt) > flapWithin && State(b.state.Load()) == Healthy {
		b.aside.times = 0
	}
	b.aside.times++
	b.aside.at = now
	b.unwell = false
	b.proven.Store(false)
	b.blame.Store(uint32(Timeout))
	b.move(Aside, why)
	b.opens.Add(1)
}

func (b *breaker) close(now time.Time, why string) {
	b.failures, b.doubts = failures{}, doubts{}
	b.clean.Store(true)
	b.closedAt = now
	b.move(Healthy, why)
}

func (b *breaker) move(to State, why string) {
	if from := State(b.state.Swap(int32(to))); from != to {
		b.said = transition{from, to, why}
	}
}

func (b *breaker) setAside(reason string) {
	b.mu.Lock()
	defer b.unlock()
	if s := State(b.state.Load()); s == Healthy || s == HalfOpen {
		b.putAside(time.Now(), reason)
	}
}

func (b *breaker) progressed() {
	b.moved.Store(time.Now().UnixNano())
	if State(b.state.Load()) != Aside {
		return
	}
	b.mu.Lock()
	defer b.unlock()
	if State(b.state.Load()) == Aside {
		b.halfOpen(time.Now())
	}
}

// checked counts the result of a health check. last is the time of the previous check.
func (b *breaker) checked(c check, last time.Time) {
	now := time.Now()
	b.mu.Lock()
	defer b.unlock()
	if c == checkWell {
		b.checkedWell(now)
		return
	}
	s := State(b.state.Load())
	if s != Healthy && s != HalfOpen {
		b.unwell = true
		return
	}
	if c == checkFailed && b.moved.Load() >= last.UnixNano() {
		return // the node is busy: it has answered requests since the last check
	}
	b.failures.probesLost++
	b.trial.checks = 0
	if c != checkFailed {
		b.failures.refused++
	}
	if b.failures.refused >= connectErrorsToOpen || c == checkConfirmed {
		b.fail(ConnectError, now)
	} else if b.failures.probesLost >= 2 {
		b.fail(probeFailure, now)
	}
}

func (b *breaker) checkedWell(now time.Time) {
	b.failures.probesLost, b.failures.refused = 0, 0
	switch State(b.state.Load()) {
	case Unproven:
		b.close(now, "health check is well")
	case HalfOpen:
		if b.seenByChecks() {
			b.trialChecked(now, checkedFor, "health checks are well")
		}
	case Open:
		if b.seenByChecks() && (!b.flapping || now.UnixNano() >= b.retryAt.Load()) {
			b.halfOpen(now)
		}
	}
}
