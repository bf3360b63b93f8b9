// Package health says how well each node is, and takes unwell nodes out of service. A breaker
// counts how requests and checks fare, and suspicion follows packets without acknowledgement.
// Package patience below it tells when an answer takes too long. router/fleet knows which nodes
// there are and what they serve; health imports nothing of it.
package health

import (
	"context"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
)

// Node is the health of one node. Init comes before all other methods, which are safe for
// concurrent use. State, Eligible and Suspect take no lock, nor do Admit and Report(OK) on a
// healthy node without recent failures.
type Node struct {
	breaker   breaker
	suspicion suspicion
	broken    broken
	checker   *checker
	pool      *relay.Pool
}

// Subject is the node as its fleet knows it. Any goroutine may call Moved and InFlight, only that
// of Node.Run the other methods.
type Subject interface {
	// Moved is told of a change of the breaker's state, without a lock.
	Moved(from, to State, why string)
	// InFlight is the number of this router's requests on the node.
	InFlight() int32

	// Model is a model that a completion may ask for, by the engine's name; false: none is known.
	Model() (name string, known bool)
	// Renewed tells that checks go over new connections from now on, perhaps with another key.
	Renewed()
	// Answers is asked of a node whose /health is well: an error fails the check as well.
	Answers(ctx context.Context) error
	// Checked is told how each check has ended, before the breaker is. restarted: nobody listened
	// at the check before.
	Checked(ctx context.Context, well, restarted bool)
	// Sample reads what the node says of its load where that is due.
	Sample(ctx context.Context)
	// Pause is how long until Sample may be due, limit at most.
	Pause(limit time.Duration) time.Duration
}

// Who names a node, and has what its health needs of it.
type Who struct {
	ID, Address string // for the log
	Pool        *relay.Pool
	Subject     Subject
}

// Init makes n the health of a node that is in the initial state. It is called once.
func (n *Node) Init(c *Checks, who Who, initial State) {
	n.pool = who.Pool
	n.checker = newChecker(c, n, who)
	n.suspicion.changed = n.checker.suspicionMoved
	n.breaker.init(initial, func(from, to State, why string) {
		n.checker.kick()
		who.Subject.Moved(from, to, why)
	})
}

// Run checks the node until ctx ends. It is called once.
func (n *Node) Run(ctx context.Context) { n.checker.run(ctx) }

// Retarget makes further checks go where the pool's connections now go, the next one soon.
func (n *Node) Retarget() { n.checker.retarget(n.pool.Target()) }

// Get reads a page of the node over the connection for checks.
func (n *Node) Get(ctx context.Context, path string) (status int, page []byte, err error) {
	return n.checker.get(ctx, path)
}

// State is the state of the node's breaker.
func (n *Node) State() State { return State(n.breaker.state.Load()) }

// Opens counts how often the breaker has opened or the node was set aside.
func (n *Node) Opens() uint64 { return n.breaker.opens.Load() }

// Eligible says whether the node is well enough to be picked now, and if not, why. It does not
// allocate.
func (n *Node) Eligible(now time.Time) (ok bool, reason string) { return n.breaker.eligible(now) }

// Admit lets a request go to the node. It takes a trial permit of one that was out of service, and
// tells whether there was one.
func (n *Node) Admit() bool { return n.breaker.admit() }

// Report tells how a request fared on the node. A 4xx or 501 is an OK: it says nothing against the
// node. Of a 5xx the caller has to know that the node is to blame; until then there is ReportDoubt.
// A connection that fails makes the node be checked at once: it may be down, and one request alone
// does not tell. It returns whether the node has been set aside for it.
func (n *Node) Report(o Outcome) (aside bool) {
	aside = n.breaker.report(o)
	if o == ConnectError || o == Reset {
		n.broken.note(o, time.Now())
		n.checker.doubt()
	}
	return aside
}

// SetAside takes the node out of the pick because it makes no progress although its peers do. It
// comes back, by trial requests, once NoteProgress is called or a one-token completion sent by its
// checks is answered.
func (n *Node) SetAside(reason string) { n.breaker.setAside(reason) }

// NoteProgress says that bytes of some response came from the node.
func (n *Node) NoteProgress() { n.breaker.progressed() }

// Unanswered is how long the node's checks have failed without a pause; 0 if the last one has not.
func (n *Node) Unanswered(now time.Time) time.Duration {
	since := n.checker.failing.Load()
	if since == 0 {
		return 0
	}
	return max(now.Sub(time.Unix(0, since)), 0)
}

// LastError is why the last check has failed; empty: it has not.
func (n *Node) LastError() string { return n.checker.lastError() }

// CheckPort is the local port of the connection for checks that was made last; 0: none was.
func (n *Node) CheckPort() uint16 { return uint16(n.checker.port.Load()) }
