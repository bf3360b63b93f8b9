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

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/relay"
)

// These constants bound what checks read.
const (
	maxProbeBody      = 4 << 20  // model lists and metrics; readsAtOnce bounds their number
	readsAtOnce       = 32       // answers being read; a node that does not answer holds only a connection
	maxSmallBody      = 16 << 10 // any other answer; only the status counts, and a longer answer costs its connection
	completionTimeout = 8 * time.Second
	completionsAtOnce = 4
	completionEvery   = time.Second
)

// Options says how the nodes of a fleet are checked. Intervals and timeout must not be zero.
type Options struct {
	Interval     time.Duration // between two checks of a healthy node
	IntervalDown time.Duration // between two checks of a node that is not healthy
	Timeout      time.Duration // bound of one check
	Dial         func(ctx context.Context, network, address string) (net.Conn, error)
	Logger       *slog.Logger
}

// Checks is the state that the checks of all nodes share.
type Checks struct {
	Options
	reads chan struct{} // one token for each answer being read
}

// NewChecks returns the checks of one fleet. A nil Dial means net.Dialer.
func NewChecks(o Options) *Checks {
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	return &Checks{Options: o, reads: make(chan struct{}, readsAtOnce)}
}

// checker checks one node. checker has connections of its own, so a check shows whether the node
// accepts new connections.
type checker struct {
	checks  *Checks
	node    *Node
	who     Who
	line    atomic.Pointer[line]
	wake    chan struct{}
	failed  atomic.Pointer[string] // error of the last check
	failing atomic.Int64           // begin of the present run of failed checks (Unix ns); 0: the last check passed
	// changed says that the line is new. A healthy node is then checked before its time.
	changed atomic.Bool
	// doubted says that a request's connection has failed. The node is then checked before its
	// time.
	doubted atomic.Bool
	port    atomic.Uint32 // local port of the latest connection

	// The goroutine of run owns these fields.
	checkedAt  time.Time
	hurried    int // hurried checks since the last quiet time
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

// retarget makes further checks use another line. The next check comes soon.
func (c *checker) retarget(t relay.Target) {
	c.line.Swap(c.lineTo(t)).http.CloseIdleConnections()
	c.changed.Store(true)
	c.kick()
}

// doubt asks for a check at once. doubt causes at most eight checks in one interval for unhealthy
// nodes.
func (c *checker) doubt() {
	c.doubted.Store(true)
	c.kick()
}

// kick wakes the checker. haste limits how often.
func (c *checker) kick() { await.Wake(c.wake) }

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

// rest waits until a check or sample is due. The wait varies by a tenth, so that nodes do not fall
// into step.
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
	return await.For(ctx, c.haste(time.Since(c.checkedAt)))
}

// haste returns the wait before a hurried check, given the time since the last check. The first few
// hurried checks follow each other quickly: a check during a server's shutdown sees a reset, and
// only the next one is refused.
func (c *checker) haste(since time.Duration) time.Duration {
	if since > c.checks.IntervalDown {
		c.hurried = 0
	}
	least := c.checks.IntervalDown / 4 >> max(5-c.hurried, 0)
	c.hurried++
	return least - since
}

// round makes the checks and samples that are due.
func (c *checker) round(ctx context.Context) {
	c.checkHealth(ctx)
	if c.node.State() != Unproven && c.lastError() == "" {
		c.who.Subject.Sample(ctx)
	}
	if c.node.State() != Healthy && c.node.breaker.wantsCompletion(time.Now()) {
		c.tryCompletion(ctx)
	}
}

// checkHealth asks /health if that is due. Before checkHealth counts the node as healthy, it asks
// the subject as well.
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
		return // no evidence about the node
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

// health asks /health. A server without /health counts as alive. A server that answers 5xx does not
// count as alive. llama.cpp answers 503 while it loads its model.
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

// tryCompletion asks the node for one token, if only a completion can show that it is well.
// tryCompletion asks even while earlier attempts are out, because a hanging request may hang for
// ever although a later one is answered.
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
		result := completionOf(status, err)
		if result == computed {
			c.node.computed.Store(new(time.Now()))
		}
		if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.node.breaker.completed(result, now, c.who.Subject.InFlight() > 0)
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

// complainEvery is the shortest time between two log lines about one node that has never answered,
// when the reason changes.
const complainEvery = time.Minute

// complaint is the state of the log lines about a node that has never answered. The breaker logs
// for all other nodes.
type complaint struct {
	failed int    // checks in a row
	why    string // the last logged reason
	at     time.Time
}

// complain logs why a node has not answered yet. complain logs at the second failed check and when
// the reason changes.
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
