package health

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
)

// suspectProbe is the time limit of a suspect node's health check.
const suspectProbe = time.Second

// suspicion follows unacknowledged packets. The first retransmission timeout of a connection makes
// the node suspect. A second one, or an unanswered health check, opens its breaker. Anything
// received from the node in between clears the suspicion.
type suspicion struct {
	times   atomic.Uint64 // how often the node became suspect
	cut     atomic.Uint64 // requests that were ended with the node
	heard   atomic.Int64  // when the node last answered a check (Unix ns)
	by      atomic.Uint32 // the last evidence: a noticed
	changed func(why string)

	mu    sync.Mutex   // makes a change of since and its report one step
	since atomic.Int64 // Unix ns; 0: not suspect
}

// Suspect says whether packets to the node go unacknowledged. A suspect node is picked only if most
// of a model's nodes are suspect.
func (n *Node) Suspect() bool { return n.suspicion.since.Load() != 0 }

// Suspected returns how often the node became suspect, and how many of its requests were cut for
// it.
func (n *Node) Suspected() (times, cut uint64) {
	return n.suspicion.times.Load(), n.suspicion.cut.Load()
}

// SuspectReason is the reason why a suspect node gets no requests.
const SuspectReason = "suspect: packets to it are not acknowledged; it gets requests only while most nodes of the " +
	"model are suspect"

// noticed is the reason for a look at a node's connections.
type noticed uint32

const (
	byLook  noticed = iota // a look was due
	byEvent                // the kernel reported a retransmission timeout
)

func (n noticed) String() string {
	return [...]string{"a packet to it was not acknowledged in time",
		"the kernel has told that a packet to it was not acknowledged in time"}[n]
}

// Suspicion returns why the node is suspect, and since when. why is empty for a node that is not
// suspect.
func (n *Node) Suspicion() (why string, since time.Time) {
	at := n.suspicion.since.Load()
	if at == 0 {
		return "", since
	}
	return noticed(n.suspicion.by.Load()).String(), time.Unix(0, at)
}

func (s *suspicion) suspect(now time.Time, by noticed) {
	s.mu.Lock()
	fresh := s.since.Load() == 0
	if fresh {
		s.by.Store(uint32(by))
		s.since.Store(now.UnixNano())
	}
	s.mu.Unlock()
	if fresh {
		s.times.Add(1)
		s.changed(by.String())
	}
}

// clear ends the suspicion if it began before at, when a sign of life came from the node.
func (s *suspicion) clear(at time.Time) {
	s.mu.Lock()
	since := s.since.Load()
	cleared := since != 0 && since <= at.UnixNano()
	if cleared {
		s.since.Store(0)
	}
	s.mu.Unlock()
	if cleared {
		s.changed("")
	}
}

// drop ends the suspicion without a report, because the breaker has reported more.
func (s *suspicion) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since.Store(0)
}

// answered notes an answer to a check, of any content.
func (s *suspicion) answered(now time.Time) {
	s.heard.Store(now.UnixNano())
	s.clear(now)
}

// silence returns the time since a check was answered.
func (s *suspicion) silence(now time.Time) time.Duration {
	return now.Sub(time.Unix(0, s.heard.Load()))
}

// unanswered counts a failed check that began at began. unanswered ejects the node if it was
// suspect during the whole check.
func (n *Node) unanswered(began time.Time) {
	if since := n.suspicion.since.Load(); since != 0 && since <= began.UnixNano() {
		n.eject()
	}
}

// eject takes the node out of service and closes its connections for requests, because packets on
// them do not arrive.
func (n *Node) eject() {
	if n.breaker.silent() {
		n.pool.DropIdle()
	}
	n.suspicion.drop()
}

// silent opens the breaker of a node in service. silent returns true if it has opened the breaker.
func (b *breaker) silent() bool {
	b.mu.Lock()
	defer b.unlock()
	switch s := State(b.state.Load()); {
	case s == Healthy, s == HalfOpen, s == Open && b.triesLive():
		b.fail(silent, time.Now())
		return true
	}
	return false
}

// weigh returns how many packets in a row the node has left unanswered. It counts the packets of
// one connection, unless another connection has received something since. heard is the time since
// the last answered check; last is the time since the last sign of life on any connection.
func weigh(links []relay.Link, heard time.Duration) (lost int, last time.Duration) {
	for i := range links {
		heard = min(heard, links[i].Heard)
	}
	for i := range links {
		if l := &links[i]; l.Since <= heard {
			lost = max(lost, l.Lost)
		}
	}
	return lost, heard
}

// consider acts on a look at the node's connections.
func (n *Node) consider(links []relay.Link, by noticed, now time.Time) {
	lost, heard := weigh(links, n.suspicion.silence(now))
	takes := n.State() == Healthy || n.State() == HalfOpen
	switch {
	case lost >= 2:
		n.eject()
		for i := range links {
			if l := &links[i]; l.Lost >= 2 && l.Since <= heard && l.Cut() {
				n.suspicion.cut.Add(1)
			}
		}
	case lost == 1 && takes:
		n.suspicion.suspect(now, by)
	case lost == 0 && n.Suspect():
		n.suspicion.clear(now.Add(-heard))
	}
}

// suspicionMoved is called when the node has become suspect. An empty why means that it is no
// longer suspect.
func (c *checker) suspicionMoved(why string) {
	if why == "" {
		c.checks.Logger.Info("node is not suspect any more", "node", c.who.ID)
		return
	}
	c.checks.Logger.Warn("node is suspect", "node", c.who.ID, "why", why)
	c.doubt()
}
