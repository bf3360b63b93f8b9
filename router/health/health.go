// Package health follows how well each node is and takes unwell nodes out of service. A breaker
// counts the outcomes of requests and checks. Suspicion follows unacknowledged packets. Package
// patience judges whether an answer takes too long. router/fleet knows the nodes and their models;
// health does not import it.
package health

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
)

// Node is the health of one node. Call Init before all other methods, which are safe for concurrent
// use. State, Eligible and Suspect take no lock. Admit and Report(OK) take no lock on a healthy
// node without recent failures.
type Node struct {
	suspicion suspicion // its last field and the breaker's first one are what a pick reads
	breaker   breaker
	broken    broken
	checker   *checker
	pool      *relay.Pool
	computed  atomic.Pointer[time.Time] // see Computed; nil: never
}

// Subject is the fleet's view of the node. Any goroutine may call Moved and InFlight. Only the
// goroutine of Node.Run calls the other methods.
type Subject interface {
	// Moved is called without a lock after each change of the breaker's state.
	Moved(from, to State, why string)
	// InFlight returns the number of this router's requests on the node.
	InFlight() int32

	// Model returns a model for completion checks, by the engine's name. known is false without
	// such a model.
	Model() (name string, known bool)
	// Renewed is called when checks begin to use new connections, perhaps with another key.
	Renewed()
	// Answers is called when the node's /health passes. An error of Answers fails the check.
	Answers(ctx context.Context) error
	// Checked is called with the result of each check, before the breaker hears of it. restarted
	// says that the previous check was refused.
	Checked(ctx context.Context, well, restarted bool)
	// Sample reads the node's load if that is due.
	Sample(ctx context.Context)
	// Pause returns the time until Sample may be due, limit at most.
	Pause(limit time.Duration) time.Duration
}

// Who identifies a node and connects its health to the fleet.
type Who struct {
	ID, Address string // for the log
	Pool        *relay.Pool
	Subject     Subject
}

// Init makes n the health of a node in state initial. Init is called once.
func (n *Node) Init(c *Checks, who Who, initial State) {
	n.pool = who.Pool
	n.checker = newChecker(c, n, who)
	n.suspicion.changed = n.checker.suspicionMoved
	n.breaker.init(initial, func(from, to State, why string) {
		n.checker.kick()
		who.Subject.Moved(from, to, why)
	})
}

// Run checks the node until ctx ends. Run is called once.
func (n *Node) Run(ctx context.Context) { n.checker.run(ctx) }

// Retarget makes further checks use the target of the node's pool. The next check comes soon.
func (n *Node) Retarget() { n.checker.retarget(n.pool.Target()) }

// CheckSoon asks for a check before its time.
func (n *Node) CheckSoon() { n.checker.doubt() }

// Get reads a page of the node over the connection for checks.
func (n *Node) Get(ctx context.Context, path string) (status int, page []byte, err error) {
	return n.checker.get(ctx, path)
}

// State returns the state of the node's breaker.
func (n *Node) State() State { return State(n.breaker.state.Load()) }

// Well says whether the node is healthy and not suspect.
func (n *Node) Well() bool { return n.State() == Healthy && !n.Suspect() }

// Opens counts how often the breaker has opened or the node was set aside.
func (n *Node) Opens() uint64 { return n.breaker.opens.Load() }

// Eligible says whether the node is well enough to be picked now, or why not. Eligible does not
// allocate.
func (n *Node) Eligible(now time.Time) (ok bool, reason string) { return n.breaker.eligible(now) }

// Admit says whether a request may go to the node. For a node that was out of service Admit needs a
// free trial permit and uses it up.
func (n *Node) Admit() bool { return n.breaker.admit() }

// Report counts the outcome of a request. A 4xx or 501 is OK, because it says nothing against the
// node. Report a 5xx only once the node is known to be at fault; use ReportDoubt until the fault is
// known. A failed connection causes a check at once, because one request alone cannot tell whether
// the node is down. Report returns true if it has set the node aside.
func (n *Node) Report(o Outcome) (aside bool) {
	aside = n.breaker.report(o)
	if o == ConnectError || o == Reset {
		n.broken.note(o, time.Now())
		n.checker.doubt()
	}
	return aside
}

// SetAside takes the node out of service because it makes no progress although its peers do. After
// NoteProgress, or after an answered completion check of one token, trial requests bring the node
// back.
func (n *Node) SetAside(reason string) { n.breaker.setAside(reason) }

// NoteProgress notes that bytes of a response came from the node.
func (n *Node) NoteProgress() { n.breaker.progressed() }

// Computed returns the time at which the node last computed the token of a completion check.
// Computed returns the zero time if the node never did.
func (n *Node) Computed() time.Time {
	if at := n.computed.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// Unanswered returns how long the node's checks have failed without a pause. Unanswered returns 0
// if the last check passed.
func (n *Node) Unanswered(now time.Time) time.Duration {
	since := n.checker.failing.Load()
	if since == 0 {
		return 0
	}
	return max(now.Sub(time.Unix(0, since)), 0)
}

// LastError returns the error of the last check, or "" if it passed.
func (n *Node) LastError() string { return n.checker.lastError() }

// CheckPort returns the local port of the latest connection for checks, or 0 if there was none.
func (n *Node) CheckPort() uint16 { return uint16(n.checker.port.Load()) }
