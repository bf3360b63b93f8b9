package health

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cognitora/dataplane/internal/peerevents"
	"github.com/cognitora/dataplane/internal/relay"
)

// Events of the kernel are no evidence of their own: they may be of other processes' connections,
// which may go other ways. They are the occasion to look at once at what there is to see: at the
// node's connections after a retransmission timeout, at its health after a connection that failed
// or was closed. What follows is as after any look.

const (
	toldQueue = 256 // events that wait to be looked into
	// closedQuiet is how long after an answer to a check closed connections mean nothing: there are
	// servers that close after each answer.
	closedQuiet = 100 * time.Millisecond
	// closedEvery is the time between two checks because of closed connections.
	closedEvery = time.Second
	// leastRTO is how long, at least, Linux waits for an acknowledgement.
	leastRTO = 200 * time.Millisecond
)

// Tell takes an event of a connection of this host. It does not block: what there
// is no room for is counted, and left to the next look.
func (w *Watch) Tell(e peerevents.Event) {
	select {
	case w.told <- told{e, time.Now()}:
	default:
		w.untold.Add(1)
	}
}

// told is an event, and when it came.
type told struct {
	peerevents.Event
	at time.Time
}

// now is the event as it is at that time.
func (t *told) now(now time.Time) peerevents.Event {
	e := t.Event
	e.Age += now.Sub(t.at)
	return e
}

// Untold counts the events that there was no room for.
func (w *Watch) Untold() uint64 { return w.untold.Load() }

// news is the events of one peer.
type news struct {
	timeouts  []peerevents.Event // at most looksMax
	recovered []peerevents.Event // a packet came in after timeouts; likewise
	failed    bool               // a connection was refused, reset or given up
	closed    bool               // a connection was closed
}

func (n *news) add(e peerevents.Event) {
	switch e.Kind {
	case peerevents.Timeout:
		if len(n.timeouts) < looksMax {
			n.timeouts = append(n.timeouts, e)
		}
	case peerevents.Recovered:
		if len(n.recovered) < looksMax {
			n.recovered = append(n.recovered, e)
		}
	case peerevents.Closed:
		n.closed = true
	default:
		n.failed = true
	}
}

// heed looks into an event and those that wait behind it.
func (w *Watch) heed(looker *relay.Looker, first told) {
	all := map[netip.AddrPort]*news{}
	add := func(t *told) {
		e := t.now(time.Now())
		if w.lag != nil {
			w.lag(e.Age)
		}
		if all[e.Peer] == nil {
			all[e.Peer] = &news{}
		}
		all[e.Peer].add(e)
	}
	add(&first)
	for range min(len(w.told), toldQueue) {
		next := <-w.told
		add(&next)
	}
	for n := range w.nodes {
		at, ok := n.pool.Peer()
		if !ok {
			continue
		}
		if what := all[at]; what != nil {
			w.heedNode(looker, n, what)
		}
	}
}

func (w *Watch) heedNode(looker *relay.Looker, n *Node, what *news) {
	now := time.Now()
	if len(what.timeouts) > 0 || len(what.recovered) > 0 && n.Suspect() {
		ports := make([]uint16, 0, 2*looksMax)
		var own []relay.Link
		for _, e := range slices.Concat(what.timeouts, what.recovered) {
			ports = append(ports, e.LocalPort)
			if n.checker.uses(e.LocalPort) {
				own = append(own, ofCheck(e))
			}
		}
		links := looker.Look(n.pool, looksMax, ports...)
		w.looks.Add(uint64(len(links)))
		n.consider(append(links, own...), byEvent, time.Now())
	}
	if s := n.State(); s != Healthy && s != HalfOpen {
		return // it is checked often enough
	}
	switch {
	case what.failed:
		n.checker.doubtAnew()
	case what.closed && n.suspicion.silence(now) > closedQuiet && now.Sub(n.broken.closedAt) > closedEvery &&
		n.pool.Prune() == 0:
		n.broken.closedAt = now
		n.checker.doubtAnew()
	}
}

// doubtAnew is doubt, over a new connection: the one that there is may be the one that was closed.
func (c *checker) doubtAnew() {
	c.line.Load().http.CloseIdleConnections()
	c.doubt()
}

// uses tells whether the connection for checks that was made last has that local port.
func (c *checker) uses(port uint16) bool { return port != 0 && c.port.Load() == uint32(port) }

// ofCheck is what a timeout of a check's connection means, or its end. Each one doubles the time
// that the kernel waits for the next.
func ofCheck(e peerevents.Event) relay.Link {
	if e.Kind == peerevents.Recovered {
		return relay.Link{Heard: e.Age}
	}
	lost := max(int(e.Timeouts), 1)
	return relay.Link{Lost: lost, Since: e.Age + leastRTO<<min(lost-1, 10), Heard: relay.Never}
}
