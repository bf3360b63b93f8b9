package leg

import (
	"fmt"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/request"
)

// worthless are policies that give prefixes no worth.
var worthless = map[string]string{
	"score": `{"kv":0,"load":1}`,
	"cost":  `{"mode":"cost","cost":{"overlap_score_weight":0}}`,
}

// answeredLeg sends a request and returns its leg, whose answer has begun.
func answeredLeg(t *testing.T, d *Dispatcher, r *request.Request) *Leg {
	t.Helper()
	l := d.Leg(r, Question{}, place(func(ex *relay.Exchange) error { ex.Close(); return nil }))
	if err := l.Do(); err != nil {
		t.Fatal(err)
	}
	return l
}

// overridden returns a chat with values of its own for settings of the policy.
func overridden(bytes int, settings string) []byte {
	body := chat(bytes)
	return fmt.Appendf(body[:len(body)-1], `,"nvext":{"router":{%s}}}`, settings)
}

// TestWorthlessPrefixesAreNotHashed checks that a leg hashes, looks up and records nothing if the
// policy gives prefixes no worth, and that each of two equal prompts counts in full.
func TestWorthlessPrefixesAreNotHashed(t *testing.T) {
	for name, c := range map[string]struct {
		doc    string
		decide func(t *testing.T, d *Dispatcher, doc string)
	}{
		"score": {worthless["score"], decide}, "cost": {worthless["cost"], decide},
		"of the model": {worthless["score"], decideFor},
	} {
		t.Run(name, func(t *testing.T) {
			d := start(t, 1)
			c.decide(t, d, c.doc)
			node := d.current().snap.Nodes[0].Ranks()[0]
			var legs []*Leg
			for i := range 2 {
				l := answeredLeg(t, d, asked(t, d, chat(6400)))
				if d.where.Index.Len() != 0 || len(l.prompt.Keys()) != 0 || l.now.recorded {
					t.Errorf("request %d: %d blocks are in the index, %d are hashed", i, d.where.Index.Len(),
						len(l.prompt.Keys()))
				}
				if l.Blocks() != 100 || l.Matched() != 0 {
					t.Errorf("request %d: %d of %d blocks matched", i, l.Matched(), l.Blocks())
				}
				legs = append(legs, l)
			}
			if got := node.Book.Blocks(); got != 200 {
				t.Errorf("%v blocks are active, want 200", got)
			}
			if e, err := d.Explain(asked(t, d, chat(6400)), Question{}); err != nil || e.Blocks != 100 ||
				e.Candidates[0].Matched != 0 || e.Candidates[0].Total != 100 {
				t.Errorf("explained as %+v, %v", e, err)
			}
			for _, l := range legs {
				l.Finish(relay.Complete)
			}
			if d.where.Index.Len() != 0 || !node.Book.Empty() {
				t.Errorf("%d blocks are in the index, %v in the book", d.where.Index.Len(), node.Book.Blocks())
			}
			c.decide(t, d, `{}`)
			answeredLeg(t, d, asked(t, d, chat(6400))).Finish(relay.Complete)
			if got := d.where.Index.Len(); got != 100 {
				t.Errorf("with a worth again %d blocks are in the index, want 100", got)
			}
		})
	}
}

// TestRequestsGivePrefixesAWorth checks that a request's own credit makes its prefix count, and
// that a request's own weight of 0 takes the worth away.
func TestRequestsGivePrefixesAWorth(t *testing.T) {
	d := start(t, 2)
	decide(t, d, worthless["cost"])
	body := overridden(6400, `"overlap_score_credit":1,"prefill_load_scale":1`)
	l := answeredLeg(t, d, asked(t, d, body))
	node := l.NodeID()
	l.Finish(relay.Complete)
	if got := d.where.Index.Len(); got != 100 {
		t.Errorf("%d blocks are in the index, want 100", got)
	}
	if e, err := d.Explain(asked(t, d, body), Question{}); err != nil || e.Winner != node {
		t.Errorf("its prefix does not count: %+v, %v", e, err)
	}
	decide(t, d, `{"mode":"cost"}`)
	l = answeredLeg(t, d, asked(t, d, overridden(6400, `"overlap_score_weight":0,"assume_kv_reuse":false`)))
	if l.prompt.Found() {
		t.Error("a prefix without worth was looked up")
	}
	l.Finish(relay.Complete)
}

// TestPolicyChangesWhileALegRuns checks that a leg keeps to what its first policy says of prefixes.
func TestPolicyChangesWhileALegRuns(t *testing.T) {
	for name, c := range map[string]struct {
		before, after string
		recorded      int
	}{
		"no worth any more": {`{}`, worthless["score"], 100},
		"a worth":           {worthless["score"], `{"mode":"cost"}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			d := still(t, Options{}, twoNodes()...)
			decide(t, d, c.before)
			l := d.Leg(asked(t, d, chat(6400)), Question{}, nil)
			if _, err := l.first(); err != nil {
				t.Fatal(err)
			}
			l.drop(l.spare())
			decide(t, d, c.after)
			if _, err := l.choose(time.Now()); err != nil {
				t.Fatal(err)
			}
			a := l.spare()
			a.ref = a.member.rank.Ref()
			if l.records(a) {
				l.record(a)
			}
			if got := d.where.Index.Len(); got != c.recorded {
				t.Errorf("%d blocks are in the index, want %d", got, c.recorded)
			}
			node := a.member
			l.giveBack()
			if !node.rank.Book.Empty() {
				t.Error("the book is not empty")
			}
		})
	}
}

// TestWorthlessPrefixesTie checks that the session alone ties requests to a node if prefixes have
// no worth.
func TestWorthlessPrefixesTie(t *testing.T) {
	d := still(t, Options{}, twoNodes()...)
	decide(t, d, worthless["score"])
	winners := func(session string) map[string]bool {
		seen := map[string]bool{}
		for range 64 {
			r := asked(t, d, chat(6400))
			r.Session = []byte(session)
			e, err := d.Explain(r, Question{})
			if err != nil {
				t.Fatal(err)
			}
			seen[e.Winner] = true
		}
		return seen
	}
	if seen := winners(""); len(seen) != 2 {
		t.Errorf("one prompt goes to %v only", seen)
	}
	if seen := winners("mine"); len(seen) != 1 {
		t.Errorf("a session goes to %v", seen)
	}
}

// TestRehearsedPrefixesHaveNoWorth checks that a rehearsal looks up and records nothing either.
func TestRehearsedPrefixesHaveNoWorth(t *testing.T) {
	fleets := still(t, Options{}, twoNodes()...)
	decide(t, fleets, worthless["score"])
	models := stillFor(t, worthless["score"], twoNodes()...)
	for name, d := range map[string]*Dispatcher{"fleet": fleets, "model": models} {
		r := rehearse(t, d, 100)
		node := r.Node().Ranks()[0]
		if got := node.Book.Prefill(time.Now()); got != 1600 {
			t.Errorf("%s: %d tokens wait, want 1600", name, got)
		}
		r.Begun(time.Now())
		r.Finish(reported(1600, 0), time.Now())
		if d.where.Index.Len() != 0 || !node.Book.Empty() {
			t.Errorf("%s: %d blocks are in the index", name, d.where.Index.Len())
		}
	}
}

func TestWorthlessPrefixesDoNotAllocate(t *testing.T) {
	d := start(t, 4)
	r, l := request.New(), newLeg()
	for name, doc := range worthless {
		decide(t, d, doc)
		if least := allocations(t, d, r, l, chat(220<<10)); least != 0 {
			t.Errorf("%s: %v allocations", name, least)
		}
	}
	decide(t, d, `{}`)
	decideFor(t, d, worthless["score"])
	if least := allocations(t, d, r, l, chat(220<<10)); least != 0 {
		t.Errorf("of the model: %v allocations", least)
	}
}
