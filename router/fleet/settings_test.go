package fleet

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/lora"
	"github.com/cognitora/dataplane/router/policy"
)

// stored returns the settings of a fleet whose models have these settings in etcd.
func stored(models map[string]*cluster.Model) *settings {
	return &settings{stored: models, inForce: models}
}

// role returns a node of a role that serves the models.
func role(id string, r cluster.Role, models ...string) *Node {
	n := testNode(id, 4, models...)
	info := *n.Info()
	info.Role = r
	n.setInfo(&info)
	return n
}

// TestPools: a role with a list has exactly these nodes, and a role without one has the nodes that
// say so themselves and are in no list.
func TestPools(t *testing.T) {
	all := []*Node{
		role("a", cluster.RoleBoth, "m"), role("b", cluster.RoleBoth, "m"), role("c", cluster.RolePrefill, "m"),
		role("d", cluster.RoleDecode, "m"), role("other", cluster.RoleBoth, "x"),
	}
	for name, c := range map[string]struct {
		pools         map[cluster.Role][]string
		nodes         string
		prefill, a, c string // prefill nodes; roles of a and c
		problems      int
	}{
		"none":           {nil, "a b d", "c", "both", "prefill", 0},
		"one role":       {map[cluster.Role][]string{"prefill": {"a"}}, "b d", "a", "prefill", "prefill", 0},
		"another role":   {map[cluster.Role][]string{"decode": {"c", "a"}}, "a b c", "", "decode", "decode", 0},
		"confined":       {map[cluster.Role][]string{"both": {"b"}}, "b d", "c", "both", "prefill", 0},
		"an empty list":  {map[cluster.Role][]string{"both": {}}, "a b d", "c", "both", "prefill", 0},
		"not in fleet":   {map[cluster.Role][]string{"decode": {"gone", "d"}}, "a b d", "c", "both", "prefill", 1},
		"another's node": {map[cluster.Role][]string{"decode": {"other", "d"}}, "a b d", "c", "both", "prefill", 1},
	} {
		s := build(slices.Clone(all), stored(map[string]*cluster.Model{"m": {Pools: c.pools}}))
		m := s.Model([]byte("m"))
		if got := strings.Join(ids(m.Nodes), " "); got != c.nodes {
			t.Errorf("%s: answers from %q, want %q", name, got, c.nodes)
		}
		if got := strings.Join(ids(m.Prefill), " "); got != c.prefill {
			t.Errorf("%s: prefill %q, want %q", name, got, c.prefill)
		}
		if a, b := m.Role(s.Node("a")), m.Role(s.Node("c")); string(a) != c.a || string(b) != c.c {
			t.Errorf("%s: a is %s and c is %s", name, a, b)
		}
		if len(s.Problems) != c.problems {
			t.Errorf("%s: problems %v", name, s.Problems)
		}
	}
}

// TestProblemsOfPoolsHaveAnOrder: the problems of a model's pools come in the order of the roles.
func TestProblemsOfPoolsHaveAnOrder(t *testing.T) {
	pools := map[cluster.Role][]string{
		cluster.RolePrefill: {"gone"}, cluster.RoleDecode: {"lost", "away"}, cluster.RoleBoth: {"else"},
	}
	for range 20 {
		s := build([]*Node{testNode("a", 4, "m")}, stored(map[string]*cluster.Model{"m": {Pools: pools}}))
		var named []string
		for _, p := range s.Problems {
			named = append(named, strings.Fields(p.Reason)[5])
		}
		if got := strings.Join(named, " "); got != "else, lost, away, gone," {
			t.Fatal(got)
		}
	}
}

// TestPoolsOfABase: an adapter that some nodes of its base list takes over the base's pools. A node
// of a pool is a problem only of the model that has the pool in its own settings.
func TestPoolsOfABase(t *testing.T) {
	a := testNode("a", 4, "sim", "sql")
	info := *a.Info()
	info.Adapters = []lora.Adapter{{Name: "sql", Base: "sim"}}
	a.setInfo(&info)
	nodes := []*Node{a, testNode("b", 4, "sim")}
	models := map[string]*cluster.Model{"sim": {Pools: map[cluster.Role][]string{"both": {"a", "b"}}}}
	s := build(slices.Clone(nodes), stored(models))
	if sql := s.Model([]byte("sql")); len(s.Problems) > 0 || strings.Join(ids(sql.Nodes), " ") != "a" ||
		sql.Settings == nil || len(sql.Settings.Pools) == 0 {
		t.Errorf("sql: %+v, problems %v", sql, s.Problems)
	}
	models["sql"] = &cluster.Model{Pools: map[cluster.Role][]string{"decode": {"a", "b"}}}
	if s = build(slices.Clone(nodes), stored(models)); len(s.Problems) != 1 || s.Problems[0].Subject != "model sql" ||
		!strings.Contains(s.Problems[0].Reason, "node b") {
		t.Errorf("problems of sql's own pool: %v", s.Problems)
	}
}

// TestPoolOfAPrefillNode: a node of role prefill that a pool lets answer is shown as one that does.
func TestPoolOfAPrefillNode(t *testing.T) {
	for pool, want := range map[cluster.Role]string{cluster.RoleDecode: "", cluster.RolePrefill: prefillUnused} {
		s := build([]*Node{role("p", cluster.RolePrefill, "m")}, stored(map[string]*cluster.Model{
			"m": {Pools: map[cluster.Role][]string{pool: {"p"}}},
		}))
		if got := s.View(time.Now()).Nodes[0].Reason; got != want {
			t.Errorf("in pool %s: %q, want %q", pool, got, want)
		}
	}
}

// TestBaseInTheSettings: an adapter that the settings name is served by all nodes of its base, and
// takes over the base's pools, policy and loading time where it has none.
func TestBaseInTheSettings(t *testing.T) {
	nodes := []*Node{testNode("a", 4, "m", "sql"), testNode("b", 4, "m"), role("p", cluster.RoleBoth, "m")}
	in := stored(map[string]*cluster.Model{
		"m":    {Aliases: []string{"big"}, AdapterLoadS: 20, Pools: map[cluster.Role][]string{"prefill": {"p"}}},
		"sql":  {Base: "m"},
		"fast": {Base: "big", AdapterLoadS: 1},
		"lost": {Base: "nobody"},
	})
	fleets, own := policy.Default(), policy.Default()
	in.policies = map[string]*policy.Policy{"m": fleets, "fast": own}
	s := build(nodes, in)
	m, sql, fast, lost := s.Model([]byte("m")), s.Model([]byte("sql")), s.Model([]byte("fast")), s.Model([]byte("lost"))
	if sql.Base != m || strings.Join(ids(sql.Nodes), " ") != "a b" || strings.Join(ids(sql.Prefill), " ") != "p" ||
		sql.Settings.AdapterLoadS != 20 || sql.Policy != fleets {
		t.Errorf("sql: %+v %+v", sql, sql.Settings)
	}
	if fast.Base != m || len(fast.Nodes) != 2 || fast.Settings.AdapterLoadS != 1 || fast.Policy != own {
		t.Errorf("fast: %+v %+v", fast, fast.Settings)
	}
	if m.Base != nil || m.Policy != fleets || in.inForce["sql"].AdapterLoadS != 0 {
		t.Errorf("the base: %+v, and sql's own settings are %+v", m, in.inForce["sql"])
	}
	if lost == nil || len(lost.Nodes) != 0 || lost.Base != nil || len(s.Problems) != 1 ||
		!strings.Contains(s.Problems[0].Reason, "nobody") {
		t.Errorf("lost: %+v, problems %v", lost, s.Problems)
	}
	if s.Sole() != m {
		t.Errorf("a request without a model goes to %+v", s.Sole())
	}
}

// TestOursComeBeforeTheStored: the router's configuration decides setting by setting, and etcd has
// the rest. A change of either is in force at once.
func TestOursComeBeforeTheStored(t *testing.T) {
	t.Parallel()
	eng := newEngine(t, nil, "m")
	o := fast(Backend{URL: eng.URL, ID: "n"})
	o.Models = map[string]*cluster.Model{"m": {Aliases: []string{"ours"}}, "unserved": {Aliases: []string{"x"}}}
	f := run(t, o)
	eventually(t, f, "the alias of the configuration", serves("ours", 1))
	if f.Load().Model([]byte("unserved")) != nil {
		t.Error("settings alone make a model known")
	}
	inForce := func(want string) {
		t.Helper()
		eventually(t, f, want, func(s *Snapshot) bool {
			got, _ := json.Marshal(s.Settings["m"])
			return string(got) == want
		})
	}
	put := func(name, value string) {
		f.send(t.Context(), func(f *Fleet) {
			f.putModel(cluster.Entry{Key: cluster.ModelKey(name), Value: []byte(value)})
		})
	}
	put("m", `{"aliases":["theirs"],"tokenizer":"/t","chat_template":"/c","adapter_load_s":3}`)
	inForce(`{"aliases":["ours"],"tokenizer":"/t","chat_template":"/c","adapter_load_s":3}`)
	if err := f.SetModels(t.Context(), map[string]*cluster.Model{"m": {Tokenizer: "/own"}}); err != nil {
		t.Fatal(err)
	}
	inForce(`{"aliases":["theirs"],"tokenizer":"/own","adapter_load_s":3}`)
	eventually(t, f, "the stored alias", serves("theirs", 1))
	f.send(t.Context(), func(f *Fleet) { f.deleteModel(cluster.ModelKey("m")) })
	inForce(`{"tokenizer":"/own"}`)
	eventually(t, f, "no alias", serves("theirs", 0))
}

// TestPolicyOfAModel: a usable document is in force until it is removed. A refused one changes
// nothing and is a problem.
func TestPolicyOfAModel(t *testing.T) {
	t.Parallel()
	eng := newEngine(t, nil, "m")
	o := fast(Backend{URL: eng.URL, ID: "n"})
	f := run(t, o)
	for i, c := range []struct {
		value    string
		maxQueue int
		problems int
	}{
		{`{}`, 0, 0}, {`{"policy":{"max_queue":2}}`, 2, 0}, {`{"policy":{"bad":1}}`, 2, 1},
		{`{"policy":{"bad":1},"aliases":["x"]}`, 2, 1}, {`{"policy":{"max_queue":7}}`, 7, 0}, {`{"policy":[]}`, 7, 1},
		{`{"policy":{"models":{}}}`, 7, 1}, {`{"aliases":["x"]}`, 0, 0},
	} {
		f.send(t.Context(), func(f *Fleet) {
			f.putModel(cluster.Entry{Key: cluster.ModelKey("m"), Value: []byte(c.value)})
		})
		eventually(t, f, fmt.Sprint(i, ": ", c.value), func(s *Snapshot) bool {
			m, got := s.Model([]byte("m")), 0
			if m == nil {
				return false
			}
			if m.Policy != nil {
				got = m.Policy.MaxQueue
			}
			return got == c.maxQueue && len(s.Problems) == c.problems
		})
	}
}

// TestChangedSettingsAreTold checks that Options.Settings is called once the snapshot has new
// settings of the configuration or of etcd, and not after other changes.
func TestChangedSettingsAreTold(t *testing.T) {
	t.Parallel()
	o := fast()
	o.Models = map[string]*cluster.Model{"m": {Aliases: []string{"first"}}}
	var f *Fleet
	var told []string
	o.Settings = func() { // the fleet's goroutine calls it, or New
		if f != nil {
			told = append(told, strings.Join(f.Load().Settings["m"].Aliases, ","))
		}
	}
	running := run(t, o)
	do := func(change func(*Fleet)) {
		t.Helper()
		if err := running.do(t.Context(), change); err != nil {
			t.Fatal(err)
		}
	}
	do(func(*Fleet) { f = running })
	stored := func(value string) func(*Fleet) {
		return func(f *Fleet) { f.putModel(cluster.Entry{Key: cluster.ModelKey("m"), Value: []byte(value)}) }
	}
	do(func(f *Fleet) { f.dirty = true })
	if err := running.SetModels(t.Context(), map[string]*cluster.Model{"m": {Base: "x"}}); err != nil {
		t.Fatal(err)
	}
	do(stored(`{"aliases":["second"]}`))
	do(func(f *Fleet) { f.dirty = true })
	do(func(*Fleet) {
		if want := []string{"", "second"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

// TestPoliciesAreTold checks that Options.Policies gets the models' own policies before the first
// snapshot and at each change: those of the configuration, those of etcd, and an adapter's base's.
func TestPoliciesAreTold(t *testing.T) {
	t.Parallel()
	eng := newEngine(t, nil, "m")
	o := fast(Backend{URL: eng.URL, ID: "n", Model: "m"})
	o.Models = map[string]*cluster.Model{
		"m": {Policy: []byte(`{"max_queue":1}`)}, "lazy": {Base: "m"}, "unserved": {Policy: []byte(`{}`)},
	}
	var told []string
	o.Policies = func(all map[string]*policy.Policy) { // the fleet's goroutine calls it
		text := ""
		for _, name := range slices.Sorted(maps.Keys(all)) {
			text += fmt.Sprintf("%s=%d ", name, all[name].MaxQueue)
		}
		told = append(told, text)
	}
	f := run(t, o)
	put := func(value string) {
		t.Helper()
		if err := f.do(t.Context(), func(f *Fleet) {
			f.putModel(cluster.Entry{Key: cluster.ModelKey("m"), Value: []byte(value)})
		}); err != nil {
			t.Fatal(err)
		}
	}
	set := func(models map[string]*cluster.Model) {
		t.Helper()
		if err := f.SetModels(t.Context(), models); err != nil {
			t.Fatal(err)
		}
	}
	set(o.Models) // the same
	put(`{"policy":{"max_queue":9}}`)
	set(map[string]*cluster.Model{"lazy": {Base: "m", Policy: []byte(`{"max_queue":2}`)}})
	put(`{"policy":{"max_queue":9},"aliases":["x"]}`)
	put(`{"policy":{"max_queue":3}}`)
	put(`{"policy":{"bad":1}}`)
	set(nil)
	put(`{}`)
	set(nil)
	want := []string{"lazy=1 m=1 ", "lazy=2 m=9 ", "lazy=2 m=3 ", "m=3 ", ""}
	if err := f.do(t.Context(), func(*Fleet) {
		if !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestOnlyPrefillNodes checks that a model with prefill nodes alone has a problem, and that the
// reason why the router is not ready names the pool.
func TestOnlyPrefillNodes(t *testing.T) {
	pool := func(pools map[cluster.Role][]string) *settings {
		return stored(map[string]*cluster.Model{"m": {Pools: pools}})
	}
	const none = ", and a prefill node answers nothing; the model has no node of role both or decode"
	for name, c := range map[string]struct {
		nodes    []*Node
		in       *settings
		problems string
		ready    string // part of the reason why the router is not ready; empty: it is ready
	}{
		"pool": {[]*Node{testNode("a", 4, "m"), testNode("b", 4, "m")},
			pool(map[cluster.Role][]string{"prefill": {"a", "b"}}),
			"model m: its nodes are all in its pool prefill" + none,
			"; b: it is in the pool prefill of model m, whose requests are answered by roles both and decode; model m: its"},
		"own role": {[]*Node{role("p", cluster.RolePrefill, "m")}, pool(nil),
			"model m: its nodes all have role prefill" + none, "; p: " + prefillUnused},
		"one answers": {[]*Node{testNode("a", 4, "m"), testNode("b", 4, "m")},
			pool(map[cluster.Role][]string{"prefill": {"a"}}), "", ""},
		"left out": {[]*Node{testNode("a", 4, "m")}, pool(map[cluster.Role][]string{"both": {"z"}}),
			"model m: its pool both names node z, which does not serve it now; until a node of the pool does, the model " +
				"has no node of this role", "; a: the pools of its models leave it out"},
	} {
		s := build(c.nodes, c.in)
		if got := strings.Join(problemsOf(s), "; "); got != c.problems {
			t.Errorf("%s: problems %s", name, got)
		}
		if ready, why := s.Ready(time.Now()); ready != (c.ready == "") || !strings.Contains(why, c.ready) {
			t.Errorf("%s: ready %t, %s", name, ready, why)
		}
	}
}
