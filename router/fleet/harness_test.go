package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/router/prefix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine answers health checks on a listener of its own.
type engine struct {
	*httptest.Server
	mu       sync.Mutex
	models   []string // nil: 404
	health   int
	metrics  string // empty: 404
	version  string // empty: 404
	owner    string // owned_by of the models; empty: vllm
	key      string // the key that Authorization must hold
	complete func(w http.ResponseWriter, r *http.Request)
	asked    map[string]int
}

func newEngine(t *testing.T, l net.Listener, models ...string) *engine {
	t.Helper()
	e := &engine{models: models, health: 200, asked: map[string]int{}}
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(e.serve))
	if l != nil {
		e.Listener.Close()
		e.Listener = l
	}
	e.Start()
	t.Cleanup(e.Close)
	return e
}

func (e *engine) set(f func(e *engine)) { e.mu.Lock(); defer e.mu.Unlock(); f(e) }

func (e *engine) count(path string) int { e.mu.Lock(); defer e.mu.Unlock(); return e.asked[path] }

func (e *engine) serve(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked[r.URL.Path]++
	switch {
	case e.key != "" && r.Header.Get("Authorization") != "Bearer "+e.key:
		w.WriteHeader(http.StatusUnauthorized)
	case r.URL.Path == "/health":
		w.WriteHeader(e.health)
	case r.URL.Path == "/v1/models" && e.models != nil:
		type model struct {
			ID      string `json:"id"`
			OwnedBy string `json:"owned_by"`
		}
		list := []model{}
		for _, m := range e.models {
			list = append(list, model{m, cmp.Or(e.owner, "vllm")})
		}
		json.NewEncoder(w).Encode(map[string]any{"object": "list", "data": list})
	case r.URL.Path == "/version" && e.version != "":
		io.WriteString(w, `{"version":"`+e.version+`"}`)
	case r.URL.Path == "/metrics" && e.metrics != "":
		io.WriteString(w, e.metrics)
	case r.URL.Path == "/v1/completions" && e.complete != nil:
		f := e.complete
		e.mu.Unlock()
		f(w, r)
		e.mu.Lock()
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// index counts the joins and the leaves.
type index struct {
	mu     sync.Mutex
	next   prefix.Ref
	joined map[prefix.Ref]string
}

func (x *index) Join(id string) prefix.Ref {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.next++
	if x.joined == nil {
		x.joined = map[prefix.Ref]string{}
	}
	x.joined[x.next] = id
	return x.next
}

func (x *index) Leave(r prefix.Ref) { x.mu.Lock(); defer x.mu.Unlock(); delete(x.joined, r) }

func (x *index) len() int { x.mu.Lock(); defer x.mu.Unlock(); return len(x.joined) }

// fast returns options with intervals short enough for a test.
func fast(backends ...Backend) Options {
	return Options{
		Backends: backends, Index: &index{}, ProbeInterval: 100 * time.Millisecond,
		ProbeIntervalDown: 20 * time.Millisecond,
		ProbeTimeout:      5 * time.Second, ModelsInterval: 50 * time.Millisecond,
		ResolveInterval: 20 * time.Millisecond,
		Logger:          slog.New(slog.DiscardHandler),
	}
}

// run starts a fleet and stops it at the end of the test.
func run(t *testing.T, o Options) *Fleet {
	t.Helper()
	f, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f
}

func eventually(t *testing.T, f *Fleet, what string, ok func(s *Snapshot) bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for ; !ok(f.Load()); <-look.C {
		if time.Now().After(deadline) {
			view, _ := json.MarshalIndent(f.Load().View(time.Now()), "", " ")
			t.Fatalf("never: %s; the fleet is %s", what, view)
		}
	}
}

// serves is true once the given number of the model's nodes may be picked.
func serves(model string, nodes int) func(s *Snapshot) bool {
	return func(s *Snapshot) bool {
		m, n := s.Model([]byte(model)), 0
		if m == nil {
			return nodes == 0
		}
		for _, node := range m.Nodes {
			if ok, _ := node.Eligible(time.Now()); ok {
				n++
			}
		}
		return n == nodes
	}
}

func listen(t *testing.T, network, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// names is a resolver under the test's control.
type names struct {
	mu    sync.Mutex
	addrs []string
	err   error
}

func (r *names) LookupNetIP(context.Context, string, string) (out []netip.Addr, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.addrs {
		out = append(out, netip.MustParseAddr(a))
	}
	return out, r.err
}

func (r *names) set(err error, addrs ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addrs, r.err = addrs, err
}
