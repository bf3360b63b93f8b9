package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/router/fleet"
)

// fleetState runs an etcd with one registered node, n1.
func fleetState(t *testing.T) map[string]string {
	s, err := etcdserver.Start(t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	client, err := cluster.Dial(cluster.Config{Endpoints: []string{s.Endpoint()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	health := func() cluster.Record {
		return &cluster.NodeHealth{
			NodeID: "n1", Address: "http://127.0.0.1:1", Models: []string{"m"}, Labels: []string{"gpu=h100", "zone=a"},
			Load: load.Load{Engine: load.Engine{InFlight: load.Known(0)}}, Ready: true,
		}
	}
	registrar := cluster.NewRegistrar(client, cluster.Registration{Heartbeat: 2 * time.Second, Health: health})
	go func() { done <- registrar.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	for deadline := time.Now().Add(time.Minute); ; {
		nodes, err := client.Nodes(t.Context())
		if err == nil && len(nodes) == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("n1 was not registered: %v, %v", nodes, err)
		}
	}
	return map[string]string{"CGN_ETCD": s.Endpoint()}
}

func TestCluster(t *testing.T) {
	env := fleetState(t)
	must := func(args ...string) string {
		t.Helper()
		out, err := ctl(t, env, append([]string{"cluster"}, args...)...)
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return out
	}
	ctltest.Want(t, must("nodes"), "n1", "ready", "http://127.0.0.1:1", "LEASE", "s left", "LABELS", "gpu=h100,zone=a")
	ctltest.Want(t, must("nodes", "-o", "json"), `"zone=a"`)
	number := strconv.FormatUint(fleet.NumberOf("n1"), 10)
	ctltest.Want(t, must("nodes"), "NUMBER", number)
	ctltest.Want(t, must("nodes", "-o", "json"), `"number": `+number)
	ctltest.Want(t, must("cordon", "n1", "--reason", "disk"), "n1 is cordoned")
	ctltest.Want(t, must("nodes", "-o", "json"), `"reason": "disk"`)
	ctltest.Want(t, must("nodes"), "cordoned: disk")
	ctltest.Want(t, must("cordon", "later", "--unregistered"), "later is cordoned (no agent has registered it")
	ctltest.Want(t, must("nodes"), "n1", "cordoned", "later", "not registered")
	ctltest.Want(t, must("uncordon", "later"), "later is open for requests")
	ctltest.Want(t, must("drain", "n1", "--wait", "60s"), "n1 is drained")
	ctltest.Want(t, must("drain", "n1", "--wait", "0"), "n1 is draining")
	ctltest.Want(t, must("uncordon", "n1"), "n1 is open for requests")
	ctltest.Want(t, must("uncordon", "n1"), "it was not cordoned in etcd")
	ctltest.Want(t, must("uncordon", "backend", "--unregistered"), "backend is open for requests")

	ctltest.Want(t, must("policy"), "default: none is stored")
	ctltest.Want(t, must("set-policy", `{"mode":"score","kv":0.6,"load":0.3,"power":0,"capacity":0.1}`), "0.6",
		"stored now")
	ctltest.Want(t, must("policy"), "0.6", "etcd")
	if _, err := ctl(t, env, "cluster", "set-policy", `{"kv":2,"lod":1}`); err == nil ||
		!strings.Contains(err.Error(), "was not stored") {
		t.Errorf("a bad policy: %v", err)
	}
	ctltest.Want(t, must("policy"), "0.6")
	for _, not := range []string{"", "[]", "null", "// a comment\n{}"} {
		if _, err := ctl(t, env, "cluster", "set-policy", not); err == nil ||
			!strings.Contains(err.Error(), "is not a JSON object, and there is no file of that name") {
			t.Errorf("%q: %v", not, err)
		}
	}
	ctltest.Want(t, must("set-policy", `{"mode":"cost","score":{"epsilon":0.5}}`), "without effect",
		"score.epsilon: no effect in mode cost")
	ctltest.Want(t, must("rm-policy"), "the policy is removed")
	ctltest.Want(t, must("policy"), "default: none is stored")
	ctltest.Want(t, must("rm-policy", "-o", "json"), `"removed": false`)
}

// TestLeaseThatIsNotTold: if etcd does not return a lease, its row says so, and the other nodes are
// listed.
func TestLeaseThatIsNotTold(t *testing.T) {
	client, err := cluster.Dial(cluster.Config{Endpoints: []string{fleetState(t)["CGN_ETCD"]}})
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := client.Nodes(t.Context())
	if err := errors.Join(err, client.Close()); err != nil {
		t.Fatal(err)
	}
	bad := errors.New("not JSON")
	for range 2 * leasesAtOnce {
		nodes = append(nodes, cluster.Node{ID: "more", Err: bad})
	}
	rows := rowsOf(t.Context(), client, nodes)
	if len(rows) != 1+2*leasesAtOnce || rows[0].ID != "n1" || rows[0].Health == nil ||
		!strings.Contains(rows[0].lease(), "etcd lease of node n1") {
		t.Errorf("%d rows, first %+v", len(rows), rows[0])
	}
	if last := rows[len(rows)-1]; last.ID != "more" || last.Error != bad.Error() {
		t.Errorf("last %+v", last)
	}
}

func TestUnknownNodeChangesNothing(t *testing.T) {
	env := fleetState(t)
	for _, command := range []string{"cordon", "uncordon", "drain"} {
		for id, hint := range map[string]string{"n2": "Did you mean n1?", "elsewhere": "", "a/b": ""} {
			out, err := ctl(t, env, "cluster", command, id, "-o", "json")
			if err == nil || out != "" || !strings.Contains(ctltest.Hint(err), hint) {
				t.Errorf("%s %s: %v, hint %q, output %q", command, id, err, ctltest.Hint(err), out)
			} else if id != "a/b" && !strings.Contains(err.Error(), "registered: n1") {
				t.Errorf("%s %s does not name the nodes: %v", command, id, err)
			}
		}
	}
	if out, err := ctl(t, env, "cluster", "nodes", "-o", "json"); err != nil || strings.Contains(out, "cordon") ||
		strings.Count(out, `"id"`) != 1 {
		t.Errorf("something was written: %v\n%s", err, out)
	}
}

func TestDrainWritesOneDocument(t *testing.T) {
	env := fleetState(t)
	out, err := ctl(t, env, "cluster", "drain", "n1", "--wait", "60s", "-o", "json")
	var c change
	if err := errors.Join(err, json.Unmarshal([]byte(out), &c)); err != nil || c.Node != "n1" || c.State != "drained" {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestEtcdThatDoesNotAnswer(t *testing.T) {
	_, err := ctl(t, nil, "cluster", "nodes", "--etcd", "127.0.0.1:1")
	if err == nil || !strings.Contains(err.Error(), "etcd does not answer at 127.0.0.1:1") ||
		!strings.Contains(ctltest.Hint(err), "--etcd") || !strings.Contains(ctltest.Hint(err), "cgn-ctl top") {
		t.Errorf("got %v, hint %q", err, ctltest.Hint(err))
	}
}

// TestEtcdWithoutTLS: a wrong use of TLS with etcd is not reported as an etcd that is down.
func TestEtcdWithoutTLS(t *testing.T) {
	dir := t.TempDir()
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	files := pki.FilesIn(dir, pki.Ctl)
	env := fleetState(t)
	_, err := ctl(t, env, "cluster", "nodes", "--etcd-ca", files.CA, "--etcd-cert", files.Cert, "--etcd-key", files.Key)
	if err == nil || !strings.Contains(err.Error(), "TLS with etcd at 127.0.0.1:") ||
		!strings.Contains(ctltest.Hint(err), "--etcd-ca") {
		t.Errorf("got %v, hint %q", err, ctltest.Hint(err))
	}
}

func TestEtcdIsFoundUnderEitherName(t *testing.T) {
	for _, name := range []string{"CGN_ETCD", "CGN_ETCD_ENDPOINTS"} {
		if _, err := ctl(t, map[string]string{name: "ftp://x:1"}, "cluster", "nodes"); err == nil ||
			!strings.Contains(err.Error(), "ftp://x:1") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ctl(t, map[string]string{"CGN_ETCD_KEY": "k"}, "cluster", "nodes"); err == nil ||
		!strings.Contains(err.Error(), "etcd.cert and etcd.key") {
		t.Errorf("%s: %v", "CGN_ETCD_KEY", err)
	}
}
