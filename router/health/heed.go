package health

import (
	"net/netip"
	"slices"
	"time"

	"github.com/cognitora/dataplane/internal/peerevents"
	"github.com/cognitora/dataplane/internal/relay"
)

// Kernel events are hints, not evidence. They may come from other processes' connections, which may
// take other routes. A retransmission timeout triggers a look at the node's connections at once; a
// failed or closed connection triggers a health check. The result counts like that of any other
// look.

const (
	toldQueue = 256 // events that wait for a look
	// closedQuiet is the time after an answered check in which closed connections mean nothing.
	// Some servers close after each answer.
	closedQuiet = 100 * time.Millisecond
	// closedEvery is the shortest time between two checks for closed connections.
	closedEvery = time.Second
	// leastRTO is Linux's shortest wait for an acknowledgement.
	leastRTO = 200 * time.Millisecond
)

// Tell queues a kernel event about a connection of this host. Tell does not block. If the queue is
// full, Tell counts the event and drops it. The next look finds the cause.
func (w *Watch) Tell(e peerevents.Event) {
	select {
	case w.told <- told{e, time.Now()}:
	default:
		w.untold.Add(1)
	}
}

// told is an event with its time of arrival.
type told struct {
	peerevents.Event
	at time.Time
}

// now returns the event with its ages as of now.
func (t *told) now(now time.Time) peerevents.Event {
	e := t.Event
	e.Age += now.Sub(t.at)
	return e
}

// Untold counts the events dropped because the queue was full.
func (w *Watch) Untold() uint64 { return w.untold.Load() }

// news holds the events of one peer.
type news struct {
	timeouts  []peerevents.Event // at most looksMax
	recovered []peerevents.Event // events of a packet that came in after timeouts; at most looksMax
	failed    bool               // a connection was refused, reset or abandoned
	closed    bool               // a connection was closed by the node
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

// heed handles an event and those that wait behind it.
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
		return // checks come often enough
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

// doubtAnew is doubt over a new connection, because the existing one may be the closed one.
func (c *checker) doubtAnew() {
	c.line.Load().http.CloseIdleConnections()
	c.doubt()
}

// uses says whether the latest connection for checks has this local port.
func (c *checker) uses(port uint16) bool { return port != 0 && c.port.Load() == uint32(port) }

// ofCheck turns an event of a check's connection, a timeout or an end, into a Link. The kernel
// doubles its wait after each timeout.
func ofCheck(e peerevents.Event) relay.Link {
	if e.Kind == peerevents.Recovered {
		return relay.Link{Heard: e.Age}
	}
	lost := max(int(e.Timeouts), 1)
	return relay.Link{Lost: lost, Since: e.Age + leastRTO<<min(lost-1, 10), Heard: relay.Never}
}
