package leg

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
)

// ofKind is a node's role and connector.
type ofKind struct{ role, connector string }

// mixed returns a dispatcher in the mode over nodes a, b, c and so on, which hand prompts over from
// 200 tokens on.
func mixed(t *testing.T, mode policy.Mode, nodes ...ofKind) *Dispatcher {
	t.Helper()
	var all []fleet.Backend
	for i, n := range nodes {
		all = append(all, fleet.Backend{URL: fmt.Sprintf("http://10.0.0.%d:1", i+1), ID: string(rune('a' + i)),
			Model: "sim", Role: n.role, Connector: n.connector})
	}
	o := Options{MaxNodes: 2, Limits: Limits{FirstByte: time.Hour}, Disagg: Disagg{ColocateBelow: 200}}
	d := still(t, o, all...)
	p := policy.Default()
	p.Mode = mode
	d.policy.Store(p)
	return d
}

// TestNearestHasTheConnector checks that expected times are those of a node with the connector of
// the answering node.
func TestNearestHasTheConnector(t *testing.T) {
	d := mixed(t, policy.Predicted, ofKind{"prefill", "nixl"}, ofKind{"prefill", "nixl"}, ofKind{"prefill", "trtllm"},
		ofKind{"decode", "nixl"}, ofKind{"decode", "trtllm"}, ofKind{"decode", "mooncake"}, ofKind{"both", "nixl"})
	for _, m := range d.current().models["sim"].pools[Prefill].members {
		if m.node.ID != "g" {
			continue
		}
		for range 10 {
			m.rank.AcquireAlways() // so that it is not the nearest one
		}
	}
	l := d.Leg(asked(t, d, chat(8<<10)), Question{}, nil)
	defer l.giveBack()
	if err := l.start(); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	l.hand.prepare(now)
	for _, m := range l.pool.members {
		at := l.hand.nearest(m)
		want, got := map[string]string{"d": "a b", "e": "c", "g": "a b"}[m.node.ID], ""
		if at.node != nil {
			got = at.node.ID
		}
		via := l.hand.via(m) != policy.Via{}
		if !strings.Contains(want, got) || (got == "") != (want == "") || via != (want != "") {
			t.Errorf("%q would compute the prompt for %s, want %q", got, m.node.ID, want)
		}
	}
}

// TestNearestOfSeveral checks that the two cheapest nodes are kept, and each node once.
func TestNearestOfSeveral(t *testing.T) {
	nodes := map[string]*fleet.Node{"a": {}, "b": {}, "c": {}}
	for order, want := range map[string][2]string{
		"a1":             {"a", ""},
		"a1 b2 c3":       {"a", "b"},
		"c3 b2 a1":       {"a", "b"},
		"b2 c3 a1":       {"a", "b"},
		"a3 a2 a1":       {"a", ""},
		"a2 b3 a1":       {"a", "b"},
		"b2 a3 a1":       {"a", "b"},
		"a1 a2 b4 c3 b2": {"a", "b"},
	} {
		var n near
		for _, x := range strings.Fields(order) {
			n.add(nearNode{node: nodes[x[:1]], cost: float64(x[1])})
		}
		for i, id := range want {
			if n.nodes[i].node != nodes[id] {
				t.Errorf("%s: place %d is not of %q", order, i, id)
			}
		}
	}
}

// TestUnpaired checks that a node with which no other one pairs computes its prompts, without a
// failure, and that the explanation has the reason.
func TestUnpaired(t *testing.T) {
	nixl, trtllm := ofKind{"prefill", "nixl"}, ofKind{"prefill", "trtllm"}
	const (
		without = "the answering node has no connector"
		other   = "no other node that computes prompts hands blocks over by the answering node's connector, nixl"
		tokens  = "the other node would be of role both as the answering node is, and tokens do not tell whether that pays"
	)
	for _, mode := range []policy.Mode{policy.Score, policy.Predicted} {
		for name, c := range map[string]struct {
			nodes []ofKind
			why   string // "": the nodes pair in mode predicted
		}{
			"no connector":           {[]ofKind{nixl, {"decode", ""}}, without},
			"another connector":      {[]ofKind{trtllm, {"decode", "nixl"}}, other},
			"itself":                 {[]ofKind{trtllm, {"both", "nixl"}}, other},
			"two nodes of role both": {[]ofKind{{"both", "nixl"}, {"both", "nixl"}}, tokens},
		} {
			d := mixed(t, mode, c.nodes...)
			r := asked(t, d, chat(8<<10))
			e, fail := d.Explain(r, Question{})
			if fail != nil || e.Prefill == nil {
				t.Fatalf("%v, %s: %+v, %v", mode, name, e, fail)
			}
			l := d.Leg(r, Question{}, nil)
			if _, err := l.first(); err != nil {
				t.Fatal(err)
			}
			paired := mode == policy.Predicted && c.why == tokens
			if got := *e.Prefill; !paired && (got.Result != "unpaired" || got.Why != c.why || got.Pick != nil) ||
				paired && got.Result == "unpaired" || l.way.String() != got.Result || l.way == NoNode {
				t.Errorf("%v, %s: %+v, and the leg's way is %v", mode, name, got, l.way)
			}
			l.giveBack()
		}
	}
}

// TestAFailedHandOverIsNotPlannedAgain checks that the next pick after a hand-over that led to
// nothing expects nothing of one, unless a node cannot answer without.
func TestAFailedHandOverIsNotPlannedAgain(t *testing.T) {
	for _, with := range []string{"nixl", "sglang"} {
		for _, always := range []bool{false, true} {
			for _, w := range []Way{Over, Late, NoNode, Refused, Broken, Garbled, Unread} {
				d := mixed(t, policy.Predicted, ofKind{"prefill", with}, ofKind{"decode", with}, ofKind{"decode", with})
				d.o.Disagg.Always = always
				l := d.Leg(asked(t, d, chat(8<<10)), Question{}, nil)
				if _, err := l.first(); err != nil || l.hand.prefill == nil {
					t.Fatal(err)
				}
				l.drop(l.spare())
				l.hand.drop()
				l.way = w
				if _, err := l.choose(time.Now()); err != nil {
					t.Fatal(err)
				}
				h, needy := l.hand, with == "sglang"
				if a := l.spare(); a.split != needy || a.forecast.via && !needy || (h.prefill != nil) != needy ||
					(len(h.near) > 0) != needy || !needy && l.way != w {
					t.Errorf("%s, always %v, %v: split %v, via %v, near %v, way %v", with, always, w, a.split,
						a.forecast.via, h.near, l.way)
				}
				l.giveBack()
			}
		}
	}
}
