package leg

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/where"
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

// TestModelsHaveTheirOwnPolicies checks that picks and explanations take the policy of the model.
func TestModelsHaveTheirOwnPolicies(t *testing.T) {
	d := start(t, 2)
	decide(t, d, `{"mode":"random","models":{"sim":{"mode":"direct"},"other":{"mode":"cost"}}}`)
	r := asked(t, d, chat(500))
	e, err := d.Explain(r, Question{})
	if err != nil || e.Mode != "direct" || e.Winner != "" || !strings.Contains(e.Why, "the request names") {
		t.Errorf("explained: %+v, %v", e, err)
	}
	l := d.Leg(r, Question{}, nil)
	if _, err := l.first(); err != errNotPinned {
		t.Errorf("without a pin: %v", err)
	}
	l.close()
	for _, node := range d.current().models["sim"].pools[Answer].members {
		l = d.Leg(r, Pinned(node.ID), nil)
		if at, err := l.first(); err != nil || l.pool.members[at] != node {
			t.Errorf("pinned to %s: %v", node.ID, err)
		} else {
			l.drop(l.spare())
		}
		l.close()
	}
	decide(t, d, `{"mode":"random"}`)
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
	l.prompt.Sent(holder.Ref(), r.Received)
	l.drop(l.spare())
	tokens := float64(l.prompt.Tokens())
	l.close()
	e, err := d.Explain(r, Question{})
	if err != nil || e.Winner != holder.ID || !strings.HasPrefix(e.Why, "lowest cost ") {
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
		if c.Node == holder.ID {
			want -= blocks
		}
		if c.Cost == nil || c.Cost.Total != want || c.Formula != c.Cost.Formula(c.Node) ||
			!strings.HasPrefix(c.Formula, "Formula for "+c.Node+": ") {
			t.Errorf("%+v, %s; want the cost %v", c.Cost, c.Formula, want)
		}
	}
	decide(t, d, `{}`)
	e, err = d.Explain(r, Question{})
	if text, _ := json.Marshal(e); err != nil || strings.Contains(string(text), "formula") ||
		strings.Contains(string(text), `"cost"`) {
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
		l := &Leg{Question: c.q, prompt: new(where.Prompt)}
		if got := l.situation(7); got.Pinned != c.want.Pinned || got.Prefill != c.want.Prefill || got.Random != 7 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
