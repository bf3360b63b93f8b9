package fleet

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/peerevents"
	"github.com/cognitora/dataplane/router/health"
)

// watched is a fleet of one healthy static node whose regular checks are far apart.
func watched(t *testing.T) (f *Fleet, n *Node, eng *engine) {
	t.Helper()
	eng = newEngine(t, nil, "m")
	o := fast(Backend{URL: eng.URL, ID: "n"})
	o.ProbeInterval, o.Pool.Watch = time.Hour, true
	f = run(t, o)
	eventually(t, f, "healthy", serves("m", 1))
	return f, f.Load().Nodes[0], eng
}

func peerAt(t *testing.T, n *Node) netip.AddrPort {
	t.Helper()
	at, ok := n.Pool.Peer()
	if !ok {
		t.Fatal("its address is not known")
	}
	return at
}

// TestEventsOfAnEnd checks that each kernel event about a connection's end takes a dead node out at
// once, though no check was due.
func TestEventsOfAnEnd(t *testing.T) {
	t.Parallel()
	for _, kind := range []peerevents.Kind{peerevents.Closed, peerevents.Reset, peerevents.Refused,
		peerevents.Unanswered, peerevents.TimedOut} {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			f, n, eng := watched(t)
			eng.Close()
			eventually(t, f, "out", func(*Snapshot) bool {
				f.Tell(peerevents.Event{Kind: kind, Peer: peerAt(t, n)})
				return n.Health.State() == health.Open
			})
		})
	}
}

// TestEventsOfALivingNode checks that an event about a living node causes only a check. An event
// about another peer causes nothing.
func TestEventsOfALivingNode(t *testing.T) {
	t.Parallel()
	f, n, eng := watched(t)
	checks := eng.count("/health")
	eventually(t, f, "checked again", func(*Snapshot) bool {
		for kind := peerevents.Timeout; kind < peerevents.Kinds; kind++ {
			f.Tell(peerevents.Event{Kind: kind, Peer: peerAt(t, n), Timeouts: 3, LocalPort: 1})
			f.Tell(peerevents.Event{Kind: kind, Peer: netip.MustParseAddrPort("192.0.2.1:1"), Timeouts: 3})
		}
		return eng.count("/health") > checks+1
	})
	if times, _ := n.Health.Suspected(); times != 0 || n.Health.State() != health.Healthy || n.Health.Opens() != 0 {
		t.Errorf("suspect %d times, %v", times, n.Health.State())
	}
}

// TestTimeoutsOfAnIdleNode checks an idle node, for which the timeout of the check's own connection
// counts. An answer clears the suspicion; a second timeout ejects the node.
func TestTimeoutsOfAnIdleNode(t *testing.T) {
	t.Parallel()
	f, n, _ := watched(t)
	timeout := peerevents.Event{Kind: peerevents.Timeout, Peer: peerAt(t, n), Timeouts: 1}
	eventually(t, f, "suspect", func(*Snapshot) bool { // the last answer is now older than the lost packet
		timeout.LocalPort = n.Health.CheckPort()
		f.Tell(timeout)
		times, _ := n.Health.Suspected()
		return times > 0
	})
	eventually(t, f, "not suspect after a check", func(*Snapshot) bool { return !n.Health.Suspect() })
	if n.Health.State() != health.Healthy {
		t.Errorf("%v", n.Health.State())
	}
	timeout.Timeouts = 2
	eventually(t, f, "out", func(*Snapshot) bool {
		timeout.LocalPort = n.Health.CheckPort()
		f.Tell(timeout)
		return n.Health.Opens() > 0
	})
}
