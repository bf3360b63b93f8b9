package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/lora"
)

// problemsOf returns the problems of a snapshot as "SUBJECT: REASON".
func problemsOf(s *Snapshot) (all []string) {
	for _, p := range s.Problems {
		all = append(all, p.Subject+": "+p.Reason)
	}
	slices.Sort(all)
	return all
}

// TestAliasOfSeveralModels: of several models with one alias, one with nodes gets it before one
// without, then the first by name. A base may be named by such an alias.
func TestAliasOfSeveralModels(t *testing.T) {
	confined := map[cluster.Role][]string{cluster.RoleBoth: {"gone"}}
	for name, c := range map[string]struct {
		models   map[string]*cluster.Model
		owner    string
		problems string
	}{
		"nodes before the name": {map[string]*cluster.Model{"aaa": {Aliases: []string{"gpt"}},
			"m": {Aliases: []string{"gpt"}}}, "m", "model aaa: alias gpt is taken by model m"},
		"both with nodes": {map[string]*cluster.Model{"m": {Aliases: []string{"gpt"}},
			"l": {Aliases: []string{"gpt"}}}, "l", "model m: alias gpt is taken by model l"},
		"both without": {map[string]*cluster.Model{"y": {Aliases: []string{"gpt"}},
			"x": {Aliases: []string{"gpt"}}}, "x", "model y: alias gpt is taken by model x"},
		"no node by its pools": {map[string]*cluster.Model{"l": {Aliases: []string{"gpt"}, Pools: confined},
			"m": {Aliases: []string{"gpt"}}}, "m", "model l: alias gpt is taken by model m"},
		"nodes of a base": {map[string]*cluster.Model{"b": {Aliases: []string{"gpt"}},
			"c": {Aliases: []string{"gpt"}, Base: "m"}}, "c", "model b: alias gpt is taken by model c"},
		"a name": {map[string]*cluster.Model{"m": {Aliases: []string{"l"}}}, "", "model m: alias l is taken by model l"},
	} {
		s := build([]*Node{testNode("a", 4, "m", "l")}, stored(c.models))
		if m := s.Model([]byte("gpt")); c.owner != "" && (m == nil || m.Name != c.owner) {
			t.Errorf("%s: gpt is %+v, want %s", name, m, c.owner)
		}
		if got := strings.Join(problemsOf(s), "; "); !strings.HasPrefix(got, c.problems) {
			t.Errorf("%s: problems %s", name, got)
		}
	}
	s := build([]*Node{testNode("a", 4, "m")}, stored(map[string]*cluster.Model{
		"aaa": {Aliases: []string{"gpt"}}, "m": {Aliases: []string{"gpt"}}, "x": {Base: "gpt"},
	}))
	if x := s.Model([]byte("x")); x.Base == nil || x.Base.Name != "m" || len(x.Nodes) != 1 {
		t.Errorf("the base of x is %+v", x.Base)
	}
}

// TestBaseIsNoAdapter: a base in the settings that is an adapter itself, by the settings or by its
// engines, does not count, and is a problem. A model that engines serve stays served.
func TestBaseIsNoAdapter(t *testing.T) {
	const itself = " is an adapter itself, and does not count; name a model that is none"
	listing := testNode("b", 4, "other", "lora")
	info := *listing.Info()
	info.Adapters = []lora.Adapter{{Name: "lora", Base: "other"}}
	listing.setInfo(&info)
	for name, c := range map[string]struct {
		models   map[string]*cluster.Model
		served   string // the models with nodes, adapters with a +
		problems []string
	}{
		"chain": {map[string]*cluster.Model{"x": {Base: "m"}, "y": {Base: "x"}}, "lora+ m other x+",
			[]string{"model y: its base x" + itself}},
		"cycle": {map[string]*cluster.Model{"x": {Base: "m"}, "m": {Base: "x"}}, "lora+ m other",
			[]string{"model m: its base x" + itself, "model x: its base m" + itself}},
		"by an alias": {map[string]*cluster.Model{"x": {Base: "m", Aliases: []string{"ax"}}, "y": {Base: "ax"}},
			"lora+ m other x+", []string{"model y: its base ax" + itself}},
		"an engine's adapter": {map[string]*cluster.Model{"y": {Base: "lora"}}, "lora+ m other",
			[]string{"model y: its base lora" + itself}},
		"a wrong base of an engine's adapter": {map[string]*cluster.Model{"x": {Base: "m"}, "lora": {Base: "x"}},
			"lora+ m other x+", []string{"model lora: its base x" + itself}},
		"its own alias": {map[string]*cluster.Model{"x": {Base: "ax", Aliases: []string{"ax"}}}, "lora+ m other",
			[]string{"model x: its base ax is no other model that is served here"}},
		"a base without nodes": {map[string]*cluster.Model{"x": {Base: "y"}, "y": {}}, "lora+ m other",
			[]string{"model x: its base y is no other model that is served here"}},
	} {
		s := build([]*Node{testNode("a", 4, "m"), listing, testNode("c", 4, "other")}, stored(c.models))
		var served []string
		for _, m := range s.models {
			if len(m.Nodes) > 0 && m.Adapter {
				served = append(served, m.Name+"+")
			} else if len(m.Nodes) > 0 {
				served = append(served, m.Name)
			}
		}
		if got := strings.Join(served, " "); got != c.served || !slices.Equal(problemsOf(s), c.problems) {
			t.Errorf("%s: served %s, problems %q", name, got, problemsOf(s))
		}
		if l := s.Model([]byte("lora")); l.Base == nil || l.Base.Name != "other" || len(l.Nodes) != 1 {
			t.Errorf("%s: the engine's adapter is %+v", name, l)
		}
	}
}

// TestPoolWithoutANode: the problem of a pool whose nodes are all unknown says what it costs.
func TestPoolWithoutANode(t *testing.T) {
	s := build([]*Node{testNode("a", 4, "m")}, stored(map[string]*cluster.Model{"m": {
		Pools: map[cluster.Role][]string{cluster.RoleBoth: {"b"}, cluster.RoleDecode: {"a", "c"}},
	}}))
	want := []string{
		"model m: its pool both names node b, which does not serve it now; until a node of the pool does, the model " +
			"has no node of this role",
		"model m: its pool decode names node c, which does not serve it now",
	}
	if got := problemsOf(s); !slices.Equal(got, want) {
		t.Errorf("problems %q", got)
	}
}

// TestNothingIsLeftOfRemovedSettings: a model that was only settings is unknown once they are
// removed, also an adapter that nodes of etcd have answered for. One that a node of etcd lists
// stays.
func TestNothingIsLeftOfRemovedSettings(t *testing.T) {
	f, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := node("n1", "http://127.0.0.1:1")
	f.update(f.addEtcd(&h), &h, time.Now())
	for name, value := range map[string]string{
		"x": `{"base":"m"}`, "y": `{"aliases":["a"]}`, "m": `{"aliases":["b"]}`,
	} {
		f.putModel(cluster.Entry{Key: cluster.ModelKey(name), Value: []byte(value)})
	}
	f.publish()
	known := func() (all string) {
		for _, m := range f.Load().Models() {
			all += fmt.Sprintf("%s:%d ", m.Name, len(m.Nodes))
		}
		return all
	}
	if got := known(); got != "m:1 x:1 y:0 " {
		t.Fatal(got)
	}
	for _, name := range []string{"x", "y", "m"} {
		f.deleteModel(cluster.ModelKey(name))
		f.publish()
	}
	if got := known(); got != "m:1 " || len(f.departed) > 0 {
		t.Errorf("left: %s, departed %v", got, f.departed)
	}
}
