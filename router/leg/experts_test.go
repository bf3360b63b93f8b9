package leg

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
)

// expertNodes returns backends with the given experts, named a, b and so on.
func expertNodes(experts ...cluster.Experts) (all []fleet.Backend) {
	for i, e := range experts {
		id := string(rune('a' + i))
		all = append(all, fleet.Backend{ID: id, Model: "sim", URL: "http://10.0.0." + fmt.Sprint(i+1), Experts: e})
	}
	return all
}

// asking returns the nvext of a request for experts, written as in JSON.
func asking(experts string, fallback bool) string {
	return fmt.Sprintf(`{"router":{"moe_query":{"experts":[%s],"fallback_to_unlabeled":%v}}}`, experts, fallback)
}

func TestHostedExperts(t *testing.T) {
	c := Constraints{Experts: []string{"3", "200", "code"}}
	for _, x := range []struct {
		node    cluster.Experts
		missing []string
	}{
		{nil, c.Experts}, {cluster.Experts{"4-199"}, c.Experts}, {cluster.Experts{"0-127", "code"}, []string{"200"}},
		{cluster.Experts{"0-255", "code"}, nil},
	} {
		want := float32(3-len(x.missing)) / 3
		if got := c.missingExperts(x.node); !slices.Equal(got, x.missing) || c.share(x.node) != want {
			t.Errorf("%v: %v missing, share %v", x.node, got, c.share(x.node))
		}
	}
	if got := new(Constraints).share(cluster.Experts{"1"}); got != 0 {
		t.Errorf("a request without experts has a share of %v", got)
	}
}

// TestStrictExperts checks that only nodes with all of the experts answer without the fallback, and
// that every node may answer with it.
func TestStrictExperts(t *testing.T) {
	d := still(t, Options{}, expertNodes(cluster.Experts{"0-127"}, cluster.Experts{"0-255"}, nil)...)
	for range 10 {
		l := wanted(t, d, withNvext(t, d, asking(`3,200`, false)))
		if at, err := l.first(); err != nil || l.pool.members[at].node.ID != "b" {
			t.Fatalf("place %d, %v", at, err)
		}
		l.giveBack()
	}
	if !counted(d, "experts", 10) {
		t.Error("not counted so")
	}
	for nvext, want := range map[string]string{
		asking(`3,200`, false): "a needs 200, c needs 3, 200",
		asking(`3`, false):     "c needs 3", asking(`3,200`, true): "",
		`{"router":{"moe_query":{"experts":[300]}}}`: "", `{}`: "",
	} {
		r := withNvext(t, d, nvext)
		q, fail := d.Wanted(r)
		if fail != nil {
			t.Fatal(fail)
		}
		e, fail := d.Explain(r, q)
		if fail != nil {
			t.Fatal(fail)
		}
		var out []string
		for _, c := range e.Candidates {
			if c.Filter == "experts" {
				missing, ok := strings.CutPrefix(c.Reason, "the request's experts must all be on its node, which lacks: ")
				if !ok {
					t.Errorf("%s: %s", nvext, c.Reason)
				}
				out = append(out, c.Node+" needs "+missing)
			}
		}
		if got := strings.Join(out, ", "); got != want {
			t.Errorf("%s leaves out: %s, want %s", nvext, got, want)
		}
	}
}

// TestNoNodeWithTheExperts checks that the error names the experts.
func TestNoNodeWithTheExperts(t *testing.T) {
	d := still(t, Options{}, expertNodes(cluster.Experts{"0-127"}, cluster.Experts{"0-255"}, nil)...)
	d.fleet.Load().Node("b").Health.SetAside("a test")
	many := make([]string, 20)
	for i := range many {
		many[i] = fmt.Sprint(500 + i)
	}
	for experts, want := range map[string]string{
		`3,200`: "(3, 200)", `"no such"`: "(no such)", strings.Join(many, ","): "514, 515 and 4 more)",
	} {
		l := wanted(t, d, withNvext(t, d, asking(experts, false)))
		if err := l.Do(); err == nil || err.Status != 503 || err.Code != "no_eligible_node" ||
			err.RetryAfterSeconds == 0 || !strings.Contains(err.Message, want) ||
			!strings.Contains(err.Message, "fallback_to_unlabeled") {
			t.Errorf("%s: %v", experts, err)
		}
		l.Finish(relay.UpstreamFailed)
	}
}

// TestExpertsRaiseTheOverlap explains a prompt that every node has cached. The node with the most
// of the experts wins in each mode that knows overlap.
func TestExpertsRaiseTheOverlap(t *testing.T) {
	d := still(t, Options{}, expertNodes(nil, cluster.Experts{"0-127"}, cluster.Experts{"0-255"})...)
	half := string(chat(4 << 10))
	whole := string(chat(12 << 10))
	remember(t, d, []byte(half), 3)
	ask := func(nvext string) *Explanation {
		r := asked(t, d, []byte(`{"nvext":`+nvext+","+whole[1:]))
		q, fail := d.Wanted(r)
		if fail != nil {
			t.Fatal(fail)
		}
		e, fail := d.Explain(r, q)
		if fail != nil {
			t.Fatal(fail)
		}
		return e
	}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-6 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	for _, mode := range []policy.Mode{policy.Score, policy.Cost} {
		p := *policy.Default()
		p.Mode = mode
		d.policy.Store(&p)
		plain, raised := ask(`{}`), ask(asking(`3,200`, true))
		if raised.Winner != "c" {
			t.Errorf("%v: %s wins, %s", mode, raised.Winner, raised.Why)
		}
		for i, hosted := range []int{0, 1, 2} {
			c, was := raised.Candidates[i], plain.Candidates[i]
			if c.ExpertsAsked != 2 || c.ExpertsHosted != hosted || was.ExpertsAsked != 0 || was.ExpertsHosted != 0 {
				t.Errorf("%v, %s hosts %d of %d", mode, c.Node, c.ExpertsHosted, c.ExpertsAsked)
			}
			if was.Coming == 0 || was.Coming*2 > was.Total || c.Coming != was.Coming {
				t.Fatalf("%d and %d of %d blocks", c.Coming, was.Coming, c.Total)
			}
			factor := 1 + float64(hosted)/2
			if mode == policy.Score {
				near("overlap of "+c.Node, c.Overlap, was.Overlap*factor)
				continue
			}
			near("credit of "+c.Node, c.Cost.Credit, was.Cost.Credit*factor)
			near("raise of "+c.Node, c.Cost.Experts, was.Cost.Credit*(factor-1))
			if strings.Contains(c.Formula, "expert_blocks") != (hosted > 0) {
				t.Error(c.Formula)
			}
		}
	}
}

// TestExpertsDoNotAllocate picks with strict experts.
func TestExpertsDoNotAllocate(t *testing.T) {
	d := still(t, Options{}, expertNodes(nil, cluster.Experts{"0-127", "200"})...)
	allocatesNothing(t, d, Constraints{Experts: []string{"3", "200"}, Strict: true})
}
