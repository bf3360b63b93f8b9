package fleet

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/peerevents"
)

// watched is a fleet of one healthy static node that is not checked by itself any more.
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

// TestEventsOfAnEnd: whatever the kernel tells of a connection's end, a node that is gone is out at
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
				return n.State() == Open
			})
		})
	}
}

// TestEventsOfALivingNode: they make it be checked, and no more; those of others nothing.
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
	if times, _ := n.Suspected(); times != 0 || n.State() != Healthy || n.Opens() != 0 {
		t.Errorf("suspect %d times, %v", times, n.State())
	}
}

// TestTimeoutsOfAnIdleNode: nothing is in flight, so the timeout of the check's own connection
// counts. An answer clears it; a second timeout is the end.
func TestTimeoutsOfAnIdleNode(t *testing.T) {
	t.Parallel()
	f, n, _ := watched(t)
	timeout := peerevents.Event{Kind: peerevents.Timeout, Peer: peerAt(t, n), Timeouts: 1}
	eventually(t, f, "suspect", func(*Snapshot) bool { // once the last answer is older than the packet that was lost
		timeout.LocalPort = uint16(n.probe.port.Load())
		f.Tell(timeout)
		times, _ := n.Suspected()
		return times > 0
	})
	eventually(t, f, "not suspect after a check", func(*Snapshot) bool { return !n.Suspect() })
	if n.State() != Healthy {
		t.Errorf("%v", n.State())
	}
	timeout.Timeouts = 2
	eventually(t, f, "out", func(*Snapshot) bool {
		timeout.LocalPort = uint16(n.probe.port.Load())
		f.Tell(timeout)
		return n.Opens() > 0
	})
}

// TestToldTooMuch: what there is no room for is counted, and nobody waits.
func TestToldTooMuch(t *testing.T) {
	f, err := New(fast())
	if err != nil {
		t.Fatal(err)
	}
	for range toldQueue + 5 {
		f.Tell(peerevents.Event{Kind: peerevents.Reset})
	}
	if f.Untold() != 5 {
		t.Errorf("%d", f.Untold())
	}
}

func TestPaths(t *testing.T) {
	t.Parallel()
	f, n, _ := watched(t)
	at := peerAt(t, n)
	if all := f.Peers(); len(all) != 1 || all[0] != at {
		t.Errorf("%v", all)
	}
	now, c := time.Now(), Counts{}
	take := func(after time.Duration, segments, retransmits, looks uint64) *Path {
		now = now.Add(after)
		c = Counts{RTT: 3 * time.Millisecond, RTTMin: time.Millisecond, Looks: looks, Segments: segments,
			Retransmits: retransmits}
		f.TakePaths(func(p netip.AddrPort) (Counts, bool) { return c, p == at }, now)
		return n.Path()
	}
	if p := take(0, 1000, 10, 1); !math.IsNaN(float64(p.Share)) || p.RTT != 3*time.Millisecond || !p.RTTAt.Equal(now) {
		t.Errorf("%+v", p)
	}
	first := now
	if p := take(time.Second, 1100, 11, 1); p.Share != 0.01 || !p.RTTAt.Equal(first) || p.Segments != 1100 {
		t.Errorf("%+v", p)
	}
	take(pathWindow, 1100, 11, 2)
	if p := take(pathWindow, 1300, 61, 2); p.Share != 0.25 {
		t.Errorf("of the last 10 to 20 s %v", p.Share)
	}
	if p := take(time.Second, 5, 0, 1); !math.IsNaN(float64(p.Share)) {
		t.Errorf("counts that have begun anew: %v", p.Share)
	}
	if v := n.View(now).Path; v == nil || *v.RTTMs != 3 || *v.RTTMinMs != 1 || v.Segments != 5 ||
		v.Retransmitted != nil {
		t.Errorf("%+v", v)
	}
	take(time.Second, 6, 5, 1)
	if p := take(time.Second, 50, 3, 1); !math.IsNaN(float64(p.Share)) {
		t.Errorf("counts that have begun anew, with more segments than before: %v", p.Share)
	}
	if p := take(time.Second, 51, 9, 1); p.Share != 1 {
		t.Errorf("counts that have begun anew between two reads, with more of both: %v", p.Share)
	}
	at = netip.MustParseAddrPort("192.0.2.1:1")
	if p := take(time.Second, 60, 9, 1); p != nil || n.View(now).Path != nil || known(n.Resent()) != nil {
		t.Errorf("nothing is known of it any more: %+v", p)
	}
	at = peerAt(t, n)
	if p := take(time.Second, 70, 9, 1); !math.IsNaN(float64(p.Share)) {
		t.Errorf("counts after a pause: %v", p.Share)
	}
	f.ForgetPaths()
	if n.Path() != nil || n.View(now).Path != nil {
		t.Error("still there")
	}
}

// TestRenew: nodes are asked over new connections.
func TestRenew(t *testing.T) {
	t.Parallel()
	f, n, _ := watched(t)
	before := n.probe.port.Load()
	f.Renew(t.Context())
	eventually(t, f, "another connection", func(*Snapshot) bool { return n.probe.port.Load() != before })
}
