package fleet

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/internal/freeport"
	"github.com/cognitora/dataplane/internal/load"
)

func pemOf(der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// etcdFleet is a fleet that follows a real etcd.
type etcdFleet struct {
	*Fleet
	t      *testing.T
	client *cluster.Client
	close  func() // ends etcd
	raw    *clientv3.Client
	at     string
}

func newEtcdFleet(t *testing.T, change func(o *Options)) *etcdFleet {
	t.Helper()
	e := &etcdFleet{t: t, at: freeport.Address(t)}
	e.startEtcd()
	t.Cleanup(func() { e.close() })
	var err error
	if e.client, err = cluster.Dial(cluster.Config{Endpoints: []string{e.at},
		RequestTimeout: 3 * time.Second}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.client.Close() })
	if e.raw, err = clientv3.New(clientv3.Config{Endpoints: []string{e.at}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.raw.Close() })
	o := fast()
	o.Cluster = e.client
	if change != nil {
		change(&o)
	}
	e.Fleet = run(t, o)
	return e
}

func (e *etcdFleet) startEtcd() {
	e.t.Helper()
	server, err := etcdserver.Start(e.t.TempDir(), e.at)
	if err != nil {
		e.t.Fatal(err)
	}
	e.close, e.at = sync.OnceFunc(func() { server.Close() }), server.Endpoint()
}

func (e *etcdFleet) put(key, value string) {
	e.t.Helper()
	if _, err := e.raw.Put(context.Background(), key, value); err != nil {
		e.t.Fatal(err)
	}
}

// agent registers a node. The node stays until the test ends or stop is called.
func (e *etcdFleet) agent(h cluster.NodeHealth) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	r := cluster.NewRegistrar(e.client, cluster.Registration{
		Health: func() cluster.Record { now := h; return &now }, Heartbeat: time.Second,
		Logger: slog.New(slog.DiscardHandler),
	})
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			e.t.Error(err)
		}
	})
	e.t.Cleanup(stop)
	return stop
}

func node(id, url string) cluster.NodeHealth {
	return cluster.NodeHealth{NodeID: id, Address: url, Models: []string{"m"}, Engine: "vllm", MaxConcurrent: 4,
		EngineSlots: 9, Ready: true, Labels: []string{"zone=a"}, Experts: cluster.Experts{"0-7"},
		EngineVersion: "0.32.0", MaxBatchedTokens: 8192,
		Load: load.Load{
			Engine: load.Engine{InFlight: load.Known(3), QueueDepth: load.Known(1)},
			GPU:    load.GPU{SMPct: load.Known(50)}, Power: load.Power{Watts: load.Known(300)},
		}}
}

// TestBeat: in a fleet that does not run, heartbeats add nodes, bring their load, and publish a
// snapshot only if a node has changed.
func TestBeat(t *testing.T) {
	f := still(t)
	now := time.Now()
	one, two := node("n1", "http://127.0.0.1:1"), node("n2", "http://127.0.0.1:2")
	f.Beat(now, &one, &two)
	s := f.Load()
	n := s.Node("n1")
	if len(s.Nodes) != 2 || n.Source != Etcd || n.Load().Others != 3 || n.Load().Waiting != 1 ||
		n.Info().EngineSlots != 9 {
		t.Fatalf("%d nodes; %+v, %+v", len(s.Nodes), n.Load(), n.Info())
	}
	if ok, reason := n.Eligible(now); !ok {
		t.Errorf("%s", reason)
	}
	one.InFlight = load.Known(5)
	if f.Beat(now.Add(time.Second), &one); f.Load() != s || n.Load().Others != 5 {
		t.Errorf("snapshot %d after %d; %+v", f.Load().Rev, s.Rev, n.Load())
	}
	one.BlockTokens, one.FreeBlocks, one.TotalBlocks = 32, load.Known(60), load.Known(100)
	if f.Beat(now.Add(2*time.Second), &one); f.Load() == s || n.Load().OthersBlocks != 80 {
		t.Errorf("40 used blocks of 32 tokens: %+v", n.Load())
	}
	one.Ready, one.DataParallel = false, 2
	f.Beat(now.Add(3*time.Second), &one)
	if ok, _ := n.Eligible(now); ok || len(n.Ranks()) != 2 {
		t.Errorf("not ready, with 2 ranks: %v, %d ranks", ok, len(n.Ranks()))
	}
}

func TestNodesOfEtcd(t *testing.T) {
	t.Parallel()
	e := newEtcdFleet(t, nil)
	eng := newEngine(t, nil)
	stop := e.agent(node("n1", eng.URL))
	eventually(t, e.Fleet, "joined", serves("m", 1))
	n := e.Load().Node("n1")
	if l := n.Load(); l.SMPct != load.Known(50) || l.Drawn() != load.Known(300) || l.Waiting != 1 ||
		l.CacheUsage() != (load.Gauge{}) || n.MaxConcurrent() != 4 || n.Info().EngineSlots != 9 ||
		!slices.Equal(n.Info().Labels, []string{"zone=a"}) || n.Info().EngineVersion != "0.32.0" ||
		!n.Info().Experts.Has("3") || n.Info().MaxBatchedTokens != 8192 {
		t.Fatalf("%+v", l)
	}
	if eng.count("/metrics") != 0 {
		t.Fatal("an agent's engine is not scraped from here")
	}
	if s := e.Load(); s.Stale {
		t.Fatal("stale while etcd answers")
	}

	ctx := context.Background()
	check := func(what, want string) {
		t.Helper()
		eventually(t, e.Fleet, what,
			func(*Snapshot) bool { _, reason := n.Eligible(time.Now()); return reason == want })
	}
	if err := e.client.PutCordon(ctx, "n1", cluster.Cordon{}); err != nil {
		t.Fatal(err)
	}
	check("cordoned", "cordoned")
	if err := e.client.PutCordon(ctx, "n1", cluster.Cordon{Drain: true}); err != nil {
		t.Fatal(err)
	}
	check("draining", "draining")
	if _, err := e.client.Uncordon(ctx, "n1"); err != nil {
		t.Fatal(err)
	}
	check("uncordoned", "")

	if err := e.client.PutModel(ctx, "m", cluster.Model{Aliases: []string{"gpt-4"}, Tokenizer: "t.json"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, e.Fleet, "the alias", serves("gpt-4", 1))
	e.put(cluster.ModelKey("m"), "{")
	eventually(t, e.Fleet, "the refusal",
		func(s *Snapshot) bool { return len(s.Problems) == 1 && serves("gpt-4", 1)(s) })

	n.AcquireAlways()
	stop()
	eventually(t, e.Fleet, "gone with its agent",
		func(s *Snapshot) bool { return s.Node("n1") == nil && s.Model([]byte("m")) != nil })
	n.Release()
}

func TestAMalformedValueDropsNothing(t *testing.T) {
	t.Parallel()
	e := newEtcdFleet(t, func(o *Options) { o.StaleAfter = 400 * time.Millisecond })
	eng := newEngine(t, nil)
	h := node("n1", eng.URL)
	h.Stamp = 1
	value, _ := json.Marshal(h)
	e.put(cluster.NodeKey("n1"), string(value))
	eventually(t, e.Fleet, "joined", serves("m", 1))
	n := e.Load().Node("n1")
	e.put(cluster.NodeKey("n1"), strings.Replace(string(value), `"sm_pct":50`, `"sm_pct":"half"`, 1))
	eventually(t, e.Fleet, "the refusal", func(s *Snapshot) bool { return e.Malformed() == 1 && len(s.Problems) == 1 })
	if e.Load().Node("n1") != n {
		t.Fatal("the node was dropped or replaced")
	}
	eventually(t, e.Fleet, "its silence",
		func(*Snapshot) bool { _, r := n.Eligible(time.Now()); return r == "its heartbeat is stale" })
	ref := n.Ranks()[0].Ref()
	e.put(cluster.NodeKey("n1"), strings.Replace(string(value), `"stamp":1`, `"stamp":2,"kv_epoch":9`, 1))
	eventually(t, e.Fleet, "back with an empty cache", func(s *Snapshot) bool {
		return serves("m", 1)(s) && n.Ranks()[0].Ref() != ref && len(s.Problems) == 0
	})
	moved := strings.Replace(strings.Replace(string(value), `"stamp":1`, `"stamp":3`, 1), eng.URL, eng.URL+"/x", 1)
	e.put(cluster.NodeKey("n1"), moved)
	eventually(t, e.Fleet, "a new incarnation",
		func(s *Snapshot) bool { return s.Node("n1") != nil && s.Node("n1") != n })
}

func TestAMalformedModelStaysAsItWas(t *testing.T) {
	f := &Fleet{o: Options{}.withDefaults(), problems: map[subject]string{}}
	f.etcd.init(true)
	f.settings.init(nil)
	entry := func(name, value string) cluster.Entry {
		return cluster.Entry{Key: cluster.ModelKey(name), Value: []byte(value)}
	}
	f.listModels(cluster.Listing{Entries: []cluster.Entry{entry("a", `{"aliases":["x"]}`),
		entry("b", `{"aliases":["y"]}`)}})
	f.listModels(cluster.Listing{Entries: []cluster.Entry{entry("a", `{"aliases":[`)}})
	if m := f.settings.stored["a"]; m == nil || len(m.Aliases) != 1 || m.Aliases[0] != "x" {
		t.Errorf("the malformed model is now %+v", m)
	}
	if f.settings.stored["b"] != nil || len(f.problems) != 1 {
		t.Errorf("models %v, problems %v", f.settings.stored, f.problems)
	}
	f.listModels(cluster.Listing{DataLost: true})
	if f.settings.stored["a"] == nil {
		t.Error("a model was forgotten because etcd lost its data")
	}
	f.listModels(cluster.Listing{})
	if len(f.settings.stored)+len(f.problems) != 0 {
		t.Errorf("left: models %v, problems %v", f.settings.stored, f.problems)
	}
}

func TestAStaticNodeHidesItsNamesake(t *testing.T) {
	t.Parallel()
	eng := newEngine(t, nil, "m")
	e := newEtcdFleet(t, func(o *Options) { o.Backends = []Backend{{URL: eng.URL, ID: "n1"}} })
	e.agent(node("n1", "http://127.0.0.1:1"))
	eventually(t, e.Fleet, "the conflict", func(s *Snapshot) bool {
		return serves("m", 1)(s) && s.Node("n1").Source == Static && len(s.Problems) == 1
	})
}

// TestEtcdThatNeverAnswered checks that the log reports the outage once, and that the fleet claims
// no nodes.
func TestEtcdThatNeverAnswered(t *testing.T) {
	t.Parallel()
	client, err := cluster.Dial(cluster.Config{Endpoints: []string{"127.0.0.1:1"},
		RequestTimeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	said := make(chan string, 16)
	o := fast()
	o.Cluster, o.Logger = client, slog.New(slog.NewTextHandler(lineWriter(said), nil))
	f := run(t, o)
	if line := <-said; !strings.Contains(line, "level=WARN") ||
		!strings.Contains(line, "etcd does not answer, so its nodes are not known yet") ||
		!strings.Contains(line, "127.0.0.1:1") {
		t.Errorf("logged %s", line)
	}
	if ready, detail := f.Load().Ready(time.Now()); ready ||
		!strings.Contains(detail, "etcd has not answered since the start") {
		t.Errorf("ready %v: %s", ready, detail)
	}
}

// lineWriter sends each write to its channel, and drops it when the channel is full.
type lineWriter chan string

func (w lineWriter) Write(line []byte) (int, error) {
	select {
	case w <- string(line):
	default:
	}
	return len(line), nil
}

// TestEtcdComesBackEmpty checks the nodes during and after an outage of etcd. During the outage the
// nodes go on serving. Then etcd comes back without the nodes. The fleet keeps them until their
// agents have had time to register again.
func TestEtcdComesBackEmpty(t *testing.T) {
	t.Parallel()
	e := newEtcdFleet(t, func(o *Options) { o.Grace = 3 * time.Second })
	eng, dead := newEngine(t, nil), newEngine(t, nil)
	e.agent(node("n1", eng.URL))
	value, _ := json.Marshal(node("n2", dead.URL)) // no agent registers it again
	e.put(cluster.NodeKey("n2"), string(value))
	if err := e.client.PutCordon(context.Background(), "n2", cluster.Cordon{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, e.Fleet, "both nodes", func(s *Snapshot) bool { return len(s.Nodes) == 2 && serves("m", 1)(s) })
	n1, n2 := e.Load().Node("n1"), e.Load().Node("n2")

	stop := make(chan struct{})
	watched := make(chan error, 1)
	go func() { watched <- alwaysServed(e.Fleet, n1, stop) }()
	e.close()
	eventually(t, e.Fleet, "stale", func(s *Snapshot) bool { return s.Stale && !s.StaleSince.IsZero() })
	if ready, detail := e.Load().Ready(time.Now()); !ready || !strings.Contains(detail, "etcd does not answer since") {
		t.Fatal(ready, detail)
	}
	e.startEtcd()
	eventually(t, e.Fleet, "fresh", func(s *Snapshot) bool { return !s.Stale })
	if s := e.Load(); s.Node("n2") != n2 {
		t.Error("a node was dropped before its agent could come back")
	}
	if _, reason := n2.Eligible(time.Now()); reason != "cordoned" {
		t.Errorf("the loss of data lifted a cordon: %q", reason)
	}
	if was, err := e.client.Uncordon(context.Background(), "n2"); was || err != nil {
		t.Errorf("etcd had the cordon still: %v, %v", was, err)
	}
	eventually(t, e.Fleet, "the cordon that only routers remember lifted",
		func(*Snapshot) bool { _, reason := n2.Eligible(time.Now()); return reason != "cordoned" })
	eventually(t, e.Fleet, "the dead one gone after the grace period",
		func(s *Snapshot) bool { return s.Node("n2") == nil })
	close(stop)
	if err := <-watched; err != nil {
		t.Error(err)
	}
	nodes, err := e.client.Nodes(context.Background())
	if err != nil || len(nodes) != 1 || nodes[0].ID != "n1" {
		t.Errorf("registered after the outage: %+v %v", nodes, err)
	}
}

func alwaysServed(f *Fleet, n *Node, stop chan struct{}) error {
	look := time.NewTicker(time.Millisecond)
	defer look.Stop()
	for {
		select {
		case <-stop:
			return nil
		case <-look.C:
		}
		if ok, reason := n.Eligible(time.Now()); !ok {
			return errors.New("not eligible: " + reason)
		}
		if f.Load().Node(n.ID) != n {
			return errors.New("the node was replaced or dropped")
		}
	}
}
