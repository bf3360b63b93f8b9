package router_test

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/fleet"
)

// explanation is the answer of /debug/route.
type explanation struct {
	Mode, Winner, Why string
	WinnerRank        *int `json:"winner_dp_rank"`
	Blocks            int  `json:"prompt_blocks"`
	Candidates        []candidate
	Prefill           *struct {
		Result, Why string
		Pick        *struct{ Winner string }
	}
}

type candidate struct {
	Node, Filter, Reason, Adapter, Device string
	Rank                                  *int `json:"dp_rank"`
	Eligible                              bool
	Matched, Coming, Total                int
	Pending                               int `json:"pending_blocks"`
	Host                                  int `json:"matched_host"`
	Disk                                  int `json:"matched_disk"`
	Others                                int `json:"in_flight_of_others"`
	Slots                                 int `json:"max_concurrent"`
	Overlap, Load, Power, Capacity, Score float64
	Waiting                               float64
	Signals                               fleet.Signals
}

func (s *site) explain(body string, header ...string) (e explanation) {
	s.t.Helper()
	return s.explainAs("", body, header...)
}

// explainAs is explain for an API. An empty api is chat.
func (s *site) explainAs(api, body string, header ...string) (e explanation) {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodPost, s.admin+"/debug/route?api="+api, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.client.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 || json.Unmarshal(page, &e) != nil {
		s.t.Fatalf("%v, %d %s", err, resp.StatusCode, page)
	}
	return e
}

// TestWhatNodesAnnounceIsWeighed checks that GPU load, power, memory and speed each affect the
// score.
func TestWhatNodesAnnounceIsWeighed(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t).endpoint
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	engines := simulate(t, 2)
	for i, more := range []string{
		`"sm_pct":50,"power_watts":600,"vram_bytes":80000000000,"tp":4,"dtype":"bfloat16","max_concurrent":32`,
		`"sm_pct":10,"power_watts":150,"vram_bytes":40000000000,"tp":1,"dtype":"bfloat16","max_concurrent":32`,
	} {
		id := fmt.Sprint("n", i)
		doc := fmt.Sprintf(`{"node_id":%q,"address":%q,"models":["sim"],"ready":true,"stamp":1,%s}`, id,
			engines[i].URL(), more)
		if _, err := c.Put(t.Context(), cluster.NodeKey(id), doc); err != nil {
			t.Fatal(err)
		}
	}
	s := serve(t, nil, scored, func(c *router.Config) { c.Etcd.Endpoints = []string{etcd} })
	eventually(t, "every node is eligible", func() bool { return s.eligible() == 2 })
	e := s.explain(chatBody("hello", ""))
	if len(e.Candidates) != 2 || e.Mode != "score" {
		t.Fatalf("%+v", e)
	}
	for i, want := range []candidate{{Load: .5, Power: 0, Capacity: 1}, {Load: .9, Power: .75,
		Capacity: (.5 + .25 + 1) / 3}} {
		got := e.Candidates[i]
		score := .25*want.Load + .10*want.Power + .10*want.Capacity
		for term, d := range map[string]float64{
			"load": got.Load - want.Load, "power": got.Power - want.Power, "capacity": got.Capacity - want.Capacity,
			"score": got.Score - score,
		} {
			if math.Abs(d) > 1e-6 {
				t.Errorf("%s: %s is off by %v: %+v", got.Node, term, d, got)
			}
		}
	}
	if e.Winner != "n1" {
		t.Errorf("the winner is %s", e.Winner)
	}
	if r := s.chat(chatBody("hello", plain)); r.status != 200 || r.node() != "n1" {
		t.Errorf("%v", r)
	}
}

// TestPickIsLogged checks that a router whose log level is debug explains the pick of a request.
func TestPickIsLogged(t *testing.T) {
	t.Parallel()
	var log logged
	s := serve(t, simulate(t, 2), scored, func(c *router.Config) {
		c.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	})
	if r := s.chat(chatBody("hello", plain), "x-request-id", "why-me"); r.status != 200 || log.count(
		"request=why-me model=sim mode=score why=") != 1 || log.count("Formula for sim-0: ") != 1 ||
		log.count(" node="+r.node()+"\n") != 1 {
		t.Errorf("%v\n%s", r, log.text())
	}
}

// TestDevicesAreTold checks that mode device_aware knows the nodes that compute on CPUs.
func TestDevicesAreTold(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t).endpoint
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	engines := simulate(t, 2)
	for i, device := range []string{"cpu", "gpu"} {
		doc := fmt.Sprintf(`{"node_id":%q,"address":%q,"models":["sim"],"ready":true,"stamp":1,"device":%q}`, device,
			engines[i].URL(), device)
		if _, err := c.Put(t.Context(), cluster.NodeKey(device), doc); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Put(t.Context(), cluster.PolicyKey, `{"mode":"device_aware"}`); err != nil {
		t.Fatal(err)
	}
	s := follow(t, etcd, 2)
	var e explanation
	eventually(t, "the policy is in force", func() bool {
		e = s.explain(chatBody("hello", ""))
		return e.Mode == "device_aware"
	})
	if e.Winner != "gpu" || e.Candidates[0].Device != "cpu" || e.Candidates[1].Device != "gpu" ||
		!strings.Contains(e.Why, "0 requests on 1 CPUs, 0 on 1 accelerators") {
		t.Errorf("%s, %s", e.Winner, e.Why)
	}
}

// TestDebugRouteSaysWhereARequestGoes checks that /debug/route names the node that the request then
// gets. /debug/route heeds the same headers as the routing.
func TestDebugRouteSaysWhereARequestGoes(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 4), scored)
	winners := map[string]bool{}
	for i := range 12 {
		session := fmt.Sprint("session ", i)
		s.idle() // a request in flight counts as load
		e := s.explain(chatBody("hello", plain), "x-cgn-session-id", session)
		if r := s.chat(chatBody("hello", plain), "x-cgn-session-id", session); r.node() != e.Winner {
			t.Errorf("%s: it says %s (%s) and goes to %s", session, e.Winner, e.Why, r.node())
		}
		winners[e.Winner] = true
	}
	if len(winners) < 2 {
		t.Errorf("all sessions go to %v", winners)
	}
	body := chatBody(document(1, 6000), plain)
	home := s.chat(body)
	mustAll(t, "first", []*reply{home})
	s.idle()
	e := s.explain(body)
	if e.Winner != home.node() || e.Blocks < 90 || len(e.Candidates) != 4 || e.Why == "" {
		t.Errorf("the prompt is on %s: %+v", home.node(), e)
	}
	for _, c := range e.Candidates {
		has := 0
		if c.Node == home.node() {
			has = e.Blocks
		}
		if c.Matched != has || c.Total != e.Blocks || c.Overlap != float64(has)/float64(e.Blocks) ||
			!c.Eligible || c.Slots != 0 ||
			math.Abs(c.Score-(.55*c.Overlap+.25*c.Load+.10*c.Power+.10*c.Capacity)) > 1e-6 {
			t.Errorf("%+v of %d blocks", c, e.Blocks)
		}
	}
	pinned := s.explain(body, "x-cgn-node", "sim-2")
	if pinned.Winner != "sim-2" || pinned.Candidates[1].Reason != "another node is pinned" ||
		pinned.Candidates[1].Eligible {
		t.Errorf("pinned to sim-2: %+v", pinned)
	}
}

// TestDebugIsForOperators checks that only the admin port answers /debug paths.
func TestDebugIsForOperators(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2))
	mustAll(t, "one", []*reply{s.chat(chatBody(document(1, 2000), plain))})
	s.idle() // a request is counted after its last byte
	for path, want := range map[string]string{
		"/debug/fleet": `"learned_lifetime_s": 120`, "/debug/pprof/": "goroutine", "/debug/pprof/cmdline": "test",
		"/metrics": "cgn_router_requests_total", "/readyz": "ready", "/healthz": "ok",
	} {
		if status, page := s.get(s.admin + path); status != 200 || !strings.Contains(string(page), want) {
			t.Errorf("admin %s: %d %.200s", path, status, page)
		}
		if status, page := s.get(s.url + path); status != 404 || strings.Contains(string(page), want) {
			t.Errorf("clients %s: %d %.200s", path, status, page)
		}
	}
	_, page := s.get(s.admin + "/debug/fleet")
	var view struct {
		Blocks int `json:"index_blocks"`
	}
	if err := json.Unmarshal(page, &view); err != nil || view.Blocks < 30 {
		t.Errorf("index_blocks: %d, %v", view.Blocks, err)
	}
}

// TestReadyzOfADeadFleet checks that /readyz names the problem of each node.
func TestReadyzOfADeadFleet(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2))
	if status, page := s.get(s.admin + "/readyz"); status != 200 {
		t.Errorf("alive: %d %s", status, page)
	}
	for _, e := range s.engines {
		e.Refuse()
	}
	for i := range 8 { // traffic shows the problem at once
		s.chat(chatBody(fmt.Sprint("question ", i), plain))
	}
	eventually(t, "it says that nobody can take a request", func() bool {
		status, page := s.get(s.admin + "/readyz")
		return status == 503 && strings.Contains(string(page), "sim-0: ") && strings.Contains(string(page), "sim-1: ")
	})
	if status, _ := s.get(s.url + "/health"); status != 503 {
		t.Errorf("/health: %d", status)
	}
	for _, e := range s.engines {
		accept(e)
	}
	eventually(t, "it is back", func() bool { status, _ := s.get(s.admin + "/readyz"); return status == 200 })
}

// TestCacheSaltKeepsTenantsApart checks that one tenant's cached prompt does not count for another
// tenant.
func TestCacheSaltKeepsTenantsApart(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	overlap := func(salt string) (matched int) {
		t.Helper()
		r := s.chat(chatBody(document(1, 6000), plain+salt))
		mustAll(t, salt, []*reply{r})
		fmt.Sscanf(r.header.Get("x-cgn-overlap"), "%d/", &matched)
		return matched
	}
	for _, salt := range []string{"", `,"cache_salt":"a"`, `,"cache_salt":"b"`} {
		if n := overlap(salt); n != 0 {
			t.Errorf("%s: %d blocks are believed before the first", salt, n)
		}
		if n := overlap(salt); n < 90 {
			t.Errorf("%s: %d blocks are believed after the first", salt, n)
		}
	}
}

// llama is a backend that claims to be llama.cpp, which keeps a thread at each idle connection.
func llama(t *testing.T, connections chan<- string) string {
	b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			connections <- r.RemoteAddr
			io.WriteString(w, `{"choices":[]}`)
		case r.URL.Path == "/v1/models":
			io.WriteString(w, `{"object":"list","data":[{"id":"sim","object":"model","owned_by":"llamacpp"}]}`)
		}
	}))
	t.Cleanup(b.Close)
	return b.URL
}

// TestNoIdleConnectionsToLlamaCpp checks that each request to a static llama.cpp has a connection
// of its own.
func TestNoIdleConnectionsToLlamaCpp(t *testing.T) {
	t.Parallel()
	connections := make(chan string, 16)
	url := llama(t, connections)
	s := serve(t, nil, func(c *router.Config) { c.Router.Backends = []string{url} })
	eventually(t, "the backend is eligible", func() bool { return s.eligible() == 1 })
	for range 3 {
		mustAll(t, "one after the other", []*reply{s.chat(chatBody("hello", plain))})
	}
	if a, b, c := <-connections, <-connections, <-connections; a == b || b == c || a == c {
		t.Errorf("requests came over %s, %s and %s", a, b, c)
	}
}
