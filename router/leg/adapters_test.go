package leg

import (
	"fmt"
	"maps"
	"testing"

	"github.com/cognitora/dataplane/internal/cluster"
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
	const others = `,"max_concurrent":2,"in_flight":%d,"queue_depth":%d`
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
		if at, err := l.first(); err != nil || l.pool.members[at].ID != "a" {
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
	put("a", loaded+fmt.Sprintf(others, 2, 1)) // a queue
	leaves(all)
	put("a", loaded+fmt.Sprintf(others, 1, 0))
	leaves(elsewhere)
	put("a", "") // no node has the adapter
	leaves(all)
}
