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
	"testing"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router"
)

// oldVLLM is a backend that claims to be a vLLM of before /v1/messages.
func oldVLLM(t *testing.T) string {
	b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/health":
		case "/v1/models":
			io.WriteString(w, `{"object":"list","data":[{"id":"sim","object":"model","owned_by":"vllm"}]}`)
		case "/version":
			io.WriteString(w, `{"version":"0.10.2"}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"detail":"Not Found"}`)
		}
	}))
	t.Cleanup(b.Close)
	return b.URL
}

// TestAPIThatAnEngineLacks checks that messages go to the engine that has the API. Without such an
// engine the client gets an error in its API's envelope that names the engines.
func TestAPIThatAnEngineLacks(t *testing.T) {
	t.Parallel()
	backends := []string{oldVLLM(t) + ",id=old", simulate(t, 1)[0].URL() + ",id=new"}
	s := serve(t, nil, func(c *router.Config) { c.Router.Backends = backends })
	eventually(t, "both are eligible", func() bool { return s.eligible() == 2 })
	body := `{"model":"sim","max_tokens":4,"messages":[{"role":"user","content":"hello"}]}`
	for range 8 {
		if r := s.post("/v1/messages", body); r.status != 200 || r.node() != "new" {
			t.Errorf("%v", r)
		}
	}
	e := s.explainAs("messages", body)
	for _, c := range e.Candidates {
		if (c.Filter == "api") != (c.Node == "old") {
			t.Errorf("%+v", c)
		}
	}
	if e = s.explainAs("chat", body); len(e.Candidates) != 2 || !e.Candidates[0].Eligible || !e.Candidates[1].Eligible {
		t.Errorf("of a chat: %+v", e)
	}
	if s.metrics().sum("cgn_router_filtered_total", `reason="api"`) < 8 {
		t.Error("the picks are not counted")
	}
	r := s.post("/v1/messages", body, "x-cgn-node", "old")
	if r.status != 404 || !strings.Contains(string(r.body), `"type":"error"`) ||
		!strings.Contains(string(r.body), "/v1/messages is not served for this model: its engines (vllm 0.10.2) lack it") {
		t.Errorf("%v", r)
	}
}

// threshold sends a document to /busy_threshold, or reads it without one. The answer has no spaces.
func (s *site) threshold(doc string, header ...string) (status int, body string) {
	s.t.Helper()
	method := http.MethodPost
	if doc == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequest(method, s.admin+"/busy_threshold", strings.NewReader(doc))
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
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, strings.Join(strings.Fields(string(page)), "")
}

// TestThresholdsAreRemoved checks DELETE of /busy_threshold, and which clients may use it.
func TestThresholdsAreRemoved(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	s.threshold(`{"model":"sim","active_decode_blocks_threshold":0.9}`)
	const at = "/busy_threshold"
	ask := func(method, path string, header ...string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(method, s.admin+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := s.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		page, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, resp.Header.Get("Allow") + strings.Join(strings.Fields(string(page)), "")
	}
	shown := func() bool {
		_, body := ask("GET", "/debug/fleet")
		return strings.Contains(body, `"busy_threshold":{"model":"sim","active_decode_blocks_threshold":0.9,`)
	}
	if !shown() {
		t.Error("/debug/fleet does not show the threshold")
	}
	for query, want := range map[string]string{
		"": `"param":"model"`, "?model=nobody": "model_not_found", "?model=sin": "therearesim;didyoumeansim?",
		"?model=": `"missing_`, "?model=sim&model=x": "namesseveralmodels",
	} {
		if status, body := ask("DELETE", at+query); status/100 != 4 || !strings.Contains(body, want) {
			t.Errorf("DELETE %s: %d %s", query, status, body)
		}
	}
	if status, body := ask("DELETE", at+"?model=sim", "Sec-Fetch-Site", "cross-site"); status != 403 {
		t.Errorf("DELETE of another site: %d %s", status, body)
	}
	if _, body := s.threshold(`{"model":"sim"}`); !strings.Contains(body, `"active_decode_blocks_threshold":0.9`) {
		t.Errorf("a refused removal changed something: %s", body)
	}
	if status, body := ask("DELETE", at+"?model=sim"); shown() || status != 200 ||
		!strings.Contains(body, `"active_decode_blocks_threshold":null`) {
		t.Errorf("DELETE: %d %s", status, body)
	}
	if _, body := s.threshold(""); body != `{"thresholds":[]}` {
		t.Errorf("thresholds are left: %s", body)
	}
	if status, body := ask("PUT", at); status != 405 || !strings.HasPrefix(body, "DELETE, GET, POST") {
		t.Errorf("PUT: %d %s", status, body)
	}
}

// TestThresholdsOfADepartedModelAreRemoved checks DELETE of /busy_threshold for a model that is
// gone.
func TestThresholdsOfADepartedModelAreRemoved(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1), func(c *router.Config) {
		c.Models = []router.ModelConfig{{Name: "lazy", Base: "sim"}}
	})
	if status, body := s.threshold(`{"model":"lazy","active_decode_blocks_threshold":0.9}`); status != 200 {
		t.Fatal(body)
	}
	next := settings(t, s.log)
	next.Router.Backends = []string{s.engines[0].URL() + ",id=sim-0"}
	if _, _, err := s.ReloadConfig(t.Context(), &next); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{200, 404} {
		req, err := http.NewRequest("DELETE", s.admin+"/busy_threshold?model=lazy", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := s.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if resp.Body.Close(); resp.StatusCode != want {
			t.Errorf("DELETE: %d, want %d", resp.StatusCode, want)
		}
	}
}

// TestBusyThresholdEndpoint follows the documented requests of /busy_threshold and their answers.
func TestBusyThresholdEndpoint(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	want := func(doc string, status int, parts ...string) {
		t.Helper()
		got, body := s.threshold(doc)
		for _, part := range parts {
			if got != status || !strings.Contains(body, strings.Join(strings.Fields(part), "")) {
				t.Errorf("%s: %d %s, want %s", doc, got, body, part)
			}
		}
	}
	const unset = `{"model":"sim","active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":null}`
	const both = `{"model":"sim","active_decode_blocks_threshold":0.85,"active_prefill_tokens_threshold":1000}`
	want("", 200, `{"thresholds":[]}`)
	want(`{"model":"sim"}`, 200, unset)
	want("", 200, `{"thresholds":[]}`)
	want(both, 200, both)
	want(`{"model":"sim","active_decode_blocks_threshold":0.9}`, 200, strings.Replace(both, "0.85", "0.9", 1))
	want(`{"model":"sim","active_prefill_tokens_threshold":null}`, 200, strings.Replace(both, "0.85", "0.9", 1))
	want(`{"model":"sim"}`, 200, strings.Replace(both, "0.85", "0.9", 1))
	want("", 200, `{"thresholds":[`+strings.Replace(both, "0.85", "0.9", 1)+`]}`)
	const share = `"active_prefill_tokens_threshold_frac":0.5`
	want(`{"model":"sim",`+share+`}`, 200, share)

	want(`{"model":"sin"}`, 200, strings.Replace(unset, "sim", "sin", 1))
	want(`{"model":"sin","active_decode_blocks_threshold":0.5}`, 404, `"model_not_found"`,
		"the model `sin` does not exist", "there are sim; did you mean sim?")
	want(`{"model":"sin"}`, 200, strings.Replace(unset, "sim", "sin", 1))
	want(`{"active_decode_blocks_threshold":0.5}`, 400, `"param":"model"`)
	want(`{"model":"sim","active_decode_blocks_threshold":1.5}`, 400, `"param":"active_decode_blocks_threshold"`,
		"0 to 1")
	want(`{"model":"sim","active_prefill_tokens_threshold":-1}`, 400, `"param":"active_prefill_tokens_threshold"`)
	want(`{"model":"sim","active_decode_threshold":0.5}`, 400, `"param":"active_decode_threshold"`, "there are")
	want(`not JSON`, 400, "one JSON object", `"code":"invalid_json"`)
	want(`{"model":"sim","model":"sim"}`, 400, "appears twice", `"param":"model"`)
	want(`{"model":"`+strings.Repeat("x", 65<<10)+`"}`, 413, "64 KiB")
	want(`{"model":"sim"}`, 200, `"active_decode_blocks_threshold":0.9`)

	for _, method := range []string{"GET", "POST"} {
		if r := s.ask(method, "/busy_threshold", both); r.status != 404 ||
			!strings.Contains(string(r.body), "it is at the router's admin port, "+"127.0.0.1:0 (router.admin)") {
			t.Errorf("%s at the port for clients: %v", method, r)
		}
	}
}

// listsThresholds waits until the only model has the given thresholds; empty: none.
func (s *site) listsThresholds(limits string) {
	s.t.Helper()
	want := `{"thresholds":[]}`
	if limits != "" {
		want = `{"thresholds":[{"model":"sim",` + limits + `}]}`
	}
	eventually(s.t, want, func() bool {
		_, body := s.threshold("")
		return body == want
	})
}

// TestThresholdsBeforeAnyNode checks that thresholds can be set for a model with settings before a
// node serves it.
func TestThresholdsBeforeAnyNode(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t).endpoint
	store := dialEtcd(t, etcd)
	s := serve(t, nil, func(c *router.Config) { c.Etcd.Endpoints = []string{etcd} })
	if err := store.PutModel(t.Context(), "later", cluster.Model{Aliases: []string{"soon"}}); err != nil {
		t.Fatal(err)
	}
	const limits = `"active_decode_blocks_threshold":0.5,"active_prefill_tokens_threshold":null}`
	eventually(t, "the model is known", func() bool {
		status, body := s.threshold(`{"model":"soon","active_decode_blocks_threshold":0.5}`)
		return status == 200 && body == `{"model":"later",`+limits
	})
	if status, body := s.threshold(""); status != 200 || body != `{"thresholds":[{"model":"later",`+limits+`]}` {
		t.Errorf("%d %s", status, body)
	}
}

// TestThresholdsOfThePolicy checks that the thresholds of the fleet's policy count and follow its
// changes, and that a threshold set by request wins until the router ends.
func TestThresholdsOfThePolicy(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.json")
	write := func(doc string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"busy":{"active_decode_blocks_threshold":0.5}}`)
	url := full(t)
	s := serve(t, nil, func(c *router.Config) {
		c.Router.PolicyFile, c.Router.Backends = file, []string{url + ",id=a"}
	})
	eventually(t, "the report of the cache makes the node busy", func() bool {
		return s.eligible() == 1 && s.chat(chatBody("hello", plain)).status == 503
	})
	s.listsThresholds(`"active_decode_blocks_threshold":0.5,"active_prefill_tokens_threshold":null`)
	s.threshold(`{"model":"sim","active_decode_blocks_threshold":0.8}`)
	write(`{"busy":{"active_decode_blocks_threshold":0.5,"active_prefill_tokens_threshold":9}}`)
	s.listsThresholds(`"active_decode_blocks_threshold":0.8,"active_prefill_tokens_threshold":9`)
	write(`{}`)
	s.listsThresholds(`"active_decode_blocks_threshold":0.8,"active_prefill_tokens_threshold":null`)
}

// TestThresholdsOfAModel checks that the thresholds of a model's own policy count in place of the
// fleet's, and follow the changes of [[model]] and of etcd. A threshold set by request wins.
func TestThresholdsOfAModel(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t).endpoint
	store := dialEtcd(t, etcd)
	fleets := []byte(`{"busy":{"active_decode_blocks_threshold":0.5}}`)
	if err := store.PutPolicy(t.Context(), fleets); err != nil {
		t.Fatal(err)
	}
	url := full(t)
	configured := func(policy string) func(c *router.Config) {
		return func(c *router.Config) {
			c.Router.Backends, c.Etcd.Endpoints = []string{url + ",id=a"}, []string{etcd}
			c.Models = []router.ModelConfig{{Name: "sim", Policy: policy}}
		}
	}
	s := serve(t, nil, configured(`{"busy":{"active_prefill_tokens_threshold":7}}`))
	reload := func(policy string) {
		t.Helper()
		next := settings(t, s.log)
		configured(policy)(&next)
		if _, _, err := s.ReloadConfig(t.Context(), &next); err != nil {
			t.Fatal(err)
		}
	}
	answered := func(status int) {
		t.Helper()
		if r := s.chat(chatBody("hello", plain)); r.status != status {
			t.Errorf("%v, want %d", r, status)
		}
	}
	eventually(t, "the report of the cache", func() bool {
		_, page := s.get(s.admin + "/debug/fleet")
		return strings.Contains(string(page), `"kv_usage": 0.9`) && s.eligible() == 1
	})
	s.listsThresholds(`"active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":7`)
	answered(200)
	reload(`{"busy":{"active_decode_blocks_threshold":0.6}}`)
	s.listsThresholds(`"active_decode_blocks_threshold":0.6,"active_prefill_tokens_threshold":null`)
	answered(503)
	reload(`{}`)
	s.listsThresholds("")
	reload("")
	s.listsThresholds(`"active_decode_blocks_threshold":0.5,"active_prefill_tokens_threshold":null`)
	answered(503)
	put := func(doc string) {
		t.Helper()
		if err := store.PutModel(t.Context(), "sim", cluster.Model{Policy: json.RawMessage(doc)}); err != nil {
			t.Fatal(err)
		}
	}
	put(`{"busy":{"active_prefill_tokens_threshold":7}}`)
	s.listsThresholds(`"active_decode_blocks_threshold":null,"active_prefill_tokens_threshold":7`)
	s.threshold(`{"model":"sim","active_decode_blocks_threshold":0.8}`)
	put(`{"busy":{"active_decode_blocks_threshold":0.1,"active_prefill_tokens_threshold":8}}`)
	s.listsThresholds(`"active_decode_blocks_threshold":0.8,"active_prefill_tokens_threshold":8`)
	put("")
	s.listsThresholds(`"active_decode_blocks_threshold":0.8,"active_prefill_tokens_threshold":null`)
}

// TestThresholdsAreChangedLocally checks that a client of another host, and a browser's page of
// another site, may read thresholds and not set them.
func TestThresholdsAreChangedLocally(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	from := func(client, doc string) (int, string) {
		req := httptest.NewRequest(http.MethodPost, "http://localhost/busy_threshold", strings.NewReader(doc))
		req.RemoteAddr = client
		w := httptest.NewRecorder()
		s.AdminHandler().ServeHTTP(w, req)
		return w.Code, w.Body.String()
	}
	const change, read = `{"model":"sim","active_decode_blocks_threshold":0.5}`, `{"model":"sim"}`
	for _, client := range []string{"192.0.2.7:1234", "[2001:db8::7]:1234", "10.0.0.1:1", ""} {
		if status, body := from(client, change); status != 403 || !strings.Contains(body, "not_local") ||
			!strings.Contains(body, "127.0.0.1") {
			t.Errorf("%s: %d %s", client, status, body)
		}
		if status, body := from(client, read); status != 200 || !strings.Contains(body, "null") {
			t.Errorf("%s reads: %d %s", client, status, body)
		}
	}
	if status, body := s.threshold(change, "Sec-Fetch-Site", "cross-site"); status != 403 ||
		!strings.Contains(body, "cross_origin") {
		t.Errorf("another site's page: %d %s", status, body)
	}
	req := httptest.NewRequest(http.MethodPost, "http://localhost/busy_threshold", strings.NewReader(change))
	req.RemoteAddr = "@"
	at := &net.UnixAddr{Name: "/run/admin.sock", Net: "unix"}
	w := httptest.NewRecorder()
	s.AdminHandler().ServeHTTP(w, req.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, at)))
	if w.Code != 200 {
		t.Errorf("over a Unix socket: %d %s", w.Code, w.Body)
	}
	for _, client := range []string{"127.0.0.1:1234", "[::1]:1234"} {
		if status, body := from(client, change); status != 200 {
			t.Errorf("%s: %d %s", client, status, body)
		}
	}
	// a page whose name points at this host
	for _, at := range []string{s.AdminAddr().String(), s.Addr().String()} {
		req, err := http.NewRequest(http.MethodPost, "http://"+at+"/busy_threshold", strings.NewReader(change))
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "evil.example"
		req.Header.Set("Origin", "http://evil.example")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != 403 {
			t.Errorf("a rebound page at %s: %d", at, resp.StatusCode)
		}
	}
}

// full is a backend whose KV cache is nine tenths full.
func full(t *testing.T) string {
	b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			io.WriteString(w, `{"choices":[]}`)
		case r.URL.Path == "/v1/models":
			io.WriteString(w, `{"object":"list","data":[{"id":"sim","object":"model","owned_by":"vllm"}]}`)
		case r.URL.Path == "/metrics":
			io.WriteString(w, "vllm:num_requests_running 0\nvllm:kv_cache_usage_perc 0.9\n")
		}
	}))
	t.Cleanup(b.Close)
	return b.URL
}

// TestEveryNodeIsBusy checks both statuses of an overload, and that a pin does not lift it.
func TestEveryNodeIsBusy(t *testing.T) {
	t.Parallel()
	for _, status := range []int{503, 529} {
		url := full(t)
		s := serve(t, nil, func(c *router.Config) {
			c.Router.Backends, c.Router.OverloadStatus = []string{url + ",id=a"}, status
		})
		eventually(t, "the report of the cache", func() bool {
			_, page := s.get(s.admin + "/debug/fleet")
			return strings.Contains(string(page), `"kv_usage": 0.9`) && s.eligible() == 1
		})
		if r := s.chat(chatBody("hello", plain)); r.status != 200 {
			t.Errorf("without thresholds: %v", r)
		}
		s.threshold(`{"model":"sim","active_decode_blocks_threshold":0.5}`)
		for _, pin := range []string{"", "a"} {
			r := s.chat(chatBody("hello", plain), "x-cgn-node", pin)
			var e struct {
				Error struct {
					Message, Type string
					Code          any
				}
			}
			kind, code := "service_unavailable", any("overloaded")
			if status == 529 {
				kind, code = "Overloaded", any(529.0)
			}
			if err := json.Unmarshal(r.body, &e); err != nil || r.status != status || e.Error.Type != kind ||
				e.Error.Code != code || !strings.Contains(e.Error.Message, "busy") ||
				r.header.Get("Retry-After") != "1" {
				t.Errorf("%d, pinned to %q: %v %s", status, pin, r, r.body)
			}
		}
		body := `{"model":"sim","max_tokens":4,"messages":[{"role":"user","content":"hello"}]}`
		if r := s.post("/v1/messages", body); r.status != status ||
			!strings.Contains(string(r.body), `"overloaded_error"`) {
			t.Errorf("Anthropic's API: %v %s", r, r.body)
		}
		e := s.explain(chatBody("hello", plain))
		if c := e.Candidates[0]; e.Winner != "" || c.Filter != "busy" ||
			!strings.HasPrefix(c.Reason, "busy: 0.9 of its KV blocks are in use (reported ") ||
			!strings.HasSuffix(c.Reason, " ago), active_decode_blocks_threshold is 0.5") {
			t.Errorf("%+v", e)
		}
		if n := s.metrics().sum("cgn_router_filtered_total", `reason="busy"`); n != 3 {
			t.Errorf("%v picks are counted", n)
		}
		s.threshold(fmt.Sprintf(`{"model":"sim","active_decode_blocks_threshold":%g}`, 0.95))
		if r := s.chat(chatBody("hello", plain)); r.status != 200 {
			t.Errorf("below the threshold: %v", r)
		}
	}
}
