package health

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
)

// suspectProbe is how long a suspect node may take to answer its health check.
const suspectProbe = time.Second

// suspicion is by packets without acknowledgement. A first retransmission timeout of one of its
// connections makes it suspect; a second one, or a health check without an answer, opens its
// breaker; anything that comes from it meanwhile clears it.
type suspicion struct {
	since   atomic.Int64  // Unix ns; 0: it is not suspect
	times   atomic.Uint64 // how often it has become so
	cut     atomic.Uint64 // requests that were ended with it
	heard   atomic.Int64  // when it last answered a check (Unix ns)
	by      atomic.Uint32 // the evidence of the last time: a noticed
	changed func(why string)

	mu sync.Mutex // makes a change of since and the news of it one step
}

// Suspect says whether packets to the node go unacknowledged, so that it is to be picked only where
// most of a model's nodes are suspect.
func (n *Node) Suspect() bool { return n.suspicion.since.Load() != 0 }

// Suspected counts how often the node has become suspect, and the requests that were cut because it
// acknowledged nothing.
func (n *Node) Suspected() (times, cut uint64) {
	return n.suspicion.times.Load(), n.suspicion.cut.Load()
}

// SuspectReason is why a suspect node gets no requests.
const SuspectReason = "suspect: packets to it are not acknowledged; it gets requests only while most nodes of the " +
	"model are suspect"

// noticed is the occasion of a look at a node's connections.
type noticed uint32

const (
	byLook  noticed = iota // it was time for one
	byEvent                // the kernel told of a retransmission timeout
)

func (n noticed) String() string {
	return [...]string{"a packet to it was not acknowledged in time",
		"the kernel has told that a packet to it was not acknowledged in time"}[n]
}

// Suspicion is why the node is suspect, and since when; an empty why: it is not.
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

// clear ends the suspicion if it began before at, when the node was heard of.
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

// drop ends the suspicion without a word: the breaker has told more.
func (s *suspicion) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since.Store(0)
}

// answered notes an answer to a check, whatever it says.
func (s *suspicion) answered(now time.Time) {
	s.heard.Store(now.UnixNano())
	s.clear(now)
}

// silence is how long ago a check was answered.
func (s *suspicion) silence(now time.Time) time.Duration {
	return now.Sub(time.Unix(0, s.heard.Load()))
}

// unanswered is told that a check which began at began has failed. If the node was suspect all the
// while, it is out.
func (n *Node) unanswered(began time.Time) {
	if since := n.suspicion.since.Load(); since != 0 && since <= began.UnixNano() {
		n.eject()
	}
}

// eject takes the node out of service, and closes the connections that wait for requests: nothing
// on their way is known to arrive.
func (n *Node) eject() {
	if n.breaker.silent() {
		n.pool.DropIdle()
	}
	n.suspicion.drop()
}

// silent opens the breaker of a node that could get requests. It tells whether it did.
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

// weigh says how many packets in a row the node has left unanswered: on one connection, and since
// then on none of the others anything came. heard is how long ago the node was last heard of
// otherwise; last takes the connections into account too.
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

// consider draws the consequences of a look at the node's connections.
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

// suspicionMoved is called when the node has become suspect, or, without why, is so no more.
func (c *checker) suspicionMoved(why string) {
	if why == "" {
		c.checks.Logger.Info("node is not suspect any more", "node", c.who.ID)
		return
	}
	c.checks.Logger.Warn("node is suspect", "node", c.who.ID, "why", why)
	c.doubt()
}
