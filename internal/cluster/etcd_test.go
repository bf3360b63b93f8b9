package cluster

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/internal/freeport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// etcd is a server that a test can stop and start again at the same address.
type etcd struct {
	t      *testing.T
	at     string
	server *etcdserver.Server
}

func startEtcd(t *testing.T) *etcd {
	t.Helper()
	e := &etcd{t: t, at: freeport.Address(t)}
	e.start(t.TempDir())
	t.Cleanup(func() {
		if e.server != nil {
			e.server.Close()
		}
	})
	return e
}

func (e *etcd) start(dir string) {
	e.t.Helper()
	server, err := etcdserver.Start(dir, e.at)
	if err != nil {
		e.t.Fatal(err)
	}
	e.server, e.at = server, server.Endpoint()
}

func (e *etcd) stop() {
	e.server.Close()
	e.server = nil
}

func (e *etcd) client() *Client {
	e.t.Helper()
	c, err := Dial(Config{Endpoints: []string{e.at}, RequestTimeout: 5 * time.Second})
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			e.t.Error(err)
		}
	})
	return c
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline, tick := time.After(time.Minute), time.Tick(5*time.Millisecond); !ok(); {
		select {
		case <-tick:
		case <-deadline:
			t.Fatal("never: " + what)
		}
	}
}

// seen records the calls of a watch.
type seen struct {
	mu      sync.Mutex
	values  map[string]string
	lists   []Listing
	lost    int
	deleted []string
}

func (s *seen) handler() Handler {
	s.values = map[string]string{}
	locked := func(f func()) { s.mu.Lock(); defer s.mu.Unlock(); f() }
	return Handler{
		List: func(l Listing) {
			locked(func() {
				s.lists = append(s.lists, l)
				clear(s.values)
				for _, e := range l.Entries {
					s.values[e.Key] = string(e.Value)
				}
			})
		},
		Put:    func(e Entry) { locked(func() { s.values[e.Key] = string(e.Value) }) },
		Delete: func(key string) { locked(func() { delete(s.values, key); s.deleted = append(s.deleted, key) }) },
		Lost:   func(error) { locked(func() { s.lost++ }) },
	}
}

func (s *seen) check(f func(s *seen) bool) func() bool {
	return func() bool { s.mu.Lock(); defer s.mu.Unlock(); return f(s) }
}

// background runs f until the test ends, and then waits for it.
func background(t *testing.T, f func(ctx context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	var once sync.Once
	var err error
	stop = func() error { once.Do(func() { cancel(); err = <-done }); return err }
	t.Cleanup(func() { _ = stop() })
	return stop
}

func TestWatchSurvivesOutageAndLossOfData(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	e := startEtcd(t)
	c := e.client()
	must(t, c.put(ctx, Root+"x/a", []byte("1")))
	var s seen
	h := s.handler()
	background(t, func(ctx context.Context) error { return c.Watch(ctx, Root+"x/", h) })
	eventually(t, "the listing", s.check(func(s *seen) bool { return s.values[Root+"x/a"] == "1" }))
	must(t, c.put(ctx, Root+"x/b", []byte("2")))
	must(t, c.put(ctx, Root+"y", []byte("3")))
	eventually(t, "a put", s.check(func(s *seen) bool { return s.values[Root+"x/b"] == "2" && len(s.values) == 2 }))
	if _, err := c.remove(ctx, Root+"x/a"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a delete", s.check(func(s *seen) bool { return len(s.values) == 1 }))

	e.stop()
	eventually(t, "the loss", s.check(func(s *seen) bool { return s.lost == 1 }))
	e.start(t.TempDir()) // with no data
	eventually(t, "the new listing", s.check(func(s *seen) bool { return len(s.lists) > 1 }))
	s.mu.Lock()
	if l := s.lists[len(s.lists)-1]; !l.AfterOutage || !l.DataLost || len(l.Entries) != 0 {
		t.Errorf("listing after the loss: %+v", l)
	}
	s.mu.Unlock()
	must(t, c.put(ctx, Root+"x/c", []byte("4")))
	eventually(t, "a put to the new etcd", s.check(func(s *seen) bool { return s.values[Root+"x/c"] == "4" }))
}

func TestWatchListsAgainAfterCompaction(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	e := startEtcd(t)
	c := e.client()
	w := &watch{client: c, prefix: Root, handler: (&seen{}).handler(), wait: retryFirst}
	must(t, w.list(ctx))
	for range 3 {
		must(t, c.put(ctx, Root+"a", []byte("x")))
	}
	resp, err := c.get(ctx, Root)
	must(t, err)
	_, err = c.etcd.Compact(ctx, resp.Header.Revision)
	must(t, err)
	w.rev-- // as if the listing were older than the compaction
	changes := c.etcd.Watch(ctx, w.prefix, watchFrom(w.rev)...)
	got, open := <-changes
	if err := watchError(got, open); !errors.Is(err, errRelist) {
		t.Fatalf("compacted watch says %v", err)
	}
}

func TestPolicyIsWatchedAndOutlivesAnEmptyEtcd(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	e := startEtcd(t)
	c := e.client()
	var mu sync.Mutex
	var docs []string
	background(t, func(ctx context.Context) error {
		return c.WatchPolicy(ctx, func(doc []byte) { mu.Lock(); defer mu.Unlock(); docs = append(docs, string(doc)) })
	})
	count := func(n int) func() bool { return func() bool { mu.Lock(); defer mu.Unlock(); return len(docs) >= n } }
	eventually(t, "no policy", count(1))
	must(t, c.PutPolicy(ctx, []byte(`{"kv":1}`)))
	for range 10 { // more than the new etcd has, although a put that timed out may count there too
		must(t, c.put(ctx, PolicyKey+"-other", []byte("x")))
	}
	eventually(t, "the policy", count(2))
	if doc, err := c.Policy(ctx); err != nil || string(doc) != `{"kv":1}` {
		t.Fatalf("%s %v", doc, err)
	}
	e.stop()
	e.start(t.TempDir())
	eventually(t, "a policy in the new etcd", func() bool {
		return c.PutPolicy(ctx, []byte(`{"kv":2}`)) == nil
	})
	eventually(t, "the new policy", count(3))
	for _, want := range []bool{true, false} {
		if was, err := c.RemovePolicy(ctx); err != nil || was != want {
			t.Fatalf("removed a policy: %v %v", was, err)
		}
	}
	eventually(t, "the removals", count(7))
	mu.Lock()
	defer mu.Unlock()
	if got := strings.Join(docs, "|"); got != `|{"kv":1}|{"kv":2}|{}||{}|` {
		t.Fatalf("policies seen: %s", got)
	}
}

func TestCordonsAndNodesAreListed(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	e := startEtcd(t)
	c := e.client()
	must(t, c.PutCordon(ctx, "n1", Cordon{Reason: "kernel", Drain: true}))
	cordons, err := c.Cordons(ctx)
	if err != nil || !cordons["n1"].Drain || cordons["n1"].Stamp == 0 {
		t.Fatalf("%+v %v", cordons, err)
	}
	if was, err := c.Uncordon(ctx, "n1"); err != nil || !was {
		t.Fatal(was, err)
	}
	if was, err := c.Uncordon(ctx, "n1"); err != nil || was {
		t.Fatal(was, err)
	}
	if err := c.PutCordon(ctx, "a/b", Cordon{}); err == nil {
		t.Fatal("cordoned a node that cannot exist")
	}
	must(t, c.PutModel(ctx, "org/m", Model{Aliases: []string{"x"}}))
	must(t, c.put(ctx, NodeKey("bad"), []byte("{")))
	list, err := c.Nodes(ctx)
	if err != nil || len(list) != 1 || list[0].Err == nil {
		t.Fatalf("%+v %v", list, err)
	}
	if left, ok, err := c.LeaseLeft(ctx, list[0]); left != 0 || ok || err != nil {
		t.Fatalf("a key without a lease has one of %v: %v", left, err)
	}
}

func TestWithoutEtcd(t *testing.T) {
	t.Parallel()
	c, err := Dial(Config{Endpoints: []string{"127.0.0.1:1"}, RequestTimeout: 100 * time.Millisecond})
	must(t, err)
	defer c.Close()
	if _, err := c.Policy(context.Background()); err == nil {
		t.Fatal("an answer from nobody")
	}
	if _, err := Dial(Config{}); err == nil {
		t.Fatal("dialled nothing")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
