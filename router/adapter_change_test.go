package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// changed asks the router to change adapters, and returns the status and what each node did, as
// "sim-0 loaded".
func (s *site) changed(path, body string) (status int, nodes string) {
	s.t.Helper()
	resp, err := s.client.Post(s.admin+path, "application/json", strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.StatusCode != 200 {
		return resp.StatusCode, string(page)
	}
	var a struct {
		Nodes []struct{ Node, State, Detail string }
	}
	if err := json.Unmarshal(page, &a); err != nil {
		s.t.Fatal(err)
	}
	for _, n := range a.Nodes {
		nodes += strings.TrimSpace(fmt.Sprintf("%s %s %s", n.Node, n.State, n.Detail)) + "\n"
	}
	return 200, nodes
}

func (s *site) changes(path, body string, want ...string) {
	s.t.Helper()
	status, nodes := s.changed(path, body)
	lines := strings.Split(strings.TrimSpace(nodes), "\n")
	if status != 200 || len(lines) != len(want) {
		s.t.Fatalf("%s %s: %d\n%s", path, body, status, nodes)
	}
	for i, w := range want {
		if !strings.HasPrefix(lines[i], w) {
			s.t.Errorf("%s %s: %q, want %q", path, body, lines[i], w)
		}
	}
}

// adapterDir makes the directory of an adapter.
func adapterDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "adapter")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAdaptersAreLoadedOnRequest checks that the router asks each node of the model, says what
// happened there, and serves the adapter once it answers. What is so already needs no change.
func TestAdaptersAreLoadedOnRequest(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 2, func(c *engine.Config) { c.RuntimeLoRA = true })
	engines = append(engines, simulate(t, 1)...) // does not allow it
	s := serve(t, engines)
	dir := adapterDir(t)
	load := fmt.Sprintf(`{"model":"sim","adapter":"sql","path":%q,"nodes":["sim-0"]}`, dir)
	s.changes("/adapters/load", load, "sim-0 loaded")
	if r := s.chat(asking("sql", "hello")); r.status != 200 || r.node() != "sim-0" {
		t.Errorf("at once: %v", r)
	}
	all := fmt.Sprintf(`{"model":"sim","adapter":"sql","path":%q}`, dir)
	s.changes("/adapters/load", all, "sim-0 unchanged it was loaded already", "sim-1 loaded",
		"sim-2 failed the engine does not load adapters while it runs (vLLM: --enable-lora")
	if m, _ := s.models(); fmt.Sprint(m["sql"].Nodes) != "[sim-0 sim-1]" || m["sql"].Base != "sim" {
		t.Errorf("%+v", m["sql"])
	}
	other := fmt.Sprintf(`{"model":"sim","adapter":"sql","path":%q,"nodes":["sim-1"]}`, adapterDir(t))
	s.changes("/adapters/load", other, "sim-1 failed it is loaded from "+dir+"; unload it first")
	s.changes("/adapters/load", `{"model":"sim","adapter":"new","path":"/nowhere","nodes":["sim-1","sim-1"]}`,
		"sim-1 failed Loading lora new failed: No adapter found for /nowhere")
	s.changes("/adapters/unload", `{"model":"sim","adapter":"sql","nodes":["sim-0","sim-1"]}`, "sim-0 unloaded",
		"sim-1 unloaded")
	if r := s.chat(asking("sql", "hello")); r.status != 404 {
		t.Errorf("once it is unloaded: %v", r)
	}
	s.changes("/adapters/unload", `{"model":"sim","adapter":"sql","nodes":["sim-0"]}`,
		"sim-0 unchanged it was not loaded")
	engines[0].Refuse()
	s.changes("/adapters/load", load, "sim-0 failed ")
}

// TestAdapterOfABackendWithAModel checks that the answer about a backend that serves one configured
// model says so at once. A base in the adapter's settings makes the backend serve the adapter.
func TestAdapterOfABackendWithAModel(t *testing.T) {
	t.Parallel()
	e := simulate(t, 1, func(c *engine.Config) { c.RuntimeLoRA = true })[0]
	s := serve(t, nil, func(c *router.Config) {
		c.Router.Backends = []string{e.URL() + ",id=sim-0,model=sim"}
		c.Models = []router.ModelConfig{{Name: "chat", Base: "sim"}}
	})
	eventually(t, "the node is eligible", func() bool { return s.eligible() == 1 })
	load := func(adapter string) string {
		return fmt.Sprintf(`{"model":"sim","adapter":%q,"path":%q}`, adapter, adapterDir(t))
	}
	s.changes("/adapters/load", load("sql"), "sim-0 loaded but this backend serves model=sim only; leave model= out")
	s.changes("/adapters/unload", `{"model":"sim","adapter":"sql"}`, "sim-0 unloaded")
	if _, nodes := s.changed("/adapters/load", load("chat")); nodes != "sim-0 loaded\n" {
		t.Errorf("with a base: %q", nodes)
	}
	if r := s.chat(asking("chat", "hello")); r.status != 200 {
		t.Errorf("the adapter: %v", r)
	}
}

// TestBadChangesOfAdapters checks that a request that makes no sense reaches no engine.
func TestBadChangesOfAdapters(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 1, func(c *engine.Config) {
		c.RuntimeLoRA, c.Adapters = true, []engine.Adapter{{Name: "sql", Path: "/sql"}}
	})
	s := serve(t, engines, func(c *router.Config) {
		c.Models = []router.ModelConfig{{Name: "sim", Aliases: []string{"gpt"}}}
	})
	eventually(t, "the adapter is known", func() bool { m, _ := s.models(); return m["sql"].Base == "sim" })
	for body, want := range map[string]string{
		`{`:                           "400 the body is not a change of adapters",
		``:                            "400 it is empty",
		`{} {}`:                       "400 malformed JSON at byte 4",
		`[]`:                          "400 it is not a JSON object",
		`null`:                        "400 it is not a JSON object",
		`{"modle":"sim"}`:             `400 "param":"modle"`,
		`{"model":"sim","pth":"/p"}`:  `400 unknown member \"pth\"; there are adapter, model, nodes, path, seconds; did you mean path?`,
		`{"model":"sim","adapter":5}`: "400 adapter must be a string",
		`{"nodes":"sim-0"}`:           "400 nodes must be a list of strings",
		`{"seconds":"1"}`:             "400 seconds must be a number",
		`{"model":"sim","path":"/p"}`: "400 must be a name of 1 to 512 bytes",
		`{"model":"sim","adapter":"a,b","path":"/p"}`:                     "400 without a comma",
		`{"model":"sim","adapter":"a"}`:                                   "400 must name the adapter's directory",
		`{"model":"sim","adapter":"a","path":"/p","seconds":-1}`:          "400 must not be negative",
		`{"model":"other","adapter":"a","path":"/p"}`:                     "404 other",
		`{"model":"sql","adapter":"a","path":"/p"}`:                       "400 sql is itself an adapter",
		`{"model":"gpt","adapter":"sim","path":"/p"}`:                     "400 sim is a model or an alias already",
		`{"model":"sim","adapter":"gpt","path":"/p"}`:                     "400 gpt is a model or an alias already",
		`{"model":"sim","adapter":"a","path":"/p","nodes":["sim-9"]}`:     "400 no node sim-9 serves sim; there are sim-0",
		`{"model":"sim","adapter":"` + strings.Repeat("x", 70<<10) + `"}`: "400 the body is not a change",
	} {
		status, page := s.changed("/adapters/load", body)
		code, text, _ := strings.Cut(want, " ")
		if fmt.Sprint(status) != code || !strings.Contains(page, text) {
			t.Errorf("%.80s: %d %s", body, status, page)
		}
		isObject := strings.HasPrefix(body, `{"`)
		if isObject == strings.Contains(page, `"code":"invalid_json"`) {
			t.Errorf("%.80s: the code in %s", body, page)
		}
	}
	if r := s.post("/adapters/load", `{}`); r.status != 404 || !strings.Contains(string(r.body), "admin") {
		t.Errorf("on the serving port: %v", r)
	}
	for _, q := range engines[0].Requests() {
		if strings.Contains(q.Path, "lora") {
			t.Errorf("the engine got %s", q.Path)
		}
	}
}

// TestAdaptersAreLoadedThroughAgents checks the way through an agent that takes only clients with a
// certificate. A client of the router cannot get there.
func TestAdaptersAreLoadedThroughAgents(t *testing.T) {
	t.Parallel()
	etcd, certificates := startEtcd(t).endpoint, t.TempDir()
	if err := pki.Bootstrap(certificates, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	engines := simulate(t, 1, func(c *engine.Config) { c.RuntimeLoRA, c.APIKey = true, "sk-engine" })
	c, err := agentConfig("a", engines[0].URL(), etcd)
	if err != nil {
		t.Fatal(err)
	}
	files := pki.FilesIn(certificates, pki.Agent)
	c.TLS = agent.TLSConfig{CA: files.CA, Cert: files.Cert, Key: files.Key}
	c.Engine.APIKeyFile = filepath.Join(certificates, "key")
	write(t, c.Engine.APIKeyFile, "sk-engine\n")
	startAgent(t, c)
	s := serve(t, nil, func(r *router.Config) {
		r.Etcd.Endpoints = []string{etcd}
		own := pki.FilesIn(certificates, pki.Router)
		r.Upstream = router.UpstreamTLS{CA: own.CA, Cert: own.Cert, Key: own.Key}
	})
	eventually(t, "the node is eligible", func() bool { return s.eligible() == 1 })
	dir := adapterDir(t)
	load := fmt.Sprintf(`{"lora_name":"sql","lora_path":%q}`, dir)
	for _, path := range []string{
		"/load_lora_adapter", "/v1/load_lora_adapter", "/v1/../load_lora_adapter", "/v1/audio/../../load_lora_adapter",
		"/v1/audio/..%2f..%2fload_lora_adapter", "/v1/audio/..%252f..%252fload_lora_adapter", "//load_lora_adapter",
		"/v1/x/%2e%2e/%2e%2e/load_lora_adapter", "/v1/responses/../../load_lora_adapter",
	} {
		if r := s.post(path, load); r.status < 400 {
			t.Errorf("a client's %s: %v", path, r)
		}
	}
	if got := s.adapters(); got != "a:" {
		t.Errorf("a client has loaded an adapter: %s", got)
	}
	s.changes("/adapters/load", fmt.Sprintf(`{"model":"sim","adapter":"sql","path":%q}`, dir), "a loaded")
	if r := s.chat(asking("sql", "hello")); r.status != 200 {
		t.Errorf("at once: %v", r)
	}
	s.changes("/adapters/load", fmt.Sprintf(`{"model":"sim","adapter":"sql","path":%q}`, dir),
		"a unchanged it was loaded already")
	s.changes("/adapters/unload", `{"model":"sim","adapter":"sql"}`, "a unloaded")
	eventually(t, "it is gone", func() bool { return s.chat(asking("sql", "hello")).status != 200 })
}

// TestAdaptersOfSGLang checks SGLang's paths and answers, and an engine that takes longer than the
// caller wants to wait.
func TestAdaptersOfSGLang(t *testing.T) {
	t.Parallel()
	var has atomic.Bool
	var asked atomic.Value
	block := make(chan struct{})
	b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			list := `{"id":"sim","owned_by":"sglang","root":"sim","parent":null}`
			if has.Load() {
				list += `,{"id":"sql","owned_by":"sglang","root":"/p","parent":"sim"}`
			}
			fmt.Fprintf(w, `{"object":"list","data":[%s]}`, list)
		case "/load_lora_adapter", "/unload_lora_adapter":
			body, _ := io.ReadAll(r.Body)
			asked.Store(r.URL.Path + " " + string(body))
			if strings.Contains(string(body), "slow") {
				select {
				case <-block:
				case <-r.Context().Done():
				}
				return
			}
			if strings.Contains(string(body), "busy") {
				w.WriteHeader(http.StatusConflict)
				io.WriteString(w, `{"error":{"message":"the engine now loads the adapter \"busy\"; try again"}}`)
				return
			}
			if load := r.URL.Path == "/load_lora_adapter"; has.Swap(load) == load {
				w.WriteHeader(http.StatusBadRequest)
				io.WriteString(w, `{"rid":null,"success":false,"error_message":"LoRA adapter sql: no","loaded_adapters":{}}`)
				return
			}
			io.WriteString(w, `{"rid":null,"success":true,"error_message":null,"loaded_adapters":{"sql":"/p"}}`)
		}
	}))
	t.Cleanup(b.Close)
	t.Cleanup(func() { close(block) })
	s := serve(t, nil, func(c *router.Config) { c.Router.Backends = []string{b.URL + ",id=n"} })
	eventually(t, "the node is eligible", func() bool { return s.eligible() == 1 })
	s.changes("/adapters/load", `{"model":"sim","adapter":"sql","path":"/p"}`, "n loaded")
	if got := asked.Load(); got != `/load_lora_adapter {"lora_name":"sql","lora_path":"/p"}` {
		t.Errorf("asked %s", got)
	}
	s.hasAdapters("n:sql+")
	s.changes("/adapters/load", `{"model":"sim","adapter":"sql","path":"/p"}`, "n unchanged")
	s.changes("/adapters/load", `{"model":"sim","adapter":"sql","path":"/q"}`, "n failed it is loaded from /p")
	s.changes("/adapters/unload", `{"model":"sim","adapter":"sql"}`, "n unloaded")
	if got := asked.Load(); got != `/unload_lora_adapter {"lora_name":"sql"}` {
		t.Errorf("asked %s", got)
	}
	s.changes("/adapters/unload", `{"model":"sim","adapter":"busy"}`,
		`n failed the engine now loads the adapter "busy"; try again`)
	s.changes("/adapters/load", `{"model":"sim","adapter":"slow","path":"/p","seconds":0.1}`,
		"n failed no answer in time")
}

// TestEnginesWithoutAdapters checks that the router says which engines can load adapters.
func TestEnginesWithoutAdapters(t *testing.T) {
	t.Parallel()
	s := serve(t, nil, func(c *router.Config) {
		for _, owner := range []string{"llamacpp", "someone"} {
			b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/models" {
					fmt.Fprintf(w, `{"object":"list","data":[{"id":"sim","owned_by":%q}]}`, owner)
				}
			}))
			t.Cleanup(b.Close)
			c.Router.Backends = append(c.Router.Backends, b.URL+",id="+owner)
		}
		c.Router.DrainTimeout = config.Duration(0)
	})
	eventually(t, "the nodes are eligible", func() bool { return s.eligible() == 2 })
	s.changes("/adapters/load", `{"model":"sim","adapter":"sql","path":"/p"}`,
		"llamacpp failed an engine of kind llama_cpp cannot load adapters while it runs; vllm and sglang can",
		"someone failed the engine's kind is unknown; vllm and sglang load adapters while they run")
}

// TestOnlyThisHostChangesAdapters checks that the admin port takes changes of adapters from this
// host only, also where it can be reached from others.
func TestOnlyThisHostChangesAdapters(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	for at, want := range map[string]int{
		"127.0.0.1:5": 400, "[::1]:5": 400, "@": 400, "10.0.0.9:5": 403, "[2001:db8::1]:5": 403, "x": 403,
	} {
		for _, path := range []string{"/adapters/load", "/adapters/unload"} {
			r := httptest.NewRequest(http.MethodPost, "http://localhost"+path, strings.NewReader("{}"))
			if r.RemoteAddr = at; at == "@" {
				r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.UnixAddr{Net: "unix"}))
			}
			w := httptest.NewRecorder()
			s.AdminHandler().ServeHTTP(w, r)
			if w.Code != want || want == 403 && !strings.Contains(w.Body.String(), "not_local") {
				t.Errorf("%s from %q: %d %s", path, at, w.Code, w.Body)
			}
		}
	}
	r := httptest.NewRequest(http.MethodPost, "http://localhost/adapters/load", strings.NewReader("{}"))
	r.RemoteAddr = "127.0.0.1:5"
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	w := httptest.NewRecorder()
	if s.AdminHandler().ServeHTTP(w, r); w.Code != 403 || !strings.Contains(w.Body.String(), "cross_origin") {
		t.Errorf("from the page of another site: %d %s", w.Code, w.Body)
	}
}
