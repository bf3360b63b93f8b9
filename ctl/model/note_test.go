package model

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/fleet"
)

// put stores a value in etcd as it is.
func put(t *testing.T, etcd *clientv3.Client, key, value string) {
	t.Helper()
	if _, err := etcd.Put(t.Context(), key, value); err != nil {
		t.Fatal(err)
	}
}

func dial(t *testing.T, endpoint string) *clientv3.Client {
	t.Helper()
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = etcd.Close() })
	return etcd
}

// register stores a node as its agent does.
func register(t *testing.T, etcd *clientv3.Client, id string, role cluster.Role, model string) {
	t.Helper()
	value, err := json.Marshal(cluster.NodeHealth{NodeID: id, Address: "http://127.0.0.1:1", Role: role,
		Models: []string{model}, Ready: true})
	if err != nil {
		t.Fatal(err)
	}
	put(t, etcd, cluster.NodeKey(id), string(value))
}

// notes returns the notes of each model in `model list -o json`.
func notes(t *testing.T, env map[string]string) map[string]string {
	t.Helper()
	out, err := ctl(t, env, "list", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for i := range rows {
		all[rows[i].Name] = strings.Join(rows[i].Notes, "; ")
	}
	return all
}

func same(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s: %q, want %q", name, got[name], want[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("notes of %v", got)
	}
}

// TestNotesWithoutARouter: the list names what cannot work of the settings in etcd, by what agents
// have registered there.
func TestNotesWithoutARouter(t *testing.T) {
	env, _ := startEtcd(t)
	etcd := dial(t, env["CGN_ETCD"])
	register(t, etcd, "n1", cluster.RoleBoth, "m")
	register(t, etcd, "n2", cluster.RolePrefill, "m")
	register(t, etcd, "n3", cluster.RoleDecode, "m")
	for name, value := range map[string]string{
		"m": `{"aliases":["a"],"pools":{"prefill":["n2","n1"],"decode":["n3"]},"policy":{"mode":"random"}}`,
		"b": `{"aliases":["b1","m"]}`, "c": `{"aliases":["b1"]}`,
		"d": `{"base":"m","aliases":["d1"]}`, "e": `{"base":"x"}`, "f": `{"base":"d"}`, "a1": `{"aliases":["a"]}`,
		"g": `{"base":"a"}`, "q": `{"pools":{"decode":["n7","n8"]}}`,
		"p": `{"pools":{"prefill":["n3"],"decode":["n9","n2"],"both":["n1"]},"policy":{"mode":"none"}}`,
	} {
		put(t, etcd, cluster.ModelKey(name), value)
	}
	got := notes(t, env)
	if rest, ok := strings.CutPrefix(got["p"], "its policy is not valid: "); ok {
		_, got["p"], _ = strings.Cut(rest, "; ")
	}
	const unserved = "no agent has registered a node that serves it"
	const unanswered = unserved + ", so nothing answers its aliases "
	same(t, got, map[string]string{
		"m": "", "b": "alias m is taken by model m; " + unanswered + "b1",
		"c": "alias b1 is taken by model b; " + unanswered + "b1", "d": "",
		"e": "no agent has registered a node with its base x",
		"f": "its base d is an adapter itself, and does not count; name a model that is none; " +
			"no agent has registered a node with its base d",
		"g":  "",
		"a1": "alias a is taken by model m; " + unserved,
		"q":  unserved + "; " + lonely("n7", "decode") + "; " + lonely("n8", "decode"),
		"p": unserved + "; no agent has registered node n9 of its pool decode; it counts once a router knows it; node n3 of its pool prefill has role decode itself; " +
			"the pool counts; node n2 of its pool decode has role prefill itself; the pool counts",
	})
	out, err := ctl(t, env, "list")
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "its policy is not valid: ", "; no agent has registered node n9 of its pool decode")
}

// lonely is the note of an unknown node in a pool without a known one.
func lonely(node, pool string) string {
	return "no agent has registered node " + node + " of its pool " + pool +
		"; until a router knows a node of the pool, the model has no node of this role"
}

// set runs `model set` and returns its warnings.
func set(t *testing.T, env map[string]string, args ...string) string {
	t.Helper()
	var out, warnings bytes.Buffer
	root := ctltest.Root(Command, &out, &warnings, func(name string) string { return env[name] })
	root.SetArgs(append([]string{"model", "set"}, args...))
	root.SetContext(t.Context())
	if err := root.Execute(); err != nil || !strings.Contains(out.String(), "stored for model "+args[0]) {
		t.Fatalf("%v: %v\n%s", args, err, out.String())
	}
	return warnings.String()
}

// TestSetWarns: set says what of the settings has no effect by what is known of the fleet, and
// which model loses an alias.
func TestSetWarns(t *testing.T) {
	env, _ := startEtcd(t)
	register(t, dial(t, env["CGN_ETCD"]), "n1", cluster.RoleBoth, "m")
	const unserved = "no agent has registered a node that serves it"
	for _, c := range []struct{ line, want string }{
		{"w --alias m", "cgn-ctl: model w: alias m is taken by model m\ncgn-ctl: model w: " + unserved + "\n"},
		{"m --alias a", ""}, {"m --pool both=n1", ""}, // m is its own name, and never was w's
		{"nope --policy {}", "cgn-ctl: model nope: " + unserved + "\n"},
		{"aaa --alias a", "cgn-ctl: model aaa: alias a is taken by model m\ncgn-ctl: model aaa: " + unserved + "\n"},
		{"b --alias m", "cgn-ctl: model b: alias m is taken by model m\ncgn-ctl: model b: " + unserved + "\n"},
		{"m --alias a", ""},
		{"b --alias m2", "cgn-ctl: model b: " + unserved + ", so nothing answers its aliases m2\n"},
		{"m --alias a --alias m2", "cgn-ctl: model m: it takes the alias m2 from model b\n"},
		{"m --alias m2 --alias a", ""},
		{"c --alias x", "cgn-ctl: model c: " + unserved + ", so nothing answers its aliases x\n"},
		{"x --base m", "cgn-ctl: model x: it takes the alias x from model c\n"},
		{"y --base gone", "cgn-ctl: model y: no agent has registered a node with its base gone\n"},
		{"m --pool both=n9", "cgn-ctl: model m: " + lonely("n9", "both") + "\n"},
		{"m --pool prefill=n1 --pool both=", "cgn-ctl: model m: " + fleet.PrefillOnly(true) + "\n"},
		{"m --pool decode=n1 --pool prefill=", ""},
		{"a --policy {}", "cgn-ctl: model a: " + unserved + "\n" +
			"cgn-ctl: model a: it takes the alias a from model aaa\ncgn-ctl: model a: it takes the alias a from model m\n"},
	} {
		if got := set(t, env, strings.Fields(c.line)...); got != c.want {
			t.Errorf("set %s warns\n%s, want\n%s", c.line, got, c.want)
		}
	}
}

// TestSetAsksTheRouter: set says, after it has stored them, which settings the router does not use
// and what problems it has with them, and nothing if all are used.
func TestSetAsksTheRouter(t *testing.T) {
	env, _ := startEtcd(t)
	url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/fleet": `{
		"nodes":[{"id":"n1","models":["m","x"]}],
		"problems":[{"subject":"model m","reason":"alias b is taken by model b"},
		{"subject":"model c","reason":"alias x is taken by model x"},
		{"subject":"model x","reason":"its base y is an adapter itself, and does not count"}],
		"models":[{"name":"m","nodes":["n1"],"settings":{"aliases":["a","b"],"adapter_load_s":3,
			"policy":{"mode": "random"}}},
			{"name":"x","nodes":["n1"],"settings":{}},{"name":"c","nodes":[],"settings":{"aliases":["x"]}}]}`})
	env["CGN_ADMIN"] = url
	other := func(names, why string) string {
		return "the router at " + url + " does not use " + names + " of etcd: " + why + "it follows no etcd or " +
			"another one (cgn-router --etcd)\n"
	}
	const ours = "its own [[model]] comes first, or "
	const taken = "cgn-ctl: model m: alias b is taken by model b\n"
	for _, c := range [][2]string{
		{"m --alias a --alias b", taken},
		{`m --policy {"mode":"random"}`, taken},
		{"m --alias a --tokenizer none", taken + "cgn-ctl: model m: " + other("aliases, tokenizer", ours)},
		{"x --base y", "cgn-ctl: model x: its base y is an adapter itself, and does not count\n"},
		{"new --alias n", "cgn-ctl: model new: no agent has registered a node that serves it, so nothing answers its " +
			"aliases n\ncgn-ctl: model new: " + other("aliases", "")},
	} {
		if got := set(t, env, strings.Fields(c[0])...); got != c[1] {
			t.Errorf("set %s warns\n%s, want\n%s", c[0], got, c[1])
		}
	}
	want := "alias b is taken by model b; " + strings.TrimSpace(other("aliases, tokenizer", ours))
	if got := notes(t, env)["m"]; got != want {
		t.Errorf("noted %s", got)
	}
}

// TestSetRefusesChainsOfAdapters: no base is an adapter itself, as far as etcd says.
func TestSetRefusesChainsOfAdapters(t *testing.T) {
	env, client := startEtcd(t)
	for _, line := range []string{"x --base m --alias ax", "m --alias am", "z --base am"} {
		set(t, env, strings.Fields(line)...)
	}
	for line, want := range map[string]string{
		"y --base x":  "--base x is an adapter itself, of m|cgn-ctl model set x --unset base",
		"y --base ax": "--base ax is an adapter itself, of m|cgn-ctl model set x --unset base",
		"m --base x":  "--base x is an adapter itself, of m|",
		"m --base n":  "--base n: model m is the base of x|cgn-ctl model set x --unset base",
	} {
		text, hint, _ := strings.Cut(want, "|")
		_, err := ctl(t, env, append([]string{"set"}, strings.Fields(line)...)...)
		if err == nil || !strings.HasPrefix(err.Error(), "nothing was stored: "+text) ||
			!strings.Contains(ctltest.Hint(err), hint) {
			t.Errorf("%s: %v, hint %q", line, err, ctltest.Hint(err))
		}
	}
	set(t, env, "x", "--base", "n") // another base
	if all, err := client.Models(t.Context()); err != nil || len(all) != 3 || all[0].Model.Base != "" {
		t.Errorf("stored %+v %v", all, err)
	}
	_, err := ctl(t, env, "set", "m", "--base", "n")
	if err == nil || !strings.Contains(err.Error(), "is the base of z") {
		t.Errorf("m is the base of z by its alias: %v", err)
	}
}

// TestSetRefusesCascadesOfCascades: a model of a chain has no chain, as far as etcd says.
func TestSetRefusesCascadesOfCascades(t *testing.T) {
	env, client := startEtcd(t)
	set(t, env, "smart", "--cascade", "small,large", "--alias", "clever")
	for _, name := range []string{"smart", "clever"} {
		_, err := ctl(t, env, "set", "other", "--cascade", "small,"+name)
		if want := "nothing was stored: --cascade names " + name + ", which has a cascade itself"; err == nil ||
			!strings.HasPrefix(err.Error(), want) || !strings.Contains(ctltest.Hint(err), "set smart --unset cascade") {
			t.Errorf("%s: %v, hint %q", name, err, ctltest.Hint(err))
		}
	}
	set(t, env, "smart", "--cascade", "small,smart") // the model itself may be one of them
	if all, err := client.Models(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("stored %+v %v", all, err)
	}
}

// TestNotesOfARouter: the list shows the problems that the router has with a model.
func TestNotesOfARouter(t *testing.T) {
	url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/fleet": `{
		"nodes":[{"id":"n1","role":"prefill"},{"id":"n2","role":"both"}],
		"problems":[{"subject":"model m","reason":"its pool decode names node n9, which does not serve it now"},
			{"subject":"models/m","reason":"no JSON"},{"subject":"m","reason":"of a node"}],
		"models":[{"name":"m","aliases":["a"],"nodes":["n1"],"settings":{"aliases":["a"],
			"pools":{"decode":["n1","n2","n9"]}},"tokenizer_error":"no /d"},{"name":"n","nodes":["n1"],
			"settings":{"policy":{"mode":"cost","score":{"epsilon":0.5}}}},
			{"name":"gone","nodes":[],"settings":{"aliases":["a","g","n"]}},
			{"name":"taken","nodes":[],"settings":{"aliases":["a"]}}]}`})
	same(t, notes(t, map[string]string{"CGN_ADMIN": url, "CGN_ETCD": nobody}), map[string]string{
		"m": "no /d; its pool decode names node n9, which does not serve it now; no JSON; " +
			"node n1 of its pool decode has role prefill itself; the pool counts",
		"gone": "no node serves it, so nothing answers its aliases g", "taken": "no node serves it",
		"n": "in its policy, score.epsilon: no effect in mode cost",
	})
}

// TestUnreadableNodes: what cannot be checked of stored settings is a warning, and no failure.
func TestUnreadableNodes(t *testing.T) {
	_, client := startEtcd(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var warnings bytes.Buffer
	m := &commands{App: &cli.App{Err: &warnings}}
	stored := &cluster.Model{
		Aliases: []string{"n", "x"}, Pools: map[cluster.Role][]string{cluster.RoleDecode: {"n1"}},
		Policy: json.RawMessage(`{"mode":"none"}`),
	}
	if got := m.notesOf(ctx, client, "m", stored, nil); len(got) != 1 || !strings.Contains(got[0], "cannot be read") {
		t.Errorf("noted %q", got)
	}
	r := row{Name: "m", Stored: stored}
	r.noteStored(m.registered(ctx, client), map[string]*row{"m": &r, "n": {Name: "n"}})
	ctltest.Want(t, warnings.String(), "cgn-ctl: the nodes of pools are not checked, since the registered nodes cannot")
	if len(r.Notes) != 2 || !strings.HasPrefix(r.Notes[0], "its policy is not valid") ||
		r.Notes[1] != "alias n is taken by model n" {
		t.Errorf("noted %q", r.Notes)
	}
}

// TestFirstProblemOfPaths: of two wrong paths always the same is named.
func TestFirstProblemOfPaths(t *testing.T) {
	for range 20 {
		_, err := ctl(t, nil, "set", "m", "--chat-template", "t", "--tokenizer", "d")
		if err == nil || !strings.HasPrefix(err.Error(), `--tokenizer "d"`) {
			t.Fatal(err)
		}
	}
}
