package leg

import (
	"context"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/predict"
	"github.com/cognitora/dataplane/router/queue"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/trust"
)

// queueing is still with a queue, which runs until the end of the test.
func queueing(t *testing.T, o Options) *Dispatcher {
	t.Helper()
	d := still(t, o)
	d.waiting = Waiting{Queue: queue.New(queue.Options{MaxRequests: 100, MaxBytes: 1 << 30}), Most: time.Minute}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { d.waiting.Queue.Run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	return d
}

// tell announces a node with so many slots.
func tell(d *Dispatcher, id string, slots int) {
	d.fleet.Beat(time.Now(), &cluster.NodeHealth{
		NodeID: id, Address: "http://10.0.0.1:1", Models: []string{"sim"}, Ready: true, MaxConcurrent: slots,
	})
}

// waitTurn begins a leg that waits, and returns it with its outcome.
func waitTurn(t *testing.T, d *Dispatcher, q Question) (l *Leg, placed <-chan string) {
	t.Helper()
	before, _ := d.waiting.Queue.Depth()
	l = d.Leg(asked(t, d, chat(100)), q, nil)
	l.began = l.Request.Received
	out := make(chan string, 1)
	go func() {
		at, err := l.first()
		if err != nil {
			out <- err.Code
			return
		}
		out <- l.pool.members[at].node.ID
	}()
	waitFor(t, func() bool { depth, _ := d.waiting.Queue.Depth(); return depth[1] == before[1]+1 })
	return l, out
}

// TestTurnFollowsTheFleet checks that a waiting leg gets a node that appears, and that it is
// refused once nobody can take it.
func TestTurnFollowsTheFleet(t *testing.T) {
	d := queueing(t, Options{})
	tell(d, "a", 1)
	holder := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	holder.began = time.Now()
	if _, err := holder.first(); err != nil {
		t.Fatal(err)
	}
	first, placed := waitTurn(t, d, Question{})
	second, refused := waitTurn(t, d, Question{})
	if e, err := d.Explain(asked(t, d, chat(100)), Question{}); err != nil || e.Queue == nil || e.Queue.Requests != 2 {
		t.Errorf("explained: %+v, %v", e, err)
	}
	tell(d, "b", 1)
	if got := <-placed; got != "b" {
		t.Errorf("the first leg got %s", got)
	}
	d.fleet.Beat(time.Now(), &cluster.NodeHealth{NodeID: "a", Address: "http://10.0.0.1:1", Models: []string{"sim"}})
	d.fleet.Beat(time.Now(), &cluster.NodeHealth{NodeID: "b", Address: "http://10.0.0.1:1", Models: []string{"sim"}})
	if got := <-refused; got != ErrNoNode.Code {
		t.Errorf("the second leg got %s", got)
	}
	for _, l := range []*Leg{holder, first, second} {
		l.giveBack()
	}
	if depth, bytes := d.waiting.Queue.Depth(); depth != [queue.Bands]int{} || bytes != 0 {
		t.Errorf("%v are left", depth)
	}
}

// TestLanes checks which legs count as alike.
func TestLanes(t *testing.T) {
	d := queueing(t, Options{})
	tell(d, "a", 1)
	tell(d, "b", 1)
	lane := func(q Question) uint64 {
		l := d.Leg(asked(t, d, chat(100)), q, nil)
		defer l.giveBack()
		if err := l.resolve(); err != nil {
			t.Fatal(err)
		}
		return l.lane()
	}
	labels := func(all ...string) Question { return Question{Constraints: Constraints{Required: all}} }
	seen := map[uint64]int{}
	for i, q := range []Question{
		{}, {Bond: Named, Node: "a"}, {Bond: Named, Node: "b"}, {Allowed: []string{"a"}}, {Allowed: []string{"a", "b"}},
		{Rank: policy.Given(uint32(0))}, labels("x"), labels("x", "y"), labels("xy"),
	} {
		at := lane(q)
		if other, twice := seen[at]; twice || (at == 0) != (i == 0) {
			t.Errorf("question %d has the lane %d of %d", i, at, other)
		}
		if seen[at] = i; at != lane(q) {
			t.Errorf("question %d has two lanes", i)
		}
	}
}

// TestPassingIsFree checks that a leg that need not wait costs no memory with the queue on, and is
// charged and settled.
func TestPassingIsFree(t *testing.T) {
	d := queueing(t, Options{})
	tell(d, "a", 0)
	d.waiting.Active = busy.Thresholds{PrefillTokens: new(1 << 20)}
	r, l := request.New(), newLeg()
	body := chat(2 << 10)
	try := func() {
		if err := pick(d, r, l, body); err != nil {
			t.Fatal(err)
		}
	}
	try()
	if n := testing.AllocsPerRun(100, try); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// TestDue checks that a request is refused if its first token is expected too late, and that an
// idle node whose speed nobody has shown lately gets it all the same.
func TestDue(t *testing.T) {
	d := still(t, repeatable())
	tell(d, "a", 0)
	decide(t, d, `{"mode":"predicted","ttft_slo_ms":100}`)
	now := time.Now()
	try := func(at time.Time, deadline time.Duration, stream bool) string {
		t.Helper()
		r := asked(t, d, chat(64000))
		r.Scan.Stream = stream
		if r.Received = at; deadline > 0 {
			r.Deadline = at.Add(deadline)
		}
		_, err := d.Pick(r, Question{})
		if err == nil {
			return ""
		}
		if err.Status != 503 || err.RetryAfterSeconds < 1 || err.RetryAfterSeconds > 60 {
			t.Errorf("%+v", err)
		}
		return err.Code
	}
	want := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	want("nothing is known", try(now, time.Millisecond, true), "")
	for range 8 {
		r := rehearsed(t, d, 1000, now)
		r.Begun(now.Add(2 * time.Second))
		r.Finish(usage.Counts{}, now.Add(3*time.Second))
		now = now.Add(3 * time.Second)
	}
	want("too late", try(now, 500*time.Millisecond, true), codeLate)
	want("too late, no stream", try(now, 500*time.Millisecond, false), codeLate)
	want("in time", try(now, time.Minute, true), "")
	want("late by the target", try(now, 0, true), "")
	now = now.Add(proveEvery + time.Second)
	want("idle for long", try(now, 500*time.Millisecond, true), "")
	running := rehearsed(t, d, 10, now)
	want("busy", try(now, 500*time.Millisecond, true), codeLate)
	running.Begun(now)
	running.Finish(usage.Counts{}, now)
	d.o.RefuseOverSLO = true
	want("late by the target that counts", try(now, 0, true), codeSLO)
	want("the target comes first", try(now, 500*time.Millisecond, true), codeSLO)
	want("the deadline comes first", try(now, 50*time.Millisecond, true), codeLate)
	want("no stream has no target", try(now, 0, false), "")
}

// TestAFasterNodeIsAwaited checks that a request with a deadline waits for a full node if only that
// one is fast enough, and holds up no request that the other node can take.
func TestAFasterNodeIsAwaited(t *testing.T) {
	d := queueing(t, repeatable())
	tell(d, "fast", 1)
	holder := d.Leg(asked(t, d, chat(8<<10)), Question{}, nil)
	holder.began = time.Now()
	if _, err := holder.first(); err != nil {
		t.Fatal(err)
	}
	tell(d, "slow", 0)
	other := d.Leg(asked(t, d, chat(100)), Question{Bond: Named, Node: "slow"}, nil) // so it is not idle
	other.began = time.Now()
	if _, err := other.first(); err != nil {
		t.Fatal(err)
	}
	decide(t, d, `{"mode":"predicted"}`)
	now := time.Now()
	for range 40 {
		for _, m := range d.current().models["sim"].pools[Answer].members {
			f := predict.First{Work: predict.Prompt(2000, 0), Step: 0.01}
			s := m.engine.Speed()
			s.Forecast(&f)
			took := 1.0
			if m.node.ID == "slow" {
				took = 60
			}
			m.engine.LearnFirst(&f, took, now)
		}
	}
	leg := func(deadline time.Duration) *Leg {
		r := asked(t, d, chat(8<<10))
		if deadline > 0 {
			r.Deadline = r.Received.Add(deadline)
		}
		l := d.Leg(r, Question{}, nil)
		l.began = r.Received
		return l
	}
	start := func(l *Leg) <-chan string {
		out := make(chan string, 1)
		go func() {
			at, err := l.first()
			if err != nil {
				out <- err.Code
				return
			}
			out <- l.pool.members[at].node.ID
		}()
		return out
	}
	timed, hopeless, patient := leg(30*time.Second), leg(time.Millisecond), leg(0)
	if got := <-start(hopeless); got != codeLate {
		t.Errorf("the hopeless request got %s", got)
	}
	placed := start(timed)
	waitFor(t, func() bool { depth, _ := d.waiting.Queue.Depth(); return depth[1] == 1 })
	if got := <-start(patient); got != "slow" {
		t.Errorf("the patient request got %s", got)
	}
	holder.giveBack()
	if got := <-placed; got != "fast" {
		t.Errorf("the timed request got %s", got)
	}
	for _, l := range []*Leg{other, timed, hopeless, patient} {
		l.giveBack()
	}
}

// TestReportedTokensAreBounded checks that no report of an engine makes a request cost less than
// nothing or nearly everything.
func TestReportedTokensAreBounded(t *testing.T) {
	l := newLeg()
	l.now = &attempt{taken: true, status: 200}
	for _, c := range []struct {
		prompt, completion int64
		want               float64
	}{
		{10, 5, 15}, {math.MaxInt64, math.MaxInt64, 2 * maxSpent}, {math.MinInt64, -1, 0}, {math.MaxInt64, 1, maxSpent + 1},
	} {
		l.Reading.Usage = usage.Counts{Prompt: c.prompt, Completion: c.completion, HasPrompt: true, HasCompletion: true}
		if got := l.turnCost(); got != c.want {
			t.Errorf("%d and %d tokens cost %g, want %g", c.prompt, c.completion, got, c.want)
		}
	}
}

// TestARevokedKeyGetsNoTurn checks that a request whose key is revoked while it waits gets no node.
func TestARevokedKeyGetsNoTurn(t *testing.T) {
	d := queueing(t, Options{})
	tell(d, "a", 1)
	holder := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	holder.began = time.Now()
	at, err := holder.first()
	if err != nil {
		t.Fatal(err)
	}
	n := holder.pool.members[at].node
	l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	key := trust.NewCredential(nil)
	l.Request.Who, l.began = &trust.Principal{Credential: key}, time.Now()
	out := make(chan *apierror.Error, 1)
	go func() {
		_, err := l.first()
		out <- err
	}()
	waitFor(t, func() bool { depth, _ := d.waiting.Queue.Depth(); return depth[1] == 1 })
	key.Revoke()
	holder.giveBack()
	if err := <-out; err != errRevoked || l.Request.Life.Ended() != request.Revoked {
		t.Errorf("%v, ended %v", err, l.Request.Life.Ended())
	}
	if n.InFlight() != 0 {
		t.Errorf("%d in flight", n.InFlight())
	}
	if l.giveBack(); d.gate.InFlight() != 0 {
		t.Errorf("%d permits", d.gate.InFlight())
	}
}

// TestAWaitKeepsNoPartner checks that a waiting leg keeps no leg for the node that would compute
// its prompt, and gets one with its turn.
func TestAWaitKeepsNoPartner(t *testing.T) {
	d := still(t, Options{MaxNodes: 2, Limits: Limits{FirstByte: time.Hour}, Disagg: Disagg{ColocateBelow: 200}},
		fleet.Backend{URL: "http://10.0.0.1:1", ID: "p", Model: "sim",
			Role: "prefill", Connector: "nixl"},
		fleet.Backend{URL: "http://10.0.0.2:1", ID: "d", Model: "sim",
			Role: "decode", Connector: "nixl", MaxConcurrent: 1})
	rules := queue.Options{MaxRequests: 9, MaxBytes: 1 << 30}
	d.waiting = Waiting{Queue: queue.New(rules), Most: time.Minute} // none runs it
	holder := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	holder.began = time.Now()
	if _, err := holder.first(); err != nil {
		t.Fatal(err)
	}
	l := d.Leg(asked(t, d, chat(8<<10)), Question{}, nil)
	l.began = time.Now()
	out := make(chan *apierror.Error, 1)
	go func() {
		_, err := l.first()
		out <- err
	}()
	waitFor(t, func() bool { depth, _ := d.waiting.Queue.Depth(); return depth[1] == 1 })
	if l.hand == nil || l.hand.prefill != nil {
		t.Error("the leg begins its wait with a partner")
	}
	if o := l.Try(time.Now()); o != queue.NoRoom || l.hand.prefill != nil {
		t.Errorf("outcome %v, and the leg waits on with a partner", o)
	}
	holder.giveBack()
	if o := l.Try(time.Now()); o != queue.Placed || l.hand.prefill == nil {
		t.Errorf("outcome %v, or no partner", o)
	}
	l.Request.Life.Cancel()
	if err := <-out; err != ErrClientLeft {
		t.Error(err)
	}
	l.giveBack()
}

// TestBugInASettlement checks that a leg whose settlement panics gives back its slot and permit.
func TestBugInASettlement(t *testing.T) {
	d := queueing(t, Options{})
	tell(d, "a", 1)
	l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	l.began = time.Now()
	at, err := l.first()
	if err != nil {
		t.Fatal(err)
	}
	n := l.pool.members[at].node
	l.now, l.prompt = &attempt{taken: true, status: 200}, nil // settleTurn asks for the prompt's tokens
	func() {
		defer func() { recover() }()
		l.giveBack()
		t.Error("no bug")
	}()
	if n.InFlight() != 0 || d.gate.InFlight() != 0 {
		t.Errorf("%d in flight on the node, %d permits", n.InFlight(), d.gate.InFlight())
	}
}
