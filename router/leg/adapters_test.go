package leg

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestStayWithAdapter checks that a request for an adapter that takes long to load goes to the node
// that has loaded it, as long as that node has no queue. If no node has it, all may load it.
func TestStayWithAdapter(t *testing.T) {
	d := follow(t)
	e, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	put := func(id, more string) {
		d.put(id, e.URL(), `"ready":true,"heartbeat_s":300,"engine":"sglang"`+more)
	}
	loads := func(seconds float64) {
		t.Helper()
		sql := map[string]*cluster.Model{"sql": {Base: "sim", AdapterLoadS: seconds}}
		if err := d.fleet.SetModels(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	const loaded = `,"models":["sim","sql"],"adapters":[{"name":"sql","base":"sim"}]`
	const others = `,"max_concurrent":8,"in_flight":%d,"queue_depth":%d`
	put("a", loaded)
	put("b", "")
	put("c", "")
	loads(5)
	waitFor(t, func() bool { return len(d.fleet.Load().Nodes) == 3 })
	q := Question{Model: []byte("sql")}
	leaves := func(want map[string]string) {
		t.Helper()
		waitFor(t, func() bool { return maps.Equal(filtered(t, d.Dispatcher, q), want) })
	}
	all, elsewhere := map[string]string{}, map[string]string{"b": "adapter", "c": "adapter"}
	leaves(elsewhere)
	for range 10 {
		l := d.Leg(asked(t, d.Dispatcher, chat(100)), q, nil)
		if at, err := l.first(); err != nil || l.pool.members[at].node.ID != "a" {
			t.Errorf("place %d, %v", at, err)
		}
		l.giveBack()
	}
	if !counted(d.Dispatcher, "adapter", 10) {
		t.Error("not counted so")
	}
	loads(0.5)
	leaves(all)
	loads(5)
	leaves(elsewhere)
	put("a", loaded+fmt.Sprintf(others, 4, 3)) // a queue
	leaves(all)
	put("a", loaded+fmt.Sprintf(others, 1, 0))
	leaves(elsewhere)
	put("a", "") // no node has the adapter
	leaves(all)
}

// TestUnknownNodesDoNotLoadAgain: requests for an adapter that takes long to load stay with the
// node that has it, also while nothing is known of the adapters of the others, as on a router that
// has just begun.
func TestUnknownNodesDoNotLoadAgain(t *testing.T) {
	index := prefix.NewIndex(prefix.Options{})
	t.Cleanup(index.Close)
	f, err := fleet.New(fleet.Options{Index: index, Logger: slog.New(slog.DiscardHandler), Proven: true,
		Backends: twoNodes(), Models: map[string]*cluster.Model{"sql": {Base: "sim", AdapterLoadS: 20}}})
	if err != nil {
		t.Fatal(err)
	}
	d := over(f, index, Options{})
	decide(t, d, `{"mode":"round_robin"}`)
	for _, home := range []string{"a", "b"} {
		for _, n := range d.current().models["sql"].pools[Answer].members {
			if resident, known := n.node.AdapterResident("sql"); resident || known {
				t.Fatalf("%s has the adapter: %v, %v", n.node.ID, resident, known)
			}
		}
		node := f.Load().Node(home)
		used := time.Now()
		node.UseAdapter("sql", used)
		for range 4 {
			l := d.Leg(asked(t, d, bytes.Replace(chat(100), []byte(`"sim"`), []byte(`"sql"`), 1)), Question{}, nil)
			if at, err := l.first(); err != nil || l.pool.members[at].node.ID != home {
				t.Errorf("not at %s, which has the adapter: %v", home, err)
			}
			l.giveBack()
		}
		node.UnuseAdapter("sql", used)
	}
}

// TestQueueThatHasEnded: a report of a queue keeps requests away from a node that has their adapter
// only while the node may have a queue. Otherwise the requests that wait for an adapter to be
// loaded would make the next ones load it on another node.
func TestQueueThatHasEnded(t *testing.T) {
	d := still(t, Options{}, twoRanked()...)
	n := d.current().models["sim"].pools[Answer].members[0]
	for _, c := range []struct {
		running, waiting float64 // as reported
		ours, others     int32   // now
		want             bool
	}{
		{running: 3, ours: 9, want: true},
		{waiting: 1, want: true},
		{waiting: 1, ours: 1},
		{waiting: 1, others: 1},
		{running: 4, waiting: 2, ours: 4, want: true},
		{running: 4, waiting: 2, ours: 5},
		{running: 4, waiting: 2, ours: 1, others: 6},
	} {
		told := &load.Load{}
		told.InFlight, told.QueueDepth = load.Known(c.running+c.waiting), load.Known(c.waiting)
		if got := n.unqueued(&policy.Candidate{Load: told, InFlight: c.ours, Others: c.others}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
	told := &load.Load{}
	if told.QueueDepth = load.Known(1); n.unqueued(&policy.Candidate{Load: told}) {
		t.Error("a queue counts if the engine does not tell how many requests it runs")
	}
}

// TestAdaptersShareTheNodesOfTheirBase checks that the adapters of a base share the data about its
// nodes. New facts of a node, or a new snapshot, leave the members of each model in place.
func TestAdaptersShareTheNodesOfTheirBase(t *testing.T) {
	models := map[string]*cluster.Model{"one": {Base: "sim"}, "two": {Base: "sim"}}
	d, o := deafOf(t, 2, models)
	backends := o.Backends
	pool := func(model string) pool { return d.current().models[model].pools[Answer] }
	before := pool("one")
	if before.roster != pool("two").roster || before.roster != pool("sim").roster || len(before.members) != 2 ||
		before.members[0].waits == pool("two").members[0].waits {
		t.Fatal("the adapters and their base share no roster, or share what each has of its own")
	}
	reload := func() {
		t.Helper()
		if err := d.fleet.Configure(t.Context(), backends, models); err != nil {
			t.Fatal(err)
		}
	}
	backends[0].Labels = []string{"x"}
	reload()
	labelled := pool("one")
	if labelled.roster == before.roster || labelled.roster != pool("two").roster ||
		&labelled.members[0] != &before.members[0] {
		t.Error("new labels leave the old facts, or make other members")
	}
	reload()
	if again := pool("one"); again.roster != labelled.roster || &again.members[0] != &before.members[0] {
		t.Error("a snapshot without news makes another roster")
	}
	backends[0].Role = "decode"
	reload()
	if other := pool("one"); other.members[0] == before.members[0] || other.members[1] != before.members[1] ||
		other.members[0].waits != before.members[0].waits || len(other.gates) != 2 {
		t.Error("another role does not make another member, or of the wrong node")
	}
	backends = backends[:1]
	reload()
	if left := pool("two"); len(left.members) != 1 || left.place(before.nodes[1]) >= 0 ||
		left.place(before.nodes[0]) != 0 {
		t.Errorf("%d members are left", len(left.members))
	}
}
