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
		"d": `{"base":"m","aliases":["d1"]}`, "e": `{"base":"x"}`,
		"p": `{"pools":{"prefill":["n3"],"decode":["n9","n2"],"both":["n1"]},"policy":{"mode":"none"}}`,
	} {
		put(t, etcd, cluster.ModelKey(name), value)
	}
	got := notes(t, env)
	if rest, ok := strings.CutPrefix(got["p"], "its policy is not valid: "); ok {
		_, got["p"], _ = strings.Cut(rest, "; ")
	}
	const unserved = "no node serves it, so nothing answers its aliases "
	same(t, got, map[string]string{
		"m": "", "b": "alias m is taken by model m; " + unserved + "b1,m",
		"c": "alias b1 is taken by model b; " + unserved + "b1", "d": "",
		"e": "no agent has registered a node with its base x",
		"p": "no agent has registered node n9 of its pool decode; node n3 of its pool prefill has role decode itself; " +
			"the pool counts; node n2 of its pool decode has role prefill itself; the pool counts",
	})
	out, err := ctl(t, env, "list")
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "its policy is not valid: ", "; no agent has registered node n9 of its pool decode")
}

// TestNotesOfARouter: the list shows the problems that the router has with a model.
func TestNotesOfARouter(t *testing.T) {
	url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/fleet": `{
		"nodes":[{"id":"n1","role":"prefill"},{"id":"n2","role":"both"}],
		"problems":[{"subject":"model m","reason":"its pool decode names node n9, which does not serve it now"},
			{"subject":"models/m","reason":"no JSON"},{"subject":"m","reason":"of a node"}],
		"models":[{"name":"m","nodes":["n1"],"settings":{"aliases":["a"],"pools":{"decode":["n1","n2","n9"]}},
			"tokenizer_error":"no /d"},{"name":"gone","nodes":[],"settings":{"aliases":["g"]}},{"name":"n","nodes":["n1"]}]}`})
	same(t, notes(t, map[string]string{"CGN_ADMIN": url, "CGN_ETCD": nobody}), map[string]string{
		"m": "no /d; its pool decode names node n9, which does not serve it now; no JSON; " +
			"node n1 of its pool decode has role prefill itself; the pool counts",
		"gone": "no node serves it, so nothing answers its aliases g", "n": "",
	})
}

// TestUnreadableNodes: what cannot be checked of stored settings is a warning, and no failure.
func TestUnreadableNodes(t *testing.T) {
	_, client := startEtcd(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var warnings bytes.Buffer
	m := &commands{App: &cli.App{Err: &warnings}}
	m.warnOfNodes(ctx, client, &cluster.Model{})
	if warnings.Len() > 0 {
		t.Errorf("warned without pools: %s", warnings.String())
	}
	stored := &cluster.Model{
		Aliases: []string{"n", "x"}, Pools: map[cluster.Role][]string{cluster.RoleDecode: {"n1"}},
		Policy: json.RawMessage(`{"mode":"none"}`),
	}
	m.warnOfNodes(ctx, client, stored)
	ctltest.Want(t, warnings.String(), "cgn-ctl: the nodes of pools are not checked, since the registered nodes cannot")
	r := row{Name: "m", Stored: stored}
	r.noteStored(m.registered(ctx, client), map[string]*row{"m": &r, "n": {Name: "n"}})
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
