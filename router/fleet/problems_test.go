package fleet

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
)

func (f *Fleet) subjects() (all []string) {
	for _, p := range f.listProblems() {
		all = append(all, p.Subject)
	}
	return all
}

// still returns a fleet that runs no goroutine. The test handles the fleet's events; the fleet's
// log is discarded.
func still(t *testing.T, backends ...Backend) *Fleet {
	t.Helper()
	f, err := New(Options{Backends: backends, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestProblemsGoWithTheirSubject checks that a removed node, name or key has no problem left.
func TestProblemsGoWithTheirSubject(t *testing.T) {
	ctx := context.Background()
	r := &names{err: fmt.Errorf("no answer")}
	f := still(t, Backend{URL: "http://127.0.0.1:1", ID: "static"}, Backend{URL: "http://a.test:1"},
		Backend{URL: "http://b.test:1"})
	f.o.Resolver = r
	look := func(names ...string) {
		for _, name := range names {
			f.resolve(ctx, name)
		}
		f.drainEvents()
	}
	is := func(what string, want ...string) {
		t.Helper()
		if got := f.subjects(); !slices.Equal(got, want) {
			t.Errorf("%s: problems with %q, want %q", what, got, want)
		}
	}
	put := func(id, value string) { f.putNode(cluster.Entry{Key: cluster.NodeKey(id), Value: []byte(value)}) }

	f.members["static"].node.asker.found.Store(&discovery{asked: true})
	f.refresh(f.members["static"])
	look("a.test", "b.test")
	put("static", `{"node_id":"static","address":"http://127.0.0.1:2"}`)
	put("bad", "{")
	is("at first", "name a.test", "name b.test", "nodes/bad", "nodes/static", "static")

	list, err := prepare([]Backend{{URL: "http://a.test:1"}})
	if err != nil {
		t.Fatal(err)
	}
	f.setStatic(list)
	is("a shorter list", "name a.test", "nodes/bad")
	look("b.test") // the look-up was still running
	is("a late look-up", "name a.test", "nodes/bad")
	f.deleteNode(cluster.NodeKey("bad"))
	f.setStatic(nil)
	is("nothing")
	if len(f.static.resolved) > 0 {
		t.Errorf("addresses of no name: %v", f.static.resolved)
	}
}

// TestProblemsOfNodesThatLeaveEtcd checks that the problems of a node end whichever way its
// departure is noticed.
func TestProblemsOfNodesThatLeaveEtcd(t *testing.T) {
	f := still(t)
	h := node("n1", "http://127.0.0.1:1")
	f.update(f.addEtcd(&h), &h, time.Now())
	f.putNode(cluster.Entry{Key: cluster.NodeKey("n1"), Value: []byte("{")})
	if got := f.subjects(); !slices.Equal(got, []string{"nodes/n1"}) {
		t.Fatalf("%q", got)
	}
	f.listNodes(cluster.Listing{DataLost: true})
	f.o.Grace = -1
	f.sweepEtcd(f.members["n1"].missing)
	if got := f.subjects(); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

// TestAPlaceThatIsNone checks a heartbeat with an unusable address. The node serves without that
// address, and the problem stays until the agent names another address.
func TestAPlaceThatIsNone(t *testing.T) {
	f := still(t)
	put := func(place string) {
		f.putNode(cluster.Entry{Key: cluster.NodeKey("n"),
			Value: []byte(`{"node_id":"n","address":"http://127.0.0.1:1","models":["m"],"ready":true,"kv_address":"` +
				place + `"}`)})
	}
	put("http://gpu1:7000")
	m := f.members["n"]
	if m == nil || m.node.Info().KVAddress != "" {
		t.Fatalf("%+v", m)
	}
	if all := f.listProblems(); len(all) != 1 || all[0].Subject != "nodes/n" ||
		!strings.Contains(all[0].Reason, "kv_address") {
		t.Errorf("%+v", all)
	}
	put("gpu1:7000")
	if f.members["n"] != m || m.node.Info().KVAddress != "gpu1:7000" || len(f.problems) != 0 {
		t.Errorf("%+v, %v", m.node.Info(), f.problems)
	}
}

// TestAFullFleet checks that each refused node has one problem, until its key is gone.
func TestAFullFleet(t *testing.T) {
	var log strings.Builder
	f := still(t)
	f.o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	for i := range maxNodes {
		f.members[fmt.Sprint(i)] = &member{}
	}
	e := cluster.Entry{Key: cluster.NodeKey("n1"),
		Value: []byte(`{"node_id":"n1","address":"http://127.0.0.1:1","models":["m"],"role":"both"}`)}
	for range 3 {
		f.putNode(e)
	}
	if got := f.subjects(); !slices.Equal(got, []string{"nodes/n1"}) ||
		strings.Count(log.String(), "the fleet is full") != 1 {
		t.Errorf("%q, %s", got, log.String())
	}
	f.deleteNode(cluster.NodeKey("n1"))
	if got := f.subjects(); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

// TestReloadThatIsGivenUp checks that an abandoned Reload never comes into force.
func TestReloadThatIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := still(t, Backend{URL: "http://127.0.0.1:1", ID: "old"})
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- f.Reload(ctx, []Backend{{URL: "http://127.0.0.1:1", ID: "new"}}) }()
		synctest.Wait()
		cancel()
		if err := <-result; err != context.Canceled {
			t.Error(err)
		}
		f.drainEvents()
		if f.members["old"] == nil || f.members["new"] != nil {
			t.Error("it came into force afterwards")
		}
	})
}

// TestFilesAreReadWhenTheListIs checks that a change of a name's addresses reads no files. The
// files may be slow to read, or half written.
func TestFilesAreReadWhenTheListIs(t *testing.T) {
	key := write(t, "key", "sk-1")
	f := still(t, Backend{URL: "http://a.test:1", APIKeyFile: key})
	if err := os.Remove(key); err != nil {
		t.Fatal(err)
	}
	r := &names{}
	r.set(nil, "127.0.0.1")
	f.o.Resolver = r
	f.resolve(t.Context(), "a.test")
	f.drainEvents()
	m := f.members["a.test:1@127.0.0.1"]
	if m == nil || m.node.Pool.Target().Authorization != "Bearer sk-1" {
		t.Errorf("%v, problems with %q", m, f.subjects())
	}
}
