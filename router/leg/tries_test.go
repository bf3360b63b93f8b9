package leg

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/books"
	"github.com/cognitora/dataplane/router/scan"
)

// TestFastKindsAreTried checks nodes of two kinds that are faster than the start values. The kind
// that is learned later is the faster one. It is tried, though the other one looks faster, and then
// gets more than its share. Without exploration it gets nothing.
func TestFastKindsAreTried(t *testing.T) {
	for _, explores := range []bool{false, true} {
		d := still(t, repeatable())
		f := &toyFleet{Dispatcher: d, t: t, now: time.Unix(1_700_000_000, 0)}
		f.gaps, f.firsts = map[string]time.Duration{}, map[string]time.Duration{"c": 10 * time.Millisecond}
		for i, id := range []string{"a", "b", "c"} {
			n := &cluster.NodeHealth{NodeID: id, Address: fmt.Sprintf("http://10.0.0.%d:1", i+1),
				Models: []string{"sim"}, Ready: true}
			if f.gaps[id] = 10 * time.Millisecond; id == "c" {
				n.DType = "fp8"
			}
			d.fleet.Beat(f.now, n)
			if id == "b" {
				decide(t, d, fmt.Sprintf(`{"mode":"predicted","predicted":{"explore":%v}}`, explores))
				f.answer(100)
			}
		}
		first := f.answer(100)["c"]
		rest := f.answer(200)["c"]
		if !explores && first+rest > 0 || explores && (first == 0 || rest < 100) {
			t.Errorf("explores %v: the faster kind gets %d of 100 requests, and then %d of 200", explores, first, rest)
		}
		f.end()
	}
}

// TestOnlyIdleSlowNodesAreTried checks that a slow node is tried while it is idle, and only if the
// policy explores.
func TestOnlyIdleSlowNodesAreTried(t *testing.T) {
	d, now := foreseeing(t, 3), time.Now()
	teach(d, now, 64, map[string]float64{"a": 1, "b": 1, "c": 1})
	teach(d, now, 8, map[string]float64{"a": 1, "b": 1, "c": 5})
	teach(d, now, 300, map[string]float64{"a": 1, "b": 1})
	book := &d.table.Load().models["sim"].pools[Answer].members[2].rank.Book
	tried := func() bool {
		r := rehearsed(t, d, 20, now)
		defer r.l.close()
		defer r.l.drop(r.l.now)
		return r.l.picks.times[2].Tried
	}
	var other books.Entry
	book.Open(&other, books.Cost{Prefill: 100}, now)
	if tried() {
		t.Error("a node that computes a prompt is tried")
	}
	other.Close(now)
	p := *d.policy.Load()
	p.Predicted.Explore = false
	explores := d.policy.Swap(&p)
	if tried() {
		t.Error("a node is tried without exploration")
	}
	d.policy.Store(explores)
	if !tried() {
		t.Error("an idle node is not tried")
	}
}

// TestOtherKindsRecover checks a node that is alone in its kind and slow for a while. The others
// can do without it, but it is tried again.
func TestOtherKindsRecover(t *testing.T) {
	d := still(t, repeatable())
	f := &toyFleet{Dispatcher: d, t: t, now: time.Unix(1_700_000_000, 0)}
	f.gaps, f.firsts = map[string]time.Duration{}, map[string]time.Duration{}
	for i, id := range []string{"a", "b", "c"} {
		n := &cluster.NodeHealth{NodeID: id, Address: fmt.Sprintf("http://10.0.0.%d:1", i+1),
			Models: []string{"sim"}, Ready: true}
		if id == "c" {
			n.DType = "fp8"
		}
		d.fleet.Beat(f.now, n)
	}
	decide(t, d, predicted)
	f.answer(300)
	f.firsts["c"], f.gaps["c"] = time.Second, 200*time.Millisecond
	slow := f.answer(300)["c"]
	delete(f.firsts, "c")
	delete(f.gaps, "c")
	f.answer(3000)
	if back := f.answer(300)["c"]; slow > 20 || back < 50 {
		t.Errorf("%d of 300 requests while it is slow, and %d after that", slow, back)
	}
	f.end()
}

// TestExploringRequests checks which requests may try a node of an unknown speed: one of some whose
// answers teach, and none if the policy does not learn or explore.
func TestExploringRequests(t *testing.T) {
	d := start(t, 1)
	for _, c := range []struct {
		policy string
		stream bool
		api    scan.API
		want   int
	}{
		{predicted, true, scan.Chat, 1000}, {predicted, false, scan.Chat, 0}, {predicted, true, scan.Responses, 0},
		{`{"mode":"predicted","predicted":{"explore":false}}`, true, scan.Chat, 0},
		{`{"mode":"predicted","predicted":{"learn":false}}`, true, scan.Chat, 0},
	} {
		decide(t, d, c.policy)
		l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
		l.picks.policy = d.policy.Load()
		l.Request.Scan.Stream, l.Request.API = c.stream, c.api
		dice, may := rand.New(rand.NewPCG(1, 2)), 0
		for range 1000 * triesOneIn {
			if l.picks.turn = dice.Uint64(); l.explores() {
				may++
			}
		}
		if may < c.want*9/10 || may > c.want*11/10 {
			t.Errorf("%+v: %d requests of %d", c, may, 1000*triesOneIn)
		}
		l.recycle()
	}
}
