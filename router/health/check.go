package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
)

// Bounds of what checks read.
const (
	maxProbeBody      = 4 << 20  // model lists and metrics; a bounded number is read at a time
	readsAtOnce       = 32       // answers that are read; nodes that do not answer hold nothing but a connection each
	maxSmallBody      = 16 << 10 // of other answers: only their status counts, and a longer one costs its connection
	completionTimeout = 8 * time.Second
	completionsAtOnce = 4
	completionEvery   = time.Second
)

// Options is how the nodes of a fleet are checked. Intervals and timeout are not zero.
type Options struct {
	Interval     time.Duration // between two checks of a healthy node
	IntervalDown time.Duration // of any other
	Timeout      time.Duration // bound of one check
	Dial         func(ctx context.Context, network, address string) (net.Conn, error)
	Logger       *slog.Logger
}

// Checks is what the checks of all nodes share.
type Checks struct {
	Options
	reads chan struct{} // one token per answer to a check that is read at a time
}

// NewChecks returns the checks of one fleet. A nil Dial is a net.Dialer's.
func NewChecks(o Options) *Checks {
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	return &Checks{Options: o, reads: make(chan struct{}, readsAtOnce)}
}

// checker asks one node how it is. It has connections of its own, so that a check tells whether the
// node accepts new ones.
type checker struct {
	checks  *Checks
	node    *Node
	who     Who
	line    atomic.Pointer[line]
	wake    chan struct{}
	failed  atomic.Pointer[string] // what the last check failed with
	failing atomic.Int64           // since when checks have failed without a pause (Unix ns); 0: the last one has not
	// changed: the line is another, so a healthy node is checked before its time.
	changed atomic.Bool
	// doubted: a request's connection has failed, and so is this.
	doubted atomic.Bool
	port    atomic.Uint32 // local, of the connection that was made last

	// Owned by run.
	checkedAt  time.Time
	hurried    int // checks that were to be at once, since there was none for long
	wasRefused bool
	trials     sync.WaitGroup
	trialsOut  atomic.Int32
	trialAt    time.Time
	complained complaint
}

func newChecker(all *Checks, n *Node, who Who) *checker {
	c := &checker{checks: all, node: n, who: who, wake: make(chan struct{}, 1)}
	c.line.Store(c.lineTo(n.pool.Target()))
	return c
}

// retarget makes further checks go over another line, the next one soon.
func (c *checker) retarget(t relay.Target) {
	c.line.Swap(c.lineTo(t)).http.CloseIdleConnections()
	c.changed.Store(true)
	c.kick()
}

// doubt makes the node be checked at once, eight times in an interval for unhealthy nodes at most.
func (c *checker) doubt() {
	c.doubted.Store(true)
	c.kick()
}

// kick makes the checker look at once, no more often than haste allows.
func (c *checker) kick() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *checker) lastError() string {
	if s := c.failed.Load(); s != nil {
		return *s
	}
	return ""
}

// run checks the node until ctx ends.
func (c *checker) run(ctx context.Context) {
	defer func() { c.line.Load().http.CloseIdleConnections() }()
	defer c.trials.Wait()
	for {
		c.round(ctx)
		if !c.rest(ctx) {
			return
		}
	}
}

// rest waits until something is due. The wait varies by a tenth, so that nodes do not fall into
// step.
func (c *checker) rest(ctx context.Context) bool {
	wait := c.checks.IntervalDown
	if c.node.State() == Healthy && c.lastError() == "" && !c.node.Suspect() {
		wait = c.who.Subject.Pause(c.checks.Interval)
	}
	timer := time.NewTimer(wait - wait/10 + rand.N(wait/5+1))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	case <-c.wake:
	}
	return pause(ctx, c.haste(time.Since(c.checkedAt)))
}

// haste is how long to wait with a check that is to be at once, since after the one before. The
// first few follow each other quickly: the one before may have met a server in the middle of its
// end, which has reset it, where the next one is refused.
func (c *checker) haste(since time.Duration) time.Duration {
	if since > c.checks.IntervalDown {
		c.hurried = 0
	}
	least := c.checks.IntervalDown / 4 >> max(5-c.hurried, 0)
	c.hurried++
	return least - since
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// round does what is due.
func (c *checker) round(ctx context.Context) {
	c.checkHealth(ctx)
	if c.node.State() != Unproven && c.lastError() == "" {
		c.who.Subject.Sample(ctx)
	}
	if c.node.State() != Healthy && c.node.breaker.wantsCompletion(time.Now()) {
		c.tryCompletion(ctx)
	}
}

// checkHealth asks /health where that is due, and its subject before the node is called well.
func (c *checker) checkHealth(ctx context.Context) {
	now, last := time.Now(), c.checkedAt
	doubted := c.doubted.Swap(false)
	if c.changed.Swap(false) {
		c.who.Subject.Renewed()
	} else if !doubted && !c.node.Suspect() && c.node.State() == Healthy && c.lastError() == "" &&
		now.Sub(last) < c.checks.Interval*9/10 {
		return
	}
	c.checkedAt = now
	err := c.health(ctx)
	if err == nil {
		err = c.who.Subject.Answers(ctx)
	}
	if ctx.Err() != nil || relay.IsLocal(err) {
		return // says nothing of the node
	}
	result := resultOf(err, doubted)
	c.note(err)
	c.complain(err, now)
	restarted := err == nil && c.wasRefused
	c.wasRefused = result >= checkRefused
	c.who.Subject.Checked(ctx, err == nil, restarted)
	c.node.breaker.checked(result, last)
	if err != nil {
		c.node.unanswered(now)
	}
}

func (c *checker) note(err error) {
	if err == nil {
		c.failed.Store(nil)
		c.failing.Store(0)
		return
	}
	c.failing.CompareAndSwap(0, time.Now().UnixNano())
	text := err.Error()
	c.failed.Store(&text)
}

// health: a server that does not know /health is alive, one that says 5xx is not (llama.cpp says
// 503 while it loads).
func (c *checker) health(ctx context.Context) error {
	wait := c.checks.Timeout
	if c.node.Suspect() {
		wait = min(wait, suspectProbe)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	status, err := c.status(ctx, http.MethodGet, "/health", nil)
	if err != nil {
		return err
	}
	if status >= 500 && status != http.StatusNotImplemented {
		return fmt.Errorf("/health answers %d", status)
	}
	return nil
}

// tryCompletion asks a node of which only that can show that it is well for one token, next to
// earlier attempts that are still out: a request that hangs now may hang for ever, although a later
// one is answered.
func (c *checker) tryCompletion(ctx context.Context) {
	model, known := c.who.Subject.Model()
	now := time.Now()
	if !known || c.trialsOut.Load() >= completionsAtOnce || now.Sub(c.trialAt) < completionEvery {
		return
	}
	c.trialAt = now
	c.trialsOut.Add(1)
	c.trials.Go(func() {
		defer c.trialsOut.Add(-1)
		ctx, cancel := context.WithTimeout(ctx, completionTimeout)
		defer cancel()
		status, err := c.complete(ctx, model)
		if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.node.breaker.completed(completionOf(status, err), now, c.who.Subject.InFlight() > 0)
		}
	})
}

func completionOf(status int, err error) completion {
	switch {
	case err != nil || status >= 500:
		return incomplete
	case status >= 300:
		return declined
	}
	return computed
}

// complainEvery is how often at most the reason why one node has not answered yet makes a line,
// where it changes.
const complainEvery = time.Minute

// complaint is what has been said of a node that has never answered. Of others the breaker tells.
type complaint struct {
	failed int    // checks in a row
	why    string // said last
	at     time.Time
}

// complain says why a node has not answered yet: at the second failed check, and again when the
// reason is another.
func (c *checker) complain(err error, now time.Time) {
	said := &c.complained
	if err == nil || c.node.State() != Unproven {
		*said = complaint{}
		return
	}
	said.failed++
	why := reason(err)
	if said.failed < 2 || why == said.why || now.Sub(said.at) < complainEvery {
		return
	}
	said.why, said.at = why, now
	c.checks.Logger.Warn("node has not answered yet, so it takes no requests",
		"node", c.who.ID, "address", c.who.Address, "error", err)
}
