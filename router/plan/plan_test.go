package plan

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/residue"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/where"
	"github.com/cognitora/dataplane/sim/engine"
)

// start returns a planner over n simulated engines, all of them in service.
func start(t testing.TB, n int) *Planner {
	t.Helper()
	index := prefix.NewIndex(prefix.Options{})
	t.Cleanup(index.Close)
	o := fleet.Options{Index: index, Logger: slog.New(slog.DiscardHandler)}
	for range n {
		e, err := engine.New(engine.Config{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		o.Backends = append(o.Backends, fleet.Backend{URL: e.URL()})
	}
	f, err := fleet.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	chosen := &atomic.Pointer[policy.Policy]{}
	chosen.Store(policy.Default())
	counts, stored := metrics.New(), affinity.New(16)
	legs := leg.New(leg.Parts{
		Fleet: f, Policy: chosen, Gate: admission.New(admission.Options{}), Logger: o.Logger,
		Where:  &where.Finder{Index: index, Metrics: counts},
		Budget: admission.NewBudget(20, 64, nil), Metrics: counts, Stored: stored,
	}, leg.Options{
		Limits:   leg.Limits{FirstByte: time.Minute, Idle: time.Minute, Total: time.Minute},
		MaxNodes: 2, Feedback: true,
	})
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(time.Minute); !inService(f, n); <-look.C {
		if time.Now().After(end) {
			t.Fatal("the engines are not in service")
		}
	}
	return New(Parts{Legs: legs, Fleet: f, Stored: stored, Metrics: counts, Logger: o.Logger})
}

// inService says whether n nodes of f may be picked.
func inService(f *fleet.Fleet, n int) bool {
	able := 0
	for _, node := range serving(f.Load()) {
		if ok, _ := node.Eligible(time.Now()); ok {
			able++
		}
	}
	return able == n
}

// TestLostResponses checks that the wait for a dead node's stored responses ends.
func TestLostResponses(t *testing.T) {
	p := start(t, 2)
	node := p.parts.Fleet.Load().Nodes[1].ID
	p.parts.Stored.Set([]byte("resp_1"), affinity.Made{Node: node})
	holder := func(id string) (string, *apierror.Error) {
		r := request.New()
		return p.holder(r, []byte(id))
	}
	if got, err := holder("resp_1"); got != node || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	p.lostAfter = 0
	if _, err := holder("resp_1"); err != errNodeLost {
		t.Errorf("of a node that has not answered for too long: %v", err)
	}
	if _, err := holder("resp_2"); err != leg.ErrNoNode {
		t.Errorf("such a node is asked: %v", err)
	}
}

// TestBugInASearch checks that a node whose question panics counts as silent. The router goes on.
func TestBugInASearch(t *testing.T) {
	p := start(t, 1)
	r := request.New()
	broken := &fleet.Node{ID: "broken"} // the node has no pool
	_, err := p.search(r, []byte("resp_1"), append(serving(p.parts.Fleet.Load()), broken), false)
	if err == nil || err.Code != "response_unknown" || !strings.Contains(err.Message, "broken did not answer") {
		t.Errorf("%v", err)
	}
}

// TestEndOfASearch checks that a client that leaves ends the running questions and prevents further
// ones.
func TestEndOfASearch(t *testing.T) {
	p := start(t, 2)
	r := request.New()
	r.Life.Begin = r.Life.Cancel
	if _, err := p.search(r, []byte("resp_1"), serving(p.parts.Fleet.Load()), false); err != leg.ErrClientLeft {
		t.Errorf("%v", err)
	}
	var abort relay.Abort
	if r.Life.Enter(&abort) {
		t.Error("something is begun for a client that has left")
	}
}

func TestWhatNodesSayOfAStoredResponse(t *testing.T) {
	for status, want := range map[int][2]said{ // with a key of the router's, and without
		200: {yes, yes}, 404: {no, no}, 400: {no, no}, 501: {no, no},
		401: {nothing, denied401}, 403: {nothing, denied403},
		408: {nothing, nothing}, 429: {nothing, nothing}, 500: {nothing, nothing}, 503: {nothing, nothing},
	} {
		if got := [2]said{saidBy(status, false), saidBy(status, true)}; got != want {
			t.Errorf("%d: %v, want %v", status, got, want)
		}
	}
}

// hold is a plan that withholds every event. hold asks for another leg if more is true.
type hold struct {
	Direct
	more bool
}

func (h *hold) Event(t *Task, e sse.Event, out []byte, _ time.Time) ([]byte, bool) {
	return t.Withhold(e, out), false
}

func (h *hold) End(_ *Task, out []byte, _ relay.Outcome) ([]byte, bool) { return out, h.more }

// give passes an event to the task and returns the bytes for the client.
func give(task *Task, raw string) string {
	out, _ := task.Event(sse.Event{Raw: []byte(raw)}, nil, time.Time{})
	return string(out)
}

// TestWithheldEvents checks that withheld events keep their order: before an event too long to be
// read, at the bound, and at the end of their leg. The events are dropped only if another leg takes
// its place.
func TestWithheldEvents(t *testing.T) {
	p := &hold{}
	task := &Task{plan: p, follows: true}
	if out := give(task, "a\n\n") + give(task, "b\n\n"); out != "" {
		t.Errorf("%q was not withheld", out)
	}
	if out := give(task, ""); out != "a\n\nb\n\n" {
		t.Errorf("%q goes before an event that is too long", out)
	}
	give(task, "c\r")
	if out, more := task.End([]byte("<"), relay.Complete); string(out) != "<c\r\n\n" || more {
		t.Errorf("%q at the end, more %v", out, more)
	}
	give(task, "d")
	p.more = true
	if out, more := task.End(nil, relay.Complete); len(out) != 0 || !more || len(task.Release(nil)) != 0 {
		t.Errorf("%q at the end of a leg that another follows, more %v", out, more)
	}
	long := strings.Repeat("x", maxWithheld-2) + "\n\n"
	if out := give(task, long) + give(task, "e") + give(task, "f"); out != long+"ef" {
		t.Errorf("%d bytes at the bound, want %d", len(out), maxWithheld+2)
	}
	task.follows = false
	if _, more := task.End(nil, relay.Complete); more {
		t.Error("another leg follows, although the plan had not said that one may")
	}
}

// TestNothingOutlivesAResumedStream checks that reset clears every field but memory. Package resume
// checks its Stream.
func TestNothingOutlivesAResumedStream(t *testing.T) {
	p := new(Resumed)
	residue.Mark(p, []string{"stream", "body", "bound"}, answer.Place(new(answer.Memory)), Plan(Direct{}))
	p.reset()
	if left := residue.Left(p, "stream", "body", "bound"); left != nil {
		t.Errorf("left of a resumed stream: %v", left)
	}
}

// TestNothingOutlivesATask checks that reset clears every field. A field left over would carry one
// client's data to another client.
func TestNothingOutlivesATask(t *testing.T) {
	task := NewTask()
	residue.Mark(task, []string{"Request", "leg", "resumed"}, answer.Place(new(answer.Memory)), Plan(Direct{}))
	task.Finish(relay.Complete)
	if left := residue.Left(task, "Request", "resumed"); left != nil {
		t.Errorf("left of a task: %v", left)
	}
}

// bungler is a plan that withholds an event, or releases the withheld ones, and then panics.
type bungler struct {
	hold
	release bool
}

func (b *bungler) Event(t *Task, e sse.Event, out []byte, at time.Time) ([]byte, bool) {
	if string(e.Raw) != "bad\n\n" {
		return b.hold.Event(t, e, out, at)
	}
	b.fail(t, e, out)
	return nil, false
}

func (b *bungler) End(t *Task, out []byte, _ relay.Outcome) ([]byte, bool) {
	b.fail(t, sse.Event{}, out)
	return nil, false
}

func (b *bungler) Next(*Task) *apierror.Error { panic("a bug in a plan") }

func (b *bungler) fail(t *Task, e sse.Event, out []byte) {
	if b.release {
		t.Release(out)
	} else {
		t.Withhold(e, out)
	}
	panic("a bug in a plan")
}

// TestBugInAPlan checks that a panic costs the client no event. Each withheld event arrives once,
// and so does each later event.
func TestBugInAPlan(t *testing.T) {
	p := &Planner{parts: Parts{Metrics: metrics.New(), Logger: slog.New(slog.DiscardHandler)}}
	for _, release := range []bool{false, true} {
		task := &Task{plan: &bungler{release: release}, planner: p}
		out := give(task, "a\n\n") + give(task, "bad\n\n") + give(task, "b\n\n")
		end, more := task.End([]byte("end"), relay.Complete)
		if out += string(end); out != "a\n\nbad\n\nb\n\nend" || more {
			t.Errorf("released first %v: the client gets %q, more %v", release, out, more)
		}
		task = &Task{plan: &bungler{release: release}, planner: p, follows: true}
		give(task, "a\n\n")
		if end, more := task.End([]byte("<"), relay.Complete); string(end) != "<a\n\n" || more {
			t.Errorf("a bug at the end, released first %v: %q, more %v", release, end, more)
		}
		if err := task.Next(); err != errPlan {
			t.Errorf("a bug on the way to another leg: %v", err)
		}
	}
}

// TestJoined: a count that one leg did not report is unknown, and the total still tells it.
func TestJoined(t *testing.T) {
	first := usage.Counts{Prompt: 10, HasPrompt: true, Completion: 5, HasCompletion: true, Total: 15, HasTotal: true}
	both := usage.Counts{Prompt: 15, HasPrompt: true, Completion: 7, HasCompletion: true, Total: 22, HasTotal: true}
	part := usage.Counts{Prompt: 15, HasPrompt: true, Total: 22, HasTotal: true}
	for i, c := range []struct{ first, next, want usage.Counts }{
		{first, both, usage.Counts{Prompt: 10, HasPrompt: true, Completion: 12, HasCompletion: true, Total: 22, HasTotal: true}},
		{first, part, usage.Counts{Prompt: 10, HasPrompt: true, Completion: 5, Total: 22, HasTotal: true}},
		{usage.Counts{}, both, usage.Counts{Prompt: 15, HasPrompt: true, Completion: 7, Total: 22, HasTotal: true}},
	} {
		if got := joined(c.first, c.next); got != c.want {
			t.Errorf("%d: %+v", i, got)
		}
	}
}
