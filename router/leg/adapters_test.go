package leg

import (
	"testing"

	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/router/policy"
)

// TestQueueThatHasEnded: a report of a queue keeps requests away from a node that has their adapter
// only while the node may have a queue. Otherwise the requests that wait for an adapter to be loaded
// would make the next ones load it on another node.
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
