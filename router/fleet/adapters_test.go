package fleet

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/lora"
)

// told returns what a node says of each adapter: + loaded, - not loaded, ? unknown.
func told(n *Node, names ...string) (text string) {
	for _, name := range names {
		switch resident, known := n.AdapterResident(name); {
		case !known:
			text += "?"
		case resident:
			text += "+"
		default:
			text += "-"
		}
	}
	return text
}

// adapterEngine is an engine with adapters.
type adapterEngine struct{ models, metrics atomic.Value }

func (e *adapterEngine) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/v1/models":
		io.WriteString(w, e.models.Load().(string))
	case "/metrics":
		io.WriteString(w, e.metrics.Load().(string))
	}
}

// card is a model in an engine's list.
func card(id, parent string) string {
	if parent == "" {
		return fmt.Sprintf(`{"id":%q,"owned_by":"vllm","parent":null}`, id)
	}
	return fmt.Sprintf(`{"id":%q,"owned_by":"vllm","parent":%q}`, id, parent)
}

func (e *adapterEngine) list(cards ...string) {
	e.models.Store(`{"data":[` + strings.Join(cards, ",") + `]}`)
}

func (e *adapterEngine) ran(at int, adapters string) {
	e.metrics.Store(fmt.Sprintf("process_start_time_seconds 1\nvllm:lora_requests_info{max_lora=\"1\","+
		"running_lora_adapters=%q,waiting_lora_adapters=\"\"} %d\n", adapters, at))
}

func newAdapterEngine(t *testing.T) (e *adapterEngine, url string) {
	t.Helper()
	e = &adapterEngine{}
	e.list(card("tiny", ""), card("sql", "tiny"), card("chat", "tiny"))
	e.metrics.Store("process_start_time_seconds 1\n")
	s := httptest.NewServer(e)
	t.Cleanup(s.Close)
	return e, s.URL
}

// TestAdaptersOfAStaticNode: the engine's list and metrics say which adapters are loaded. A restart
// leaves none of them known.
func TestAdaptersOfAStaticNode(t *testing.T) {
	t.Parallel()
	e, url := newAdapterEngine(t)
	f := run(t, fast(Backend{URL: url, ID: "n"}))
	eventually(t, f, "the adapters", serves("chat", 1))
	n := f.Load().Node("n")
	is := func(what, want string) {
		t.Helper()
		eventually(t, f, what, func(*Snapshot) bool { return told(n, "tiny", "sql", "chat", "other") == want })
	}
	is("listed", "+??-")
	e.ran(100, "sql")
	is("one slot, and sql ran", "++--")
	n.UseAdapter("chat", time.Now())
	is("the router sends a request for chat", "+-+-")
	e.ran(101, "sql")
	is("sql ran again", "++--")
	n.UseAdapterBytes([]byte("chat"), time.Now())
	is("a KV event of chat", "+-+-")
	m := f.Load().Model([]byte("sql"))
	if !m.Adapter || m.Base == nil || m.Base.Name != "tiny" || f.Load().Sole().Name != "tiny" {
		t.Errorf("%+v", m)
	}
	if got := n.Info().Bases(); len(got) != 1 || got[0] != "tiny" {
		t.Errorf("base models %q", got)
	}
	view := n.View(time.Now())
	if fmt.Sprintf("%d %d %s %v %v %v", len(view.Adapters), view.AdapterSlots, view.Adapters[0].Name,
		*view.Adapters[0].Loaded, *view.Adapters[1].Loaded, view.Adapters[0].IdleMs != nil) !=
		"2 1 chat true false true" {
		t.Errorf("%+v", view.Adapters)
	}
	e.list(card("tiny", ""), card("chat", "tiny"))
	is("sql is unloaded", "+-+-")
	eventually(t, f, "and not served", serves("sql", 0))
	e.list(card("tiny", ""), card("sql", "tiny"), card("chat", "tiny"))
	is("and loaded again", "++--")
	e.metrics.Store("process_start_time_seconds 2\n")
	is("the engine has restarted", "+??-")
}

func TestAdapterResidentAllocatesNothing(t *testing.T) {
	n := testNode("n", 4, "tiny", "sql", "chat")
	n.takeAdapters(&cluster.NodeHealth{Engine: "vllm", AdapterSlots: 1,
		Adapters: []cluster.Adapter{{Name: "sql", Base: "tiny"}, {Name: "chat", Base: "tiny"}}}, time.Now())
	at := time.Now()
	if a := testing.AllocsPerRun(100, func() { n.AdapterResident("chat"); n.UseAdapter("sql", at) }); a != 0 {
		t.Errorf("%v allocations", a)
	}
}

// TestBackendOfOneAdapter: a backend may be configured to serve a single model. If that is an
// adapter, it is one though its base is not served.
func TestBackendOfOneAdapter(t *testing.T) {
	t.Parallel()
	_, url := newAdapterEngine(t)
	f := run(t, fast(Backend{URL: url, ID: "a", Model: "sql"}, Backend{URL: url + "/", ID: "b", Model: "own"}))
	eventually(t, f, "both", func(s *Snapshot) bool {
		sql, own := s.Model([]byte("sql")), s.Model([]byte("own"))
		return sql != nil && sql.Adapter && sql.Base == nil && own != nil && !own.Adapter &&
			told(s.Node("a"), "sql") == "?" && told(s.Node("b"), "own") == "+"
	})
}

// TestSoleModelBesideAnOrphan: a request without a model goes to the only base model, though an
// adapter is served whose base is not.
func TestSoleModelBesideAnOrphan(t *testing.T) {
	orphan := testNode("b", 4, "sql")
	info := *orphan.Info()
	info.Adapters = []lora.Adapter{{Name: "sql", Base: "/models/unknown"}}
	orphan.setInfo(&info)
	s := build([]*Node{testNode("a", 4, "m"), orphan}, stored(nil))
	if sql := s.Model([]byte("sql")); !sql.Adapter || sql.Base != nil || s.Sole() != s.Model([]byte("m")) {
		t.Errorf("the only model is %+v; sql is %+v", s.Sole(), sql)
	}
}

// TestAdaptersOfAHeartbeat: an agent tells which adapters its engine lists and when it used them.
// The router's own requests count too.
func TestAdaptersOfAHeartbeat(t *testing.T) {
	n := testNode("n", 4, "tiny", "sql", "chat")
	n.Source = Etcd
	f := &Fleet{o: Options{}.withDefaults()}
	f.etcd.init(true)
	m := &member{node: n}
	idle := func(ms int64) *int64 { return &ms }
	beat := func(slots int, adapters ...cluster.Adapter) {
		f.update(m, &cluster.NodeHealth{NodeID: "n", Engine: "vllm", Models: []string{"tiny", "sql", "chat"},
			Adapters: adapters, AdapterSlots: slots, Ready: true}, time.Now())
	}
	f.update(m, &cluster.NodeHealth{NodeID: "n", Engine: "vllm"}, time.Now()) // before the agent has asked the engine
	beat(2, cluster.Adapter{Name: "sql", Base: "tiny"}, cluster.Adapter{Name: "chat", Base: "tiny"},
		cluster.Adapter{Name: "third", Base: "tiny"})
	if got := told(n, "sql", "chat", "third"); got != "???" {
		t.Errorf("the first list tells nothing of a use: %s", got)
	}
	beat(1, cluster.Adapter{Name: "sql", Base: "tiny", IdleMs: idle(5000)}, cluster.Adapter{Name: "chat", Base: "tiny"})
	if got := told(n, "tiny", "sql", "chat", "other"); got != "++--" {
		t.Errorf("sql was used: %s", got)
	}
	n.UseAdapter("chat", time.Now())
	beat(1, cluster.Adapter{Name: "sql", Base: "tiny", IdleMs: idle(9000)}, cluster.Adapter{Name: "chat", Base: "tiny"})
	if got := told(n, "sql", "chat"); got != "-+" {
		t.Errorf("the router has sent a request for chat since: %s", got)
	}
	if got := n.Info().baseOf("sql"); got != "tiny" || n.Info().baseOf("tiny") != "" {
		t.Errorf("sql is an adapter of %q", got)
	}
	info := n.Info()
	beat(1, cluster.Adapter{Name: "sql", Base: "tiny", IdleMs: idle(0)}, cluster.Adapter{Name: "chat", Base: "tiny"})
	if n.Info() != info {
		t.Error("a use alone changes the node's facts")
	}
}

// TestBasesFollowTheFacts: the base of each of a node's models is that of the newest facts. An
// adapter that is not among the models has none, and of two with one name the first counts.
func TestBasesFollowTheFacts(t *testing.T) {
	n := testNode("n", 4, "tiny", "sql", "chat")
	if i := n.Info(); !i.serves("sql") || i.serves("other") || i.baseOf("sql") != "" {
		t.Error("sql is a model")
	}
	info := *n.Info()
	info.Adapters = []lora.Adapter{
		{Name: "sql", Base: "tiny"}, {Name: "sql", Base: "chat"}, {Name: "gone", Base: "tiny"},
	}
	if sameInfo(&info, n.Info()) {
		t.Error("other adapters are other facts")
	}
	n.setInfo(&info)
	i := n.Info()
	if i.serves("sql") || !i.serves("chat") || i.baseOf("sql") != "tiny" || i.baseOf("gone") != "" ||
		strings.Join(i.Bases(), " ") != "tiny chat" {
		t.Errorf("the bases are %v", i.bases)
	}
	if info.bases = nil; !sameInfo(&info, i) {
		t.Error("the same facts differ")
	}
}

// TestAUseAheadOfAHeartbeat: this host's clock was ahead when a request used an adapter. The use
// does not stay the latest.
func TestAUseAheadOfAHeartbeat(t *testing.T) {
	n := testNode("n", 4, "tiny", "sql", "chat")
	now, idle := time.Now(), int64(0)
	h := &cluster.NodeHealth{Engine: "vllm", AdapterSlots: 1, Models: []string{"tiny", "sql", "chat"},
		Adapters: []cluster.Adapter{{Name: "sql", Base: "tiny"}, {Name: "chat", Base: "tiny"}}}
	n.takeAdapters(h, now)
	n.UseAdapter("sql", now.Add(time.Hour))
	n.takeAdapters(h, now.Add(time.Second))
	h.Adapters[1].IdleMs = &idle
	n.takeAdapters(h, now.Add(2*time.Second))
	if got := told(n, "sql", "chat"); got != "-+" {
		t.Errorf("chat was used last: %s", got)
	}
}

// TestExpectedAdapters: an adapter with a base in the settings is expected on every node of the
// base, and loaded where a request was sent. An error takes that back.
func TestExpectedAdapters(t *testing.T) {
	t.Parallel()
	_, url := newAdapterEngine(t)
	o := fast(Backend{URL: url, ID: "n"})
	o.ModelsInterval = time.Hour
	o.Models = map[string]*cluster.Model{"lazy": {Base: "tiny"}}
	f := run(t, o)
	eventually(t, f, "the adapter", serves("lazy", 1))
	n := f.Load().Node("n")
	if got := told(n, "lazy"); got != "-" {
		t.Errorf("before its first request: %s", got)
	}
	at := time.Now()
	n.UseAdapter("lazy", at)
	if got := told(n, "lazy"); got != "+" {
		t.Errorf("after its first request: %s", got)
	}
	if v := n.View(time.Now()); len(v.Adapters) != 3 {
		t.Errorf("%+v", v.Adapters)
	}
	n.UnuseAdapter("lazy", at)
	if got := told(n, "lazy"); got != "-" {
		t.Errorf("after an error: %s", got)
	}
	if err := f.SetModels(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	n.UseAdapter("lazy", at)
	if got := told(n, "lazy"); got != "-" {
		t.Errorf("when it is expected no more: %s", got)
	}
}

// TestAdaptersShareTheListsOfTheirBase: an adapter with the nodes of its base has the same lists,
// and pools of its own give it other ones. Every node expects the adapters that its engine does not
// list.
func TestAdaptersShareTheListsOfTheirBase(t *testing.T) {
	nodes := []*Node{testNode("a", 4, "m", "listed"), testNode("b", 4, "m"), role("p", cluster.RolePrefill, "m")}
	s := build(nodes, stored(map[string]*cluster.Model{
		"lazy": {Base: "m"}, "listed": {Base: "m"}, "own": {Base: "m", Pools: map[cluster.Role][]string{"both": {"b"}}},
	}))
	s.expectAdapters()
	m, lazy, own := s.Model([]byte("m")), s.Model([]byte("lazy")), s.Model([]byte("own"))
	if !sameList(lazy.Nodes, m.Nodes) || !sameList(lazy.Prefill, m.Prefill) || len(m.Nodes) != 2 ||
		len(m.Prefill) != 1 {
		t.Errorf("the base has %q and %q, the adapter %q and %q", ids(m.Nodes), ids(m.Prefill), ids(lazy.Nodes),
			ids(lazy.Prefill))
	}
	if got := strings.Join(ids(own.Nodes), " "); got != "b" {
		t.Errorf("the pool of its own has %q", got)
	}
	for id, want := range map[string]string{"a": "lazy", "b": "lazy listed own", "p": "lazy listed own"} {
		var names []string
		for _, state := range s.Node(id).adapters.States() {
			names = append(names, state.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("node %s expects %q, want %q", id, got, want)
		}
	}
}

// TestAwaitListed: the wait for an engine's new list ends with the snapshot that has it, with the
// departure of the node, or with the context.
func TestAwaitListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, err := New(Options{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		h := node("n1", "http://127.0.0.1:1")
		f.update(f.addEtcd(&h), &h, time.Now())
		f.publish()
		n := f.Load().Node("n1")
		wait := func(ctx context.Context, name string, listed bool) <-chan bool {
			result := make(chan bool, 1)
			go func() { result <- f.AwaitListed(ctx, n, name, listed) }()
			synctest.Wait()
			return result
		}
		began := time.Now()
		if there, gone := <-wait(t.Context(), "m", true), <-wait(t.Context(), "sql", false); !there || !gone {
			t.Errorf("what is so already: %v and %v", there, gone)
		}
		appears := wait(t.Context(), "sql", true)
		f.publish() // changes nothing
		synctest.Wait()
		if len(appears) > 0 {
			t.Error("a snapshot without the model ends the wait")
		}
		info := *n.Info()
		info.Models, info.Upstream = []string{"m", "sql"}, []string{"m", "sql"}
		n.setInfo(&info)
		f.publish()
		if !<-appears {
			t.Error("the model has appeared")
		}
		ctx, cancel := context.WithCancel(t.Context())
		never, leaves := wait(ctx, "never", true), wait(t.Context(), "never", true)
		cancel()
		if <-never {
			t.Error("the context has ended")
		}
		f.remove("n1")
		f.publish()
		if <-leaves {
			t.Error("the node has left")
		}
		if time.Since(began) != 0 {
			t.Errorf("the waits took %v", time.Since(began))
		}
	})
}
