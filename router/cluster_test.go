package router_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/internal/freeport"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// heartbeat is the interval of the tests' agents. A lease lasts three of them, so a running agent
// keeps it on a busy machine.
const heartbeat = 3 * time.Second

// etcdAt is an etcd that can be stopped and started again, empty, on the same address. etcdAt stops
// at the end of the test, after everything that was made later.
type etcdAt struct {
	t        *testing.T
	dir      string
	starts   int
	endpoint string
	server   *etcdserver.Server // nil while it is stopped
}

func startEtcd(t *testing.T) *etcdAt {
	e := &etcdAt{t: t, dir: t.TempDir(), endpoint: freeport.Address(t)}
	t.Cleanup(e.stop)
	e.start()
	return e
}

func (e *etcdAt) start() {
	e.t.Helper()
	e.starts++
	var err error
	if e.server, err = etcdserver.Start(filepath.Join(e.dir, fmt.Sprint(e.starts)), e.endpoint); err != nil {
		e.t.Fatal(err)
	}
	e.endpoint = e.server.Endpoint()
}

func (e *etcdAt) stop() {
	if e.server != nil {
		e.server.Close()
		e.server = nil
	}
}

func dialEtcd(t *testing.T, endpoint string) *cluster.Client {
	t.Helper()
	c, err := cluster.Dial(cluster.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func agentConfig(id, engineURL, etcd string) (c agent.Config, err error) {
	err = config.Defaults(&c)
	c.Agent.NodeID, c.Agent.Listen, c.Agent.Admin = id, "127.0.0.1:0", "127.0.0.1:0"
	c.Agent.Heartbeat, c.Agent.DrainDelay = config.Duration(heartbeat), 0
	c.Engine.URL, c.Etcd.Endpoints = engineURL, []string{etcd}
	c.Telemetry.Kernel = "proc" // tests load nothing into the kernel
	c.Logger = slog.New(slog.DiscardHandler)
	return c, err
}

// attach runs an agent for an engine in this process, until the test ends.
func attach(t *testing.T, id string, e *engine.Engine, etcd string) {
	t.Helper()
	c, err := agentConfig(id, e.URL(), etcd)
	if err != nil {
		t.Fatal(err)
	}
	startAgent(t, c)
}

// agentProcess runs the test binary as an agent.
func agentProcess(id, engineURL, etcd string) {
	c, err := agentConfig(id, engineURL, etcd)
	var a *agent.Agent
	if err == nil {
		a, err = agent.New(c)
	}
	if err == nil {
		err = a.Run(context.Background(), context.Background())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// spawn runs an agent as a process of its own.
func spawn(t *testing.T, id string, e *engine.Engine, etcd string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], e.URL(), etcd)
	cmd.Env = append(os.Environ(), "TEST_AGENT="+id)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill() // fails if the test has done so
		cmd.Wait()
	})
	return cmd
}

// follow runs a router whose only source of nodes is etcd.
func follow(t *testing.T, etcd string, nodes int, change ...func(*router.Config)) *site {
	t.Helper()
	s := serve(t, nil, append(change, func(c *router.Config) { c.Etcd.Endpoints = []string{etcd} })...)
	eventually(t, "every node is eligible", func() bool { return s.eligible() == nodes })
	return s
}

// TestEtcdStoppedAndBackEmpty checks that an outage of etcd disturbs no request. The router reports
// stale data as stale. Changes of the fleet arrive again afterwards. The outage lasts four leases.
// All times are a fifth of the agents' defaults, with which the outage would last 60 s.
func TestEtcdStoppedAndBackEmpty(t *testing.T) {
	t.Parallel()
	etcdGoes(t, time.Second, 12*time.Second)
}

// TestEtcdStoppedForAMinute is TestEtcdStoppedAndBackEmpty with the agents' defaults.
func TestEtcdStoppedForAMinute(t *testing.T) {
	if os.Getenv("CGN_SOAK") == "" {
		t.Skip("takes 90 s; make check-outage runs it")
	}
	etcdGoes(t, 5*time.Second, time.Minute)
}

// etcdGoes stops etcd for the time of outage and starts it empty. beat is the heartbeat of the
// fleet's agents.
func etcdGoes(t *testing.T, beat, outage time.Duration) {
	server := startEtcd(t)
	etcd := server.endpoint
	engines := simulate(t, 3)
	join := func(id string, e *engine.Engine) {
		c, err := agentConfig(id, e.URL(), etcd)
		if err != nil {
			t.Fatal(err)
		}
		c.Agent.Heartbeat = config.Duration(beat)
		startAgent(t, c)
	}
	join("a", engines[0])
	join("b", engines[1])
	s := follow(t, etcd, 2, inTurn)
	load := s.traffic(streaming)
	load.until(soon, "with etcd", share("b", .2, 20))

	server.stop()
	stopped := time.Now()
	patience := soon + 4*beat
	stale := func() bool { return s.metrics().sum("cgn_router_fleet_stale") == 1 }
	load.until(patience, "etcd stopped", func(*reply) bool { return stale() })
	if status, page := s.get(s.admin + "/readyz"); status != 200 ||
		!bytes.Contains(page, []byte("etcd does not answer")) {
		t.Errorf("readyz: %d %s", status, page)
	}
	load.until(outage+patience, "without etcd", func(*reply) bool { return time.Since(stopped) > outage })
	load.until(soon, "without etcd, both nodes", share("a", .2, 20))
	load.until(soon, "without etcd, the other one, too", share("b", .2, 20))
	if n := s.eligible(); n != 2 || !stale() {
		t.Errorf("%d nodes are eligible; stale: %v", n, stale())
	}

	server.start()
	load.until(patience, "etcd back, empty", func(*reply) bool { return !stale() })
	join("c", engines[2])
	load.until(patience, "a node that came later", share("c", .2, 20))
	load.until(patience, "one that was there before", share("a", .2, 20))
	load.until(patience, "all three", func(*reply) bool { return s.eligible() == 3 })
	if status, page := s.get(s.admin + "/readyz"); status != 200 || bytes.Contains(page, []byte("etcd")) {
		t.Errorf("readyz: %d %s", status, page)
	}
	load.stop()
}

// TestAgentKilled checks that requests go elsewhere at once and that the node leaves when its lease
// ends.
func TestAgentKilled(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t).endpoint
	engines := simulate(t, 2)
	attach(t, "stays", engines[0], etcd)
	victim := spawn(t, "goes", engines[1], etcd)
	s := follow(t, etcd, 2, inTurn)
	load := s.traffic(plain)
	load.until(soon, "both", share("goes", .2, 20))
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	load.until(soon, "the other takes over", share("stays", 1, 20))
	load.until(soon, "the node leaves", func(*reply) bool { return s.metrics().sum("cgn_router_fleet_nodes") == 1 })
	load.until(soon, "one node", share("stays", 1, 20))
	spawn(t, "goes", engines[1], etcd)
	load.until(soon, "its successor has a share", share("goes", .2, 20))
	load.stop()
}

// TestClusterState checks the state that operators write to etcd.
func TestClusterState(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t).endpoint
	c := dialEtcd(t, etcd)
	engines := simulate(t, 2)
	attach(t, "a", engines[0], etcd)
	attach(t, "b", engines[1], etcd)
	audit := filepath.Join(t.TempDir(), "audit.log")
	s := follow(t, etcd, 2, inTurn, func(c *router.Config) { c.Audit.Log = audit })
	t.Run("policy", func(t *testing.T) { policyIsRefusedAsAWhole(t, s, c) })
	t.Run("cordon", func(t *testing.T) { cordonedNodeIsLeftAlone(t, s, c) })
	acts(t, audit, "cordon, node a ")
	acts(t, audit, "uncordon, node a, ok")
	t.Run("alias", func(t *testing.T) { aliasIsSpliced(t, s, c, engines) })
	t.Run("overwritten node", func(t *testing.T) { overwrittenNodeServesOn(t, s, c) })
	t.Run("malformed node", func(t *testing.T) { malformedValuesChangeNothing(t, s, c) })
	acts(t, audit, "model set, sim, ok")
	if _, err := c.RemoveModel(t.Context(), "sim"); err != nil {
		t.Fatal(err)
	}
	acts(t, audit, "model deleted, sim, ok")
}

func policyIsRefusedAsAWhole(t *testing.T, s *site, c *cluster.Client) {
	reloads := func(result string) float64 {
		return s.metrics().sum("cgn_router_policy_reloads_total", `result="`+result+`"`)
	}
	was := reloads("applied")
	if err := c.PutPolicy(t.Context(), []byte(`{"mode":"round_robin"}`)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the policy is in force", func() bool { return reloads("applied") == was+1 })
	for i, garbage := range []string{"", "garbage", "[1]", `{"mode":"random","kv":7}`,
		`{"weights":{"kv":0,"load":0,"power":0,"capacity":0}}`, `{"mode":"random","knob":1}`, "\xff\xfe"} {
		if err := c.PutPolicy(t.Context(), []byte(garbage)); err != nil {
			t.Fatal(err)
		}
		eventually(t, garbage+" is refused", func() bool { return reloads("refused") == float64(i+1) })
		if n := s.log.count("policy refused, the one in force stays"); n != i+1 {
			t.Errorf("%q: %d log lines, want %d", garbage, n, i+1)
		}
		served := map[string]int{}
		for i := range 4 {
			served[s.chat(chatBody(fmt.Sprint("question ", i), plain)).node()]++
		}
		if served["a"] != 2 || served["b"] != 2 {
			t.Errorf("%q: round robin gave %v", garbage, served)
		}
	}
	if n := reloads("applied"); n != was+1 {
		t.Errorf("%v policies were applied", n-was)
	}
	if err := c.PutPolicy(t.Context(),
		[]byte(`{"kv":0.5,"load":0.3,"power":0.1,"capacity":0.1,"max_queue":0,"ttft_slo_ms":500}`)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the flat form is taken", func() bool { return reloads("applied") == was+2 })
	if in, _ := s.policyInForce(); in.Source != "etcd "+cluster.PolicyKey || in.Refused != nil {
		t.Errorf("in force: %+v", in)
	}
	if was, err := c.RemovePolicy(t.Context()); err != nil || !was {
		t.Errorf("removed: %v %v", was, err)
	}
	eventually(t, "the default is in force", func() bool {
		in, _ := s.policyInForce()
		return in.Mode == "round_robin" && strings.HasPrefix(in.Source, "default: ")
	})
}

func cordonedNodeIsLeftAlone(t *testing.T, s *site, c *cluster.Client) {
	if err := c.PutCordon(t.Context(), "a", cluster.Cordon{Reason: "disk"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cordon is seen", func() bool { return s.eligible() == 1 })
	for i, r := range together(16, func(i int) *reply { return s.chat(chatBody(fmt.Sprint("question ", i), plain)) }) {
		if r.status != 200 || r.node() != "b" {
			t.Errorf("request %d: %v", i, r)
		}
	}
	if _, err := c.Uncordon(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cordon is gone", func() bool { return s.eligible() == 2 })
}

func aliasIsSpliced(t *testing.T, s *site, c *cluster.Client, engines []*engine.Engine) {
	if err := c.PutModel(t.Context(), "sim", cluster.Model{Aliases: []string{"gpt-4o"}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the alias is known", func() bool {
		status, _ := s.get(s.url + "/v1/models/gpt-4o")
		return status == 200
	})
	body := `{ "messages":[{"role":"user","content":"gpt-4o"}], "model" : "gpt-4\u006f" ,"max_tokens":2}`
	r := s.ask(http.MethodPost, "/v1/chat/completions", body)
	mustAll(t, "alias", []*reply{r})
	got := lastTo(t, engines[strings.Index("ab", r.node())], "/v1/chat/completions")
	if want := strings.Replace(body, `"gpt-4\u006f"`, `"sim"`, 1); string(got.Body) != want {
		t.Errorf("the engine got %s, want %s", got.Body, want)
	}
}

// overwrittenNodeServesOn checks a node whose record in etcd an operator has overwritten. No router
// loses that node, and the node's agent does not end.
func overwrittenNodeServesOn(t *testing.T, s *site, c *cluster.Client) {
	raw, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	load := s.traffic(plain)
	load.until(soon, "both", share("a", .2, 20))
	if _, err := raw.Put(t.Context(), cluster.NodeKey("a"), "garbage"); err != nil {
		t.Fatal(err)
	}
	load.until(soon, "the node's record is back", func(*reply) bool {
		if n := s.eligible(); n != 2 {
			t.Errorf("%d nodes are eligible", n)
		}
		kv, err := raw.Get(t.Context(), cluster.NodeKey("a"))
		if err != nil || len(kv.Kvs) != 1 {
			t.Error(kv, err)
			return true
		}
		_, err = cluster.ParseNodeHealth("a", kv.Kvs[0].Value)
		return err == nil && kv.Kvs[0].Lease != 0
	})
	load.until(soon, "its share", share("a", .2, 20))
	load.stop()
}

func malformedValuesChangeNothing(t *testing.T, s *site, c *cluster.Client) {
	raw, err := clientv3.New(clientv3.Config{Endpoints: c.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	before := s.metrics().sum("cgn_router_fleet_malformed_total")
	for _, kv := range [][2]string{{cluster.NodeKey("ghost"), "{"}, {cluster.ModelKey("sim"), `{"aliases":[""]}`}} {
		if _, err := raw.Put(t.Context(), kv[0], kv[1]); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both are counted", func() bool {
		return s.metrics().sum("cgn_router_fleet_malformed_total") == before+2
	})
	mustAll(t, "alias", []*reply{s.chat(strings.Replace(chatBody("hello", plain), `"sim"`, `"gpt-4o"`, 1))})
	if n := s.metrics().sum("cgn_router_fleet_nodes"); n != 2 {
		t.Errorf("%v nodes", n)
	}
}
