package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"net"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/agent/push"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/router/policy"
)

// TestSignals checks the order of the sources: the agent's running stream, then the last heartbeat.
// Once the heartbeat is too old the load is unknown, not zero.
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
	now := load.Taken{Time: time.Now()}
	s.Offer(now.Time, []load.Reading{{Node: "n", Load: load.Load{
		Engine: load.Engine{At: now, InFlight: load.Known(3), QueueDepth: load.Known(2)},
		Kernel: load.Kernel{At: now, RunqUsP99: load.Known(1500), EngineWaitPct: load.Known(25)},
		GPU:    load.GPU{At: now, SMPct: load.Known(80)},
	}}})
	at := newEngine(t, nil).URL
	e.put(cluster.NodesPrefix+"n",
		fmt.Sprintf(`{"node_id":"n","address":%q,"push_address":%q,"models":["m"],"ready":true,"stamp":1,`+
			`"max_concurrent":8,"sm_pct":40,"sm_age_ms":2000,"power_watts":300}`, at, l.Addr().String()))
	var n *Node
	eventually(t, e.Fleet, "the stream",
		func(snap *Snapshot) bool { n = snap.Node("n"); return n != nil && n.Load().From == Stream })
	// A figure missing in the stream is unknown, even if the heartbeat has it.
	l1 := n.Load()
	if l1.SMPct != load.Known(80) || l1.RunqUsP99 != load.Known(1500) || l1.EngineWaitPct != load.Known(25) ||
		l1.InFlight != load.Known(3) {
		t.Errorf("by the stream: %+v", l1)
	}
	if l1.Waiting != 2 || l1.Others != 3 || l1.GPU.At.IsZero() || l1.CPUPct != (load.Gauge{}) ||
		l1.Power != (load.Power{}) {
		t.Errorf("by the stream: %+v", l1)
	}
	if v := n.View(time.Now()); v.Signals.From != Stream || !reflect.DeepEqual(v.Signals.Load, l1.Load) {
		t.Errorf("%+v", v.Signals)
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
	eventually(t, e.Fleet, "the heartbeat again", func(*Snapshot) bool { return n.Load().From == Heartbeat })
	l2 := n.Load()
	if l2.SMPct != load.Known(40) || l2.Drawn() != load.Known(300) || l2.Waiting != 0 || l2.Kernel != (load.Kernel{}) {
		t.Errorf("by the heartbeat: %+v", l2)
	}
	if age := l2.Power.At.Sub(l2.GPU.At.Time); age < 2*time.Second {
		t.Errorf("the sample of SM is %v older than the heartbeat", age)
	}
}

// TestOldIsUnknown checks that each sample becomes unknown at its own age.
func TestOldIsUnknown(t *testing.T) {
	now := time.Now()
	n := testNode("n", 8)
	n.setLoad(beatOf(&cluster.NodeHealth{Load: load.Load{
		Engine: load.Engine{InFlight: load.Known(3), QueueDepth: load.Known(2)},
		GPU:    load.GPU{At: load.Taken{Time: now.Add(-2 * time.Second)}, SMPct: load.Known(40)},
		Power:  load.Power{Watts: load.Known(300)},
	}}, now), now)
	n.age(now.Add(defaultTrust - time.Second))
	if l := n.Load(); l.GPU != (load.GPU{}) || l.Watts != load.Known(300) || l.Waiting != 2 || l.From != Heartbeat {
		t.Errorf("later: %+v", l)
	}
	n.age(now.Add(defaultTrust + time.Second))
	if l := n.Load(); !reflect.DeepEqual(*l, Load{From: Nobody}) {
		t.Errorf("too late: %+v", l)
	}
}

// TestHeartbeatsSetThePace checks the limits in heartbeats: a sample counts for three heartbeats,
// and a node is taken out after six missing heartbeats. An agent whose heartbeat is missing or
// shorter than the default counts with the default.
func TestHeartbeatsSetThePace(t *testing.T) {
	for says, pace := range map[float64]time.Duration{0: 5 * time.Second, 0.1: 5 * time.Second, 60: time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			f, err := New(Options{Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			h := node("n", "http://127.0.0.1:1")
			h.HeartbeatS, h.Stamp = says, 1
			f.update(f.addEtcd(&h), &h, time.Now())
			n := f.members["n"].node
			began := time.Now()
			until := func(what string, want time.Duration, still func() bool) {
				t.Helper()
				for ; still(); f.sweepLoads(time.Now()) {
					time.Sleep(time.Second)
					f.sweepEtcd(time.Now())
				}
				if got := time.Since(began); got <= want || got > want+2*time.Second {
					t.Errorf("an agent that says %g s: %s for %v, want %v", says, what, got, want)
				}
			}
			f.sweepLoads(began)
			until("its load is known", 3*pace, func() bool { return n.Load().From == Heartbeat })
			until("it is picked", 6*pace, func() bool { ok, _ := n.Eligible(time.Now()); return ok })
			if _, reason := n.Eligible(time.Now()); reason != "its heartbeat is stale" {
				t.Errorf("it is out: %s", reason)
			}
			again := h
			again.Stamp = 2
			if f.update(f.members["n"], &again, time.Now()); n.Load().From != Heartbeat {
				t.Error("it is not heard again")
			}
			if ok, reason := n.Eligible(time.Now()); !ok {
				t.Errorf("it is back: %s", reason)
			}
			// After an outage the node has three leases to come back.
			began = time.Now()
			f.listNodes(cluster.Listing{AfterOutage: true})
			until("it may come back", 9*pace, func() bool { return f.members["n"] != nil })
		})
	}
}

// TestOneStreamForAllNodes checks that nodes of one agent share a stream and get their own
// readings. A node that leaves, or is missing in the stream, has no reading. The stream ends with
// the last node.
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
		var all []load.Reading
		for _, id := range []string{"a", "b", "c"} {
			if v, told := sm[id]; told {
				gpu := load.GPU{At: load.Taken{Time: time.Now()}, SMPct: load.Known(v)}
				all = append(all, load.Reading{Node: id, Load: load.Load{GPU: gpu}})
			}
		}
		s.Offer(time.Now(), all)
	}
	tell(map[string]float64{"a": 10, "b": 20})
	for _, id := range []string{"a", "b", "c"} {
		e.put(cluster.NodesPrefix+id,
			fmt.Sprintf(`{"node_id":%q,"address":%q,"push_address":%q,"models":["m"],"ready":true,"stamp":1}`, id,
				newEngine(t, nil).URL, l.Addr().String()))
	}
	sm := func(id string, pct float64) func(*Snapshot) bool {
		return func(snap *Snapshot) bool {
			n := snap.Node(id)
			return n != nil && n.Load().From == Stream && n.Load().SMPct == load.Known(pct)
		}
	}
	eventually(t, e.Fleet, "a", sm("a", 10))
	eventually(t, e.Fleet, "b", sm("b", 20))
	eventually(t, e.Fleet, "c, which it does not tell of",
		func(snap *Snapshot) bool { return snap.Node("c") != nil && snap.Node("c").Load().From != Stream })
	if st := s.Stats(); st.Followers != 1 {
		t.Errorf("%d streams", st.Followers)
	}
	tell(map[string]float64{"b": 30, "c": 40})
	eventually(t, e.Fleet, "c", sm("c", 40))
	eventually(t, e.Fleet, "a, of which nothing is told any more",
		func(snap *Snapshot) bool { return snap.Node("a").Load().From != Stream })
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
	eventually(t, e.Fleet, "the stream ends with the last of them",
		func(*Snapshot) bool { return s.Stats().Followers == 0 })
}

// TestResent checks that Resent is the higher share of the two directions, or the only known share.
func TestResent(t *testing.T) {
	u := policy.Unknown()
	for _, c := range []struct{ from, to, want float32 }{
		{0.01, u, 0.01}, {u, 0.02, 0.02}, {0.01, 0.02, 0.02}, {0.02, 0.01, 0.02}, {u, u, u}, {0, 0, 0},
	} {
		n := &Node{}
		l := &Load{}
		if known(c.from) != nil {
			l.RetransPPM = load.Known(math.Round(float64(c.from) * 1e6))
		}
		n.load.Store(l)
		if got := n.Resent(); known(c.to) == nil && got != c.want && known(got) != nil {
			t.Errorf("%v from the node: %v", c.from, got)
		}
		n.path.Store(&Path{Share: c.to})
		if got := n.Resent(); got != c.want && (known(got) != nil || known(c.want) != nil) {
			t.Errorf("%v from the node, %v to it: %v, want %v", c.from, c.to, got, c.want)
		}
	}
}
