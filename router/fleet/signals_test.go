package fleet

import (
	"context"
	"fmt"
	"math"
	"net"
	"testing"
	"time"

	"github.com/cognitora/dataplane/agent/push"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/policy"
)

// TestSignals: while the agent's stream runs it counts, then the last heartbeat does, and once that is too old nothing is known. None of that is zero.
func TestSignals(t *testing.T) {
	e := newEtcdFleet(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := push.New(push.Options{})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	reading := push.Reading{Node: "n", At: time.Now(), SMPct: cluster.Known(80), SM: time.Now(), RunqUsP99: cluster.Known(1500), EngineWaitPct: cluster.Known(25), Kernel: time.Now(), InFlight: cluster.Known(3), Queue: cluster.Known(2)}
	s.Offer([]push.Reading{reading})
	at := newEngine(t, nil).URL
	e.put(cluster.NodesPrefix+"n", fmt.Sprintf(`{"node_id":"n","address":%q,"push_address":%q,"models":["m"],"ready":true,"stamp":1,"max_concurrent":8,"sm_pct":40,"sm_age_ms":2000,"power_watts":300}`, at, l.Addr().String()))
	var n *Node
	eventually(t, e.Fleet, "the stream", func(snap *Snapshot) bool { n = snap.Node("n"); return n != nil && n.Load().Pushed })
	// What the stream does not tell is not known, whatever the heartbeat has said.
	if l := n.Load(); math.Abs(float64(l.SM)-0.8) > 1e-6 || math.Abs(float64(l.RunDelay)-0.0015) > 1e-9 || known(l.Watts) != nil || l.Waiting != 2 || l.Others != 3 || l.EngineBusy != 1 || l.SMAt.IsZero() || known(l.CPU) != nil {
		t.Errorf("by the stream: %+v", l)
	}
	if v := n.View(time.Now()); v.Signals.From != "stream" || v.Signals.EngineWait == nil || *v.Signals.EngineWait != 0.25 || v.Signals.KernelAgeMs == nil || v.Signals.WattsAgeMs != nil {
		t.Errorf("%+v", v.Signals)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	eventually(t, e.Fleet, "the heartbeat again", func(*Snapshot) bool { return !n.Load().Pushed })
	if l := n.Load(); math.Abs(float64(l.SM)-0.4) > 1e-6 || l.Watts != 300 || l.Waiting != 0 || known(l.RunDelay) != nil || known(l.EngineWait) != nil || l.At.Sub(l.SMAt) != 2*time.Second {
		t.Errorf("by the heartbeat: %+v", l)
	}
	if v := n.View(time.Now()); v.Signals.From != "heartbeat" {
		t.Errorf("%+v", v.Signals)
	}
}

// TestOldIsUnknown: a sample that is older than may be is not known any more, each by its own age.
func TestOldIsUnknown(t *testing.T) {
	now := time.Now()
	h := &cluster.NodeHealth{SMPct: cluster.Known(40), SMAgeMs: cluster.Known(2000), PowerWatts: cluster.Known(300), InFlight: cluster.Known(3), QueueDepth: cluster.Known(2)}
	l := loadOfHealth(h, 0, now)
	l.forget(now.Add(trustFor - time.Second)) // the sample of SM is two seconds older than the heartbeat
	if known(l.SM) != nil || l.Watts != 300 || l.Waiting != 2 {
		t.Errorf("later: %+v", l)
	}
	l.forget(now.Add(trustFor + time.Second))
	if known(l.SM) != nil || known(l.Watts) != nil || l.From() != "nobody" || l.Waiting != 0 || l.Others != 0 || known(l.EngineQueue) != nil {
		t.Errorf("too late: %+v", l)
	}
}

// TestOneStreamForAllNodes: nodes of one agent share a stream; each has its own reading, one that leaves or is not told of has none, and the last one ends it.
func TestOneStreamForAllNodes(t *testing.T) {
	e := newEtcdFleet(t, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := push.New(push.Options{})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	tell := func(sm map[string]float64) {
		var all []push.Reading
		for _, id := range []string{"a", "b", "c"} {
			if v, told := sm[id]; told {
				all = append(all, push.Reading{Node: id, At: time.Now(), SMPct: cluster.Known(v), SM: time.Now()})
			}
		}
		s.Offer(all)
	}
	tell(map[string]float64{"a": 10, "b": 20})
	for _, id := range []string{"a", "b", "c"} {
		e.put(cluster.NodesPrefix+id, fmt.Sprintf(`{"node_id":%q,"address":%q,"push_address":%q,"models":["m"],"ready":true,"stamp":1}`, id, newEngine(t, nil).URL, l.Addr().String()))
	}
	sm := func(id string, pct float64) func(*Snapshot) bool {
		return func(snap *Snapshot) bool {
			n := snap.Node(id)
			return n != nil && n.Load().Pushed && math.Abs(float64(n.Load().SM)-pct/100) < 1e-6
		}
	}
	eventually(t, e.Fleet, "a", sm("a", 10))
	eventually(t, e.Fleet, "b", sm("b", 20))
	eventually(t, e.Fleet, "c, which it does not tell of", func(snap *Snapshot) bool { return snap.Node("c") != nil && !snap.Node("c").Load().Pushed })
	if st := s.Stats(); st.Followers != 1 {
		t.Errorf("%d streams", st.Followers)
	}
	tell(map[string]float64{"b": 30, "c": 40})
	eventually(t, e.Fleet, "c", sm("c", 40))
	eventually(t, e.Fleet, "a, of which nothing is told any more", func(snap *Snapshot) bool { return !snap.Node("a").Load().Pushed })
	eventually(t, e.Fleet, "b goes on", sm("b", 30))
	for _, id := range []string{"a", "b", "c"} {
		if st := s.Stats(); st.Followers != 1 {
			t.Errorf("before %s has left: %d streams", id, st.Followers)
		}
		if _, err := e.raw.Delete(context.Background(), cluster.NodesPrefix+id); err != nil {
			t.Fatal(err)
		}
		eventually(t, e.Fleet, id+" leaves", func(snap *Snapshot) bool { return snap.Node(id) == nil })
	}
	eventually(t, e.Fleet, "the stream ends with the last of them", func(*Snapshot) bool { return s.Stats().Followers == 0 })
}

// TestResent: the way that loses more counts, of those that are known.
func TestResent(t *testing.T) {
	u := policy.Unknown()
	for _, c := range []struct{ from, to, want float32 }{{0.01, u, 0.01}, {u, 0.02, 0.02}, {0.01, 0.02, 0.02}, {0.02, 0.01, 0.02}, {u, u, u}, {0, 0, 0}} {
		n := &Node{}
		l := unknownLoad
		l.Retransmits = c.from
		n.load.Store(&l)
		if got := n.Resent(); known(c.to) == nil && got != c.want && known(got) != nil {
			t.Errorf("%v from the node: %v", c.from, got)
		}
		n.path.Store(&Path{Share: c.to})
		if got := n.Resent(); got != c.want && (known(got) != nil || known(c.want) != nil) {
			t.Errorf("%v from the node, %v to it: %v, want %v", c.from, c.to, got, c.want)
		}
	}
}
