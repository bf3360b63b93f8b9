package leg

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/apis"
	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/where"
	"github.com/cognitora/dataplane/sim/engine"
)

// still returns a dispatcher over backends that count as healthy and are never checked.
func still(t testing.TB, o Options, backends ...fleet.Backend) *Dispatcher {
	t.Helper()
	index := prefix.NewIndex(prefix.Options{})
	t.Cleanup(index.Close)
	f, err := fleet.New(fleet.Options{Index: index, Logger: slog.New(slog.DiscardHandler), Proven: true,
		Backends: backends})
	if err != nil {
		t.Fatal(err)
	}
	return over(f, index, o)
}

// over returns a dispatcher over f.
func over(f *fleet.Fleet, index *prefix.Index, o Options) *Dispatcher {
	counts := metrics.New()
	d := New(Parts{
		Fleet: f, Policy: &atomic.Pointer[policy.Policy]{}, Gate: admission.New(admission.Options{}),
		Where:  &where.Finder{Index: index, Memo: where.NewMemo(16 << 20), Metrics: counts},
		Budget: admission.NewBudget(20, 64, nil), Metrics: counts, Stored: affinity.New(16),
		Logger: slog.New(slog.DiscardHandler),
	}, o)
	d.policy.Store(policy.Default())
	return d
}

// twoNodes returns backends a and b of model sim.
func twoNodes() []fleet.Backend {
	return []fleet.Backend{
		{URL: "http://10.0.0.1:1", ID: "a", Model: "sim"},
		{URL: "http://10.0.0.2:1", ID: "b", Model: "sim", Role: "decode"},
	}
}

// filtered returns the words of the filters against the nodes, as an explanation of q has them.
func filtered(t testing.TB, d *Dispatcher, q Question) map[string]string {
	t.Helper()
	e, err := d.Explain(asked(t, d, chat(100)), q)
	if err != nil {
		t.Fatal(err)
	}
	words := map[string]string{}
	for _, c := range e.Candidates {
		if c.Filter != "" {
			words[c.Node] = c.Filter
		}
		if (c.Filter != "") == c.Eligible || !c.Eligible && c.Reason == "" {
			t.Errorf("%+v", c)
		}
	}
	return words
}

// counted says how many picks the filter has left a node out of.
func counted(d *Dispatcher, word string, picks int) bool {
	return exports(d, fmt.Sprintf("cgn_router_filtered_total{reason=%q} %d\n", word, picks))
}

// TestFilters checks that each filter keeps a request from node a, that an explanation names the
// filter, and that a pick counts it once.
func TestFilters(t *testing.T) {
	for word, c := range map[string]struct {
		question Question
		arrange  func(d *Dispatcher, a *fleet.Node)
	}{
		"pinned": {question: pinnedTo("b")},
		"plan":   {question: Question{Filter: func(n *fleet.Node) bool { return n.ID == "b" }}},
		"health": {arrange: func(_ *Dispatcher, a *fleet.Node) { a.Health.SetAside("a test") }},
		"max_queue": {arrange: func(d *Dispatcher, _ *fleet.Node) {
			if _, err := d.gate.Handle("sim", "both").Admit(); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(word, func(t *testing.T) {
			d := still(t, Options{Limits: Limits{MaxQueue: 1}}, twoNodes()...)
			if left := filtered(t, d, Question{}); len(left) != 0 {
				t.Fatalf("from the start %v is left out", left)
			}
			if c.arrange != nil {
				d.current()
				c.arrange(d, d.fleet.Load().Node("a"))
			}
			if left := filtered(t, d, c.question); len(left) != 1 || left["a"] != word {
				t.Errorf("%v is left out", left)
			}
			if !counted(d, word, 0) {
				t.Error("an explanation counts")
			}
			l := d.Leg(asked(t, d, chat(100)), c.question, nil)
			defer l.giveBack()
			at, err := l.first()
			if err != nil || l.pool.members[at].node.ID != "b" {
				t.Fatalf("place %d, %v", at, err)
			}
			if !counted(d, word, 1) {
				t.Error("the pick is not counted")
			}
		})
	}
}

// TestFiltersOfARetry checks that a retry asks no node twice, and keeps away from a node whose
// connection has just failed.
func TestFiltersOfARetry(t *testing.T) {
	d := still(t, Options{}, append(twoNodes(), fleet.Backend{URL: "http://10.0.0.3:1", ID: "c", Model: "sim"})...)
	l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	defer l.giveBack()
	at, err := l.first()
	if err != nil {
		t.Fatal(err)
	}
	first, failed := l.pool.members[at], l.pool.members[(at+1)%3]
	failed.node.Health.Report(health.ConnectError)
	l.tries.asked, l.Attempts = append(l.tries.asked, first), 1
	l.drop(l.spare())
	if at, err = l.choose(time.Now()); err != nil || l.pool.members[at] == first || l.pool.members[at] == failed {
		t.Errorf("after %s, and a failure of %s: place %d, %v", first.node.ID, failed.node.ID, at, err)
	}
	if !counted(d, "asked", 1) || !counted(d, "failed_lately", 1) {
		t.Error("not counted so")
	}
}

// TestARetryStaysWithTheOnlyRoom checks that a retry may go to a node whose connection has just
// failed while others' requests fill the other node.
func TestARetryStaysWithTheOnlyRoom(t *testing.T) {
	d := follow(t)
	e, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	const ready = `"ready":true,"heartbeat_s":300`
	d.put("failed", e.URL(), ready)
	d.put("full", e.URL(), ready+`,"max_concurrent":2,"in_flight":4,"queue_depth":2`)
	waitFor(t, func() bool {
		n := d.fleet.Load().Node("full")
		return n != nil && n.Load().Others == 4 && d.fleet.Load().Node("failed") != nil
	})
	d.fleet.Load().Node("failed").Health.Report(health.ConnectError)
	l := d.Leg(asked(t, d.Dispatcher, chat(100)), Question{}, nil)
	defer l.giveBack()
	l.Attempts, l.began = 1, time.Now()
	if at, err := l.first(); err != nil || l.pool.members[at].node.ID != "failed" {
		t.Errorf("place %d, %v", at, err)
	}
	if !counted(d.Dispatcher, "failed_lately", 0) {
		t.Error("the filter has left out the only node with room")
	}
}

// TestEnginesThatLackAnAPI checks that a request goes to a node with the request's endpoint, and
// that its error names the engines if no node has it.
func TestEnginesThatLackAnAPI(t *testing.T) {
	d := still(t, Options{}, twoNodes()...)
	members := d.current().models["sim"].pools[Answer].members
	members[0].lacks = apis.Messages | apis.Responses
	ask := func(q Question, api scan.API, path string) (node string, refused *apierror.Error) {
		t.Helper()
		r := asked(t, d, chat(100))
		r.API, r.Path = api, path
		l := d.Leg(r, q, nil)
		defer l.giveBack()
		at, err := l.first()
		if err != nil {
			return "", err
		}
		return l.pool.members[at].node.ID, nil
	}
	for range 10 {
		if node, err := ask(Question{}, scan.Messages, "/v1/messages?beta=true"); node != "b" {
			t.Errorf("%q, %v", node, err)
		}
	}
	if !counted(d, "api", 10) {
		t.Error("not counted so")
	}
	for path, api := range map[string]scan.API{
		"/v1/chat/completions": scan.Chat, "/v1/messages/count_tokens": scan.CountTokens,
	} {
		if node, err := ask(pinnedTo("a"), api, path); node != "a" {
			t.Errorf("%s: %q, %v", path, node, err)
		}
	}
	const lacks = "/v1/messages is not served for this model: its engines (unknown) lack it"
	unserved := func(q Question) {
		t.Helper()
		_, err := ask(q, scan.Messages, "/v1/messages?beta=true")
		if err == nil || err.Status != 404 || err.Code != "unsupported_api" || err.Message != lacks {
			t.Errorf("%v", err)
		}
	}
	unserved(pinnedTo("a"))
	members[1].node.Health.SetAside("a test")
	if _, err := ask(Question{}, scan.Messages, "/v1/messages"); err == nil || err.Status != 503 {
		t.Errorf("while the node with the endpoint is out: %v", err)
	}
	members[1].lacks = apis.Messages
	unserved(Question{})
}

// TestANodeThatHasLeft checks a pick from a snapshot with a node that has left the fleet since.
func TestANodeThatHasLeft(t *testing.T) {
	d := start(t, 2)
	l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	defer l.giveBack()
	if err := l.resolve(); err != nil {
		t.Fatal(err)
	}
	stays := l.pool.members[1].node.Info().Address
	if err := d.fleet.Reload(t.Context(), []fleet.Backend{{URL: stays}}); err != nil {
		t.Fatal(err)
	}
	l.d.where.Find(l.prompt, l.Request, l.model.name, l.model.seed, l.pool.ranks)
	if at, err := l.choose(time.Now()); err != nil || at != 1 {
		t.Errorf("place %d, %v", at, err)
	}
	if !counted(d, "gone", 1) {
		t.Error("not counted so")
	}
}

// followed is a fleet that follows a real etcd, with a dispatcher.
type followed struct {
	*Dispatcher
	t      *testing.T
	client *cluster.Client
	raw    *clientv3.Client
}

// follow starts a fleet without nodes. A heartbeat is stale after 0.3 s, times its length in units
// of 5 s.
func follow(t *testing.T) *followed {
	t.Helper()
	server, err := etcdserver.Start(t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	e := &followed{t: t}
	if e.client, err = cluster.Dial(cluster.Config{Endpoints: []string{server.Endpoint()}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.client.Close() })
	if e.raw, err = clientv3.New(clientv3.Config{Endpoints: []string{server.Endpoint()}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.raw.Close() })
	index := prefix.NewIndex(prefix.Options{})
	t.Cleanup(index.Close)
	f, err := fleet.New(fleet.Options{Index: index, Logger: slog.New(slog.DiscardHandler), Cluster: e.client,
		Proven: true, StaleAfter: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	e.Dispatcher = over(f, index, Options{})
	return e
}

// put announces a node. more are further members of its value.
func (e *followed) put(id, address, more string) {
	e.t.Helper()
	value := fmt.Sprintf(`{"node_id":%q,"address":%q,"models":["sim"],"stamp":1,%s}`, id, address, more)
	if _, err := e.raw.Put(e.t.Context(), cluster.NodeKey(id), value); err != nil {
		e.t.Fatal(err)
	}
}

// TestFiltersOfTheFleet checks the filters that follow from etcd.
func TestFiltersOfTheFleet(t *testing.T) {
	d := follow(t)
	e, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	const ready = `"ready":true,"heartbeat_s":300`
	d.put("able", e.URL(), ready)
	d.put("not_ready", e.URL(), `"ready":false,"heartbeat_s":300`)
	d.put("stale", e.URL(), `"ready":true`)
	d.put("old", e.URL(), ready+`,"engine":"vllm","engine_version":"0.11.0"`)
	d.put("full", e.URL(), ready+`,"free_blocks":5,"total_blocks":100`)
	for id, cordon := range map[string]cluster.Cordon{"cordon": {}, "drained": {Drain: true}} {
		d.put(id, e.URL(), ready)
		if err := d.client.PutCordon(t.Context(), id, cordon); err != nil {
			t.Fatal(err)
		}
	}
	d.busy = new(busy.Settings)
	d.busy.SetPolicy(busy.Thresholds{DecodeBlocks: new(0.9)})
	want := map[string]string{
		"not_ready": "not_ready", "stale": "stale", "cordon": "cordon", "drained": "cordon", "full": "busy",
	}
	waitFor(t, func() bool {
		return d.fleet.Load().Model([]byte("sim")) != nil && maps.Equal(filtered(t, d.Dispatcher, Question{}), want)
	})
	l := d.Leg(asked(t, d.Dispatcher, chat(100)), Question{}, nil)
	defer l.giveBack()
	if at, err := l.first(); err != nil || l.pool.members[at].node.ID != "able" && l.pool.members[at].node.ID != "old" {
		t.Errorf("place %d, %v", at, err)
	}
	for word, picks := range map[string]int{"not_ready": 1, "stale": 1, "cordon": 1, "busy": 1, "gone": 0} {
		if !counted(d.Dispatcher, word, picks) {
			t.Errorf("%s is not counted %d times", word, picks)
		}
	}
	r := asked(t, d.Dispatcher, chat(100))
	r.API, r.Path = scan.Messages, "/v1/messages"
	explained, refused := d.Explain(r, Question{})
	if refused != nil || explained.Winner != "able" {
		t.Fatalf("%+v, %v", explained, refused)
	}
	for _, c := range explained.Candidates {
		if c.Node == "old" && (c.Filter != "api" || c.Reason != "its engine, vllm 0.11.0, lacks /v1/messages") ||
			c.Node == "full" && !strings.HasPrefix(c.Reason, "busy: 0.95 of its KV blocks are in use") {
			t.Errorf("%s: %s", c.Node, c.Reason)
		}
	}
}

// The document lists the words of all filters in the order in which they count.
func TestFiltersAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/filters.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(doc), "| word | the node is removed while |\n|---|---|\n")
	table, _, ended := strings.Cut(table, "\n\n")
	if !found || !ended {
		t.Fatal("docs/filters.md has no table of words")
	}
	var listed, want []string
	for row := range strings.Lines(table) {
		word, _, _ := strings.Cut(strings.TrimPrefix(row, "| `"), "`")
		listed = append(listed, word)
	}
	for f := passes + 1; f < filters; f++ {
		want = append(want, f.String())
	}
	if !slices.Equal(listed, want) {
		t.Errorf("docs/filters.md lists %q, want %q", listed, want)
	}
}
