package fleet

import (
	"context"
	"net/http"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/health"
)

func TestAChangedKeyKeepsTheNode(t *testing.T) {
	t.Parallel()
	e := newEngine(t, nil, "m")
	e.set(func(e *engine) { e.key = "sk-1" })
	key := write(t, "key", "sk-1")
	b := Backend{URL: e.URL, ID: "n", APIKeyFile: key}
	f := run(t, fast(b))
	eventually(t, f, "joined", serves("m", 1))
	n := f.Load().Node("n")
	ref := n.Ranks()[0].Ref()
	n.AcquireAlways()

	ask := func() int {
		t.Helper()
		ex, err := n.Pool.Send(&relay.Request{Method: http.MethodGet, Path: "/v1/models"}, time.Now().Add(time.Minute))
		if err == nil {
			defer ex.Close()
			err = ex.ReadHead(time.Now().Add(time.Minute))
		}
		if err != nil {
			t.Fatal(err)
		}
		return ex.Status()
	}
	if status := ask(); status != 200 {
		t.Fatal("with the first key:", status)
	}
	if err := os.WriteFile(key, []byte("sk-2"), 0o600); err != nil {
		t.Fatal(err)
	}
	e.set(func(e *engine) { e.key = "sk-2" })
	if err := f.Reload(context.Background(), []Backend{b}); err != nil {
		t.Fatal(err)
	}
	if s := f.Load(); s.Node("n") != n || !serves("m", 1)(s) || n.InFlight() != 1 || n.Ranks()[0].Ref() != ref {
		t.Fatalf("what was known of the node is gone: %+v", n.View(time.Now()))
	}
	if status := ask(); status != 200 {
		t.Fatal("with the second key:", status)
	}
	if idle, _ := n.Pool.Stats(); idle > 1 {
		t.Errorf("%d idle connections, those with the old key among them", idle)
	}
	listed := e.count("/v1/models")
	eventually(t, f, "checked with the second key", func(*Snapshot) bool { return e.count("/v1/models") > listed })
	if why := n.Health.LastError(); why != "" || n.Health.State() != health.Healthy {
		t.Errorf("%v: %s", n.Health.State(), why)
	}

	if err := f.Reload(context.Background(), []Backend{{URL: e.URL + "/elsewhere", ID: "n", APIKeyFile: key}}); err !=
		nil {
		t.Fatal(err)
	}
	if other := f.Load().Node("n"); other == n || other.InFlight() != 0 {
		t.Error("another URL is another node")
	}
	n.Release()
}

// TestChangedLabelsKeepTheNode checks that new labels and experts of a backend count at once, on
// the same node.
func TestChangedLabelsKeepTheNode(t *testing.T) {
	t.Parallel()
	e := newEngine(t, nil, "m")
	b := Backend{URL: e.URL, ID: "n", Labels: []string{"zone=a"}, Experts: []string{"0-7"}}
	f := run(t, fast(b))
	eventually(t, f, "joined", serves("m", 1))
	n, rev := f.Load().Node("n"), f.Load().Rev
	if v := f.Load().View(time.Now()).Nodes[0]; !slices.Equal(v.Labels, b.Labels) ||
		!slices.Equal(v.Experts, b.Experts) {
		t.Errorf("the view has labels %q and experts %q", v.Labels, v.Experts)
	}
	b.Labels, b.Experts = []string{"zone=b", "fast"}, []string{"8-15"}
	if err := f.Reload(context.Background(), []Backend{b}); err != nil {
		t.Fatal(err)
	}
	if s := f.Load(); s.Node("n") != n || s.Rev == rev || !slices.Equal(n.Info().Labels, b.Labels) ||
		!slices.Equal(n.Info().Experts, b.Experts) {
		t.Errorf("the labels are %q, the experts %q", n.Info().Labels, n.Info().Experts)
	}
}

func TestASnapshotIsPartialUntilEverybodyHasSpoken(t *testing.T) {
	t.Parallel()
	l := listen(t, "tcp", "127.0.0.1:0")
	addr := l.Addr().String()
	l.Close()
	e := newEngine(t, nil, "m")
	f := run(t, fast(Backend{URL: e.URL}, Backend{URL: "http://" + addr}, Backend{URL: "http://" + addr + "/named",
		ID: "named", Model: "x"}))
	eventually(t, f, "one has spoken", serves("m", 1))
	if !f.Load().Partial {
		t.Error("complete, although a backend was never reached")
	}
	late := newEngine(t, listen(t, "tcp", addr), "late")
	eventually(t, f, "both have", func(s *Snapshot) bool { return serves("late", 1)(s) && !s.Partial })
	late.Close()
	eventually(t, f, "one is gone again", serves("late", 0))
	if s := f.Load(); s.Partial || s.Model([]byte("late")) == nil {
		t.Error("what the backend once said is forgotten")
	}
}

func TestDepartedModelsStayKnownForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		h := node("n1", "http://127.0.0.1:1")
		f.update(f.addEtcd(&h), &h, time.Now())
		f.publish()
		if m := f.Load().Sole(); m == nil || m.Name != "m" {
			t.Fatal("not served")
		}
		f.deleteNode(cluster.NodesPrefix + "n1")
		f.publish()
		if m := f.Load().Model([]byte("m")); m == nil || len(m.Nodes) > 0 || f.Load().Sole() != m {
			t.Fatalf("forgotten at once: %+v", m)
		}
		time.Sleep(modelMemory)
		if f.sweepDeparted(time.Now()); !f.dirty {
			t.Fatal("nothing happened when its time was over")
		}
		f.publish()
		if f.Load().Model([]byte("m")) != nil || len(f.departed) > 0 {
			t.Error("remembered for ever")
		}
	})
}
