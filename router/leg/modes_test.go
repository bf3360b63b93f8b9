package leg

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/sim/engine"
)

// decide puts a policy document in force.
func decide(t *testing.T, d *Dispatcher, doc string) {
	t.Helper()
	p, err := policy.Parse([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	d.policy.Store(p)
}

// decideFor puts a policy document of model sim in force. The fleet of d must be running.
func decideFor(t *testing.T, d *Dispatcher, doc string) {
	t.Helper()
	if err := d.fleet.SetModels(t.Context(), ofSim(doc)); err != nil {
		t.Fatal(err)
	}
}

// ofSim returns settings of model sim, which are its own policy.
func ofSim(doc string) map[string]*cluster.Model {
	return map[string]*cluster.Model{"sim": {Policy: json.RawMessage(doc)}}
}

// stillFor returns a dispatcher as still does, whose model sim has its own policy.
func stillFor(t *testing.T, doc string, backends ...fleet.Backend) *Dispatcher {
	t.Helper()
	index := prefix.NewIndex(prefix.Options{})
	t.Cleanup(index.Close)
	f, err := fleet.New(fleet.Options{Index: index, Logger: slog.New(slog.DiscardHandler), Proven: true,
		Backends: backends, Models: ofSim(doc)})
	if err != nil {
		t.Fatal(err)
	}
	return over(f, index, Options{})
}

// TestModelsHaveTheirOwnPolicies checks that picks and explanations take the policy of the model.
func TestModelsHaveTheirOwnPolicies(t *testing.T) {
	d := start(t, 2)
	decide(t, d, `{"mode":"random"}`)
	decideFor(t, d, `{"mode":"direct"}`)
	r := asked(t, d, chat(500))
	e, err := d.Explain(r, Question{})
	if err != nil || e.Mode != "direct" || e.Winner != "" || !strings.Contains(e.Why, "the request names") {
		t.Errorf("explained: %+v, %v", e, err)
	}
	l := d.Leg(r, Question{}, nil)
	if _, err := l.first(); err != errNotPinned || !strings.Contains(err.Message, "nvext.backend_instance_id") {
		t.Errorf("without a pin: %v", err)
	}
	l.close()
	for _, node := range d.current().models["sim"].pools[Answer].members {
		l = d.Leg(r, pinnedTo(node.node.ID), nil)
		if at, err := l.first(); err != nil || l.pool.members[at] != node {
			t.Errorf("pinned to %s: %v", node.node.ID, err)
		} else {
			l.drop(l.spare())
		}
		l.close()
	}
	if err := d.fleet.SetModels(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if e, err := d.Explain(r, Question{}); err != nil || e.Mode != "random" {
		t.Errorf("without a policy of its own: %+v, %v", e, err)
	}
}

// TestCostIsExplained checks that an explanation in mode cost has each candidate's terms and line.
func TestCostIsExplained(t *testing.T) {
	d := start(t, 2)
	decide(t, d, `{"mode":"cost"}`)
	r := asked(t, d, chat(6400))
	first, err := d.Explain(r, Question{})
	if err != nil {
		t.Fatal(err)
	}
	l := d.Leg(r, Question{}, nil)
	at, err := l.first()
	if err != nil {
		t.Fatal(err)
	}
	holder := l.pool.members[at]
	l.prompt.Sent(holder.node.Ranks()[0].Ref(), r.Received)
	l.drop(l.spare())
	tokens := float64(l.prompt.Tokens())
	l.close()
	e, err := d.Explain(r, Question{})
	if err != nil || e.Winner != holder.node.ID || !strings.HasPrefix(e.Why, "lowest cost ") {
		t.Fatalf("%+v, %v", e, err)
	}
	blocks := float64(e.Blocks)
	if tokens < 16*blocks || tokens >= 16*(blocks+1) || blocks < 100 {
		t.Errorf("%v tokens, %v blocks", tokens, blocks)
	}
	for i, c := range e.Candidates {
		want := tokens/16 + blocks
		if was := first.Candidates[i].Cost; was == nil || was.Total != want {
			t.Errorf("%s had the terms %+v on a cold fleet, want the cost %v", c.Node, was, want)
		}
		if c.Node == holder.node.ID {
			want -= blocks
		}
		if c.Cost == nil || c.Cost.Total != want ||
			!strings.HasPrefix(c.Formula, fmt.Sprintf("Formula for %s: %g", c.Node, want)) {
			t.Errorf("%+v, %s; want the cost %v", c.Cost, c.Formula, want)
		}
	}
	decide(t, d, `{}`)
	e, err = d.Explain(r, Question{})
	if text, _ := json.Marshal(e); err != nil || strings.Contains(string(text), `"cost"`) ||
		!strings.Contains(string(text), `"formula":"Formula for `+holder.node.ID+": ") {
		t.Errorf("mode score: %s, %v", text, err)
	}
}

// TestSituation checks what a pick is told about its leg and its nodes.
func TestSituation(t *testing.T) {
	for name, c := range map[string]struct {
		q    Question
		want policy.Situation
	}{
		"free":       {Question{}, policy.Situation{}},
		"pinned":     {Question{Bond: Named}, policy.Situation{Pinned: true}},
		"continued":  {Question{Bond: Continued}, policy.Situation{Pinned: true}},
		"to prefill": {Question{Work: Prefill}, policy.Situation{Prefill: true}},
	} {
		l := newLeg()
		l.d, l.Question, l.Request = new(Dispatcher), c.q, request.New()
		l.picks.turn, l.picks.policy = 7, policy.Default()
		if got := l.situation(); got.Pinned != c.want.Pinned || got.Prefill != c.want.Prefill || got.Random != 7 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestNvextReachesThePick checks that a request's wishes reach the policy and the load book.
func TestNvextReachesThePick(t *testing.T) {
	d := dispatcherOf(t, 2)
	decide(t, d, `{"mode":"cost","cost":{"track_output_blocks":true}}`)
	body := chat(6400)
	body = fmt.Appendf(body[:len(body)-1], `,"stream":true,"nvext":{"agent_hints":{"osl":32},`+
		`"routing_constraints":{"preferred_taints":{"a":0.5}},"router":{"overlap_score_credit":0.5,"prefill_load_scale":2,`+
		`"router_temperature":3,"shared_cache_multiplier":0.25,"assume_kv_reuse":false,"track_prefill_tokens":false}}}`)
	r := asked(t, d, body)
	q, fail := d.Wanted(r)
	if fail != nil || len(q.Constraints.Preferred) != 1 {
		t.Fatalf("%+v, %v", q, fail)
	}
	want := policy.Overrides{
		OverlapScoreCredit: policy.Given(0.5), PrefillLoadScale: policy.Given(2.0), Temperature: policy.Given(3.0),
		SharedCacheMultiplier: policy.Given(0.25), AssumeKVReuse: policy.Given(false),
		TrackPrefillTokens: policy.Given(false),
	}
	var legs []*Leg
	for range 2 { // the second one has the same blocks, which are not assumed to be shared
		l := d.Leg(r, q, nil)
		if _, err := l.first(); err != nil || l.overrides() != want {
			t.Fatalf("%+v, %v", l.overrides(), err)
		}
		a := l.spare()
		l.prompt.Sent(a.member.rank.Ref(), r.Received)
		l.record(a)
		l.now = a
		legs = append(legs, l)
	}
	blocks, prefill := 0.0, int64(0)
	for _, n := range d.current().snap.Nodes {
		blocks, prefill = blocks+n.Blocks(), prefill+n.OwnPrefill(time.Now())
	}
	if all := float64(legs[0].Blocks()); blocks != 2*all || prefill != 0 {
		t.Errorf("%v blocks are active, want %v; %d tokens of prefill, want none", blocks, 2*all, prefill)
	}
	l := legs[0]
	before := l.now.member.rank.Book.Blocks()
	data := []byte(`{"choices":[{"delta":{"content":"x"}}]}`)
	event := sse.Event{Data: data, Raw: data}
	for range 17 { // 15/32 of the answer are to come, and so much counts of its blocks and of the prompt's
		l.Event(event, time.Now())
	}
	got, more := l.now.member.rank.Book.Blocks()-before, 2.0*15/32-float64(l.Blocks())*17/32
	if math.Abs(got-more) > 0.01 {
		t.Errorf("after 17 of 32 tokens %v blocks more, want %v", got, more)
	}
	for _, l := range legs {
		l.giveBack()
	}
}

// TestRoundRobinOfEachModel checks that each model's nodes take turns, whatever other models do.
func TestRoundRobinOfEachModel(t *testing.T) {
	d := start(t, 2, func(c *engine.Config) { c.Models = []string{"one", "two"} })
	decide(t, d, `{"mode":"round_robin"}`)
	had := map[string]int{}
	for range 4 {
		for _, model := range []string{"one", "two"} {
			r := asked(t, d, fmt.Appendf(nil, `{"model":%q,"messages":[{"role":"user","content":"hi"}]}`, model))
			l := d.Leg(r, Question{}, nil)
			at, err := l.first()
			if err != nil {
				t.Fatal(err)
			}
			had[model+" "+l.pool.members[at].node.ID]++
			l.giveBack()
		}
	}
	for on, n := range had {
		if len(had) != 4 || n != 2 {
			t.Errorf("%s: %d of 4", on, n)
		}
	}
}

// TestExplanationsHaveTheirModesTerms checks that the JSON of an explanation has no terms of other
// modes, and the error of a request that no node may take.
func TestExplanationsHaveTheirModesTerms(t *testing.T) {
	d := start(t, 2)
	for mode, has := range map[policy.Mode]string{
		policy.Score: `"overlap"`, policy.Cost: `"cost"`, policy.Random: "", policy.Direct: "",
		policy.Predicted: `"expected"`,
	} {
		p := policy.Default()
		p.Mode = mode
		d.policy.Store(p)
		e, fail := d.Explain(asked(t, d, chat(100)), Question{})
		if fail != nil {
			t.Fatal(fail)
		}
		doc, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{`"overlap"`, `"cost"`, `"expected"`} {
			if strings.Contains(string(doc), key) != (key == has) {
				t.Errorf("mode %s: %s is there: %v", mode, key, key != has)
			}
		}
		if (e.Error != nil) != (mode == policy.Direct) || e.Error != nil && e.Error.Code != "node_missing" {
			t.Errorf("mode %s: error %+v", mode, e.Error)
		}
	}
}
