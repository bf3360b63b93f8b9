package router_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestEveryEndpoint checks that an engine's answer reaches the client unchanged. An endpoint that
// no node serves is refused in the envelope of its API.
func TestEveryEndpoint(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2))
	for _, c := range []struct{ path, body, answer string }{
		{"/v1/chat/completions", `{"model":"%s","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`, `"chat.completion"`},
		{"/v1/completions", `{"model":"%s","max_tokens":2,"prompt":"hi"}`, `"text_completion"`},
		{"/v1/completions", `{"model":"%s","max_tokens":2,"prompt":[1,2,3]}`, `"text_completion"`},
		{"/v1/embeddings", `{"model":"%s","input":["a","b"]}`, `"embedding"`},
		{"/v1/responses", `{"model":"%s","max_output_tokens":2,"input":"hi"}`, `"response"`},
		{"/v1/messages", `{"model":"%s","max_tokens":2,"messages":[{"role":"user","content":"hi"}]}`, `"message"`},
		{"/v1/messages/count_tokens", `{"model":"%s","messages":[{"role":"user","content":"hi"}]}`, `"input_tokens"`},
		{"/v1/rerank", `{"model":"%s","query":"q","documents":["a","b"]}`, `"relevance_score"`},
		{"/rerank", `{"model":"%s","query":"q","documents":["a","b"]}`, `"relevance_score"`},
		{"/v1/score", `{"model":"%s","text_1":"a","text_2":["b","c"]}`, `"score"`},
		{"/tokenize", `{"model":"%s","prompt":"hello"}`, `"tokens"`},
		{"/detokenize", `{"model":"%s","tokens":[1,2]}`, `"prompt"`},
	} {
		r := s.post(c.path, fmt.Sprintf(c.body, "sim"))
		if r.status != 200 || r.err != nil || !bytes.Contains(r.body, []byte(c.answer)) || r.node() == "" ||
			r.header.Get("x-request-id") == "" {
			t.Errorf("%s: %v", c.path, r)
		}
		r = s.post(c.path, fmt.Sprintf(c.body, "nobody's"))
		var e struct {
			Type  string
			Error struct{ Type, Message string }
		}
		anthropic := strings.HasPrefix(c.path, "/v1/messages")
		if err := json.Unmarshal(r.body, &e); err != nil || r.status != 404 || e.Error.Type != "not_found_error" ||
			(e.Type == "error") != anthropic {
			t.Errorf("%s, a model that nobody serves: %v", c.path, r)
		}
	}
	if r := s.post("/v1/unheard-of", `{"model":"sim"}`); r.status != 404 ||
		!bytes.Contains(r.body, []byte(`{"detail":"Not Found"}`)) {
		t.Errorf("a path that only an engine may know: %v", r)
	}
}

func TestMultipart(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	file, _ := w.CreateFormFile("file", "speech.wav")
	file.Write(bytes.Repeat([]byte{0, 1, '\r', '\n', '-'}, 20_000))
	w.WriteField("model", "sim")
	w.Close()
	sent := form.String()
	r := s.post("/v1/audio/transcriptions", sent, "Content-Type", w.FormDataContentType())
	if r.status != 200 || !bytes.Contains(r.body, []byte(`"text"`)) {
		t.Errorf("%v", r)
	}
	if got := lastTo(t, s.engines[0], "/v1/audio/transcriptions"); string(got.Body) != sent {
		t.Errorf("the engine got %d bytes of %d, or others", len(got.Body), len(sent))
	}
}

// TestModels checks that the list is the union of the nodes' models.
func TestModels(t *testing.T) {
	t.Parallel()
	one := simulate(t, 1, func(c *engine.Config) { c.Models = []string{"large", "large-lora"} })
	two := simulate(t, 1, func(c *engine.Config) { c.Models = []string{"large", "org/small"} })
	s := serve(t, append(one, two...))
	status, page := s.get(s.url + "/v1/models")
	var list struct {
		Object string
		Data   []struct{ ID, Object string }
	}
	if err := json.Unmarshal(page, &list); err != nil || status != 200 || list.Object != "list" {
		t.Fatalf("%d %s", status, page)
	}
	var names []string
	for _, m := range list.Data {
		names = append(names, m.ID)
	}
	if want := []string{"large", "large-lora", "org/small"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	for name, want := range map[string]int{"org/small": 200, "org%2Fsmall": 200, "large": 200, "small": 404} {
		if status, page := s.get(s.url + "/v1/models/" + name); status != want {
			t.Errorf("%s: %d %s", name, status, page)
		}
	}
	for i := range 8 {
		if r := s.chat(strings.Replace(chatBody(fmt.Sprint(i), plain), `"sim"`, `"org/small"`, 1)); r.status != 200 ||
			r.node() != "sim-1" {
			t.Errorf("%v", r)
		}
	}
}

// TestHeaders checks which headers go to the engine and which do not.
func TestHeaders(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, []byte("backend-key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	client := []string{
		"traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "x-request-id", "client-made-this",
		"Authorization", "Bearer client-key", "x-api-key", "client-key", "Cookie", "c=1", "x-forwarded-user", "root",
		"x-cgn-tenant", "other", "x-cgn-session-id", "s", "openai-organization", "org", "Accept-Encoding", "br",
		"Connection", "x-hop", "x-hop", "1", "Proxy-Authorization", "Basic x",
	}
	for name, c := range map[string]struct {
		backend, engineKey, want string
		forward                  bool
	}{
		"own key":             {",api_key_file=" + key, "backend-key", "Bearer backend-key", false},
		"own key and forward": {",api_key_file=" + key, "backend-key", "Bearer backend-key", true},
		"no key":              {"", "", "", false},
		"forward":             {"", "", "Bearer client-key", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, simulate(t, 1, func(e *engine.Config) { e.APIKey = c.engineKey }), func(r *router.Config) {
				r.Router.Backends[0] += c.backend
				r.Router.ForwardAuth = c.forward
			})
			r := s.chat(chatBody("hello", plain), client...)
			if r.status != 200 || r.header.Get("x-request-id") != "client-made-this" {
				t.Fatalf("%v %v", r, r.header)
			}
			all := s.engines[0].Requests()
			got := all[slices.IndexFunc(all, func(q engine.Request) bool {
				return q.Path == "/v1/chat/completions"
			})].Header
			for _, travels := range []string{"traceparent", "x-request-id", "openai-organization", "Content-Type"} {
				if got.Get(travels) == "" {
					t.Errorf("%s did not travel", travels)
				}
			}
			for _, stays := range []string{"x-api-key", "Cookie", "x-forwarded-user", "x-cgn-tenant",
				"x-cgn-session-id", "x-hop", "Proxy-Authorization", "Accept-Encoding", "Connection"} {
				if got.Get(stays) != "" {
					t.Errorf("%s: %s travelled", stays, got.Get(stays))
				}
			}
			if got.Get("Authorization") != c.want {
				t.Errorf("authorization %q, want %q", got.Get("Authorization"), c.want)
			}
		})
	}
}

// TestCaps checks that a limit of three refuses the fourth request at once, and none of the first
// three.
func TestCaps(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		tweak  func(*router.Config)
		status int
		code   string
	}{
		"model":         {func(c *router.Config) { c.Router.Admission.MaxQueue = 3 }, 503, "queue_full"},
		"model's own":   {func(c *router.Config) { c.Models = []router.ModelConfig{{Name: "sim", MaxQueue: 3}} }, 503, "queue_full"},
		"router":        {func(c *router.Config) { c.Router.Admission.Global = 3 }, 429, "router_full"},
		"streams":       {func(c *router.Config) { c.Limits.MaxStreams = 3 }, 429, "too_many_streams"},
		"slots of node": {func(c *router.Config) { c.Router.Backends[0] += ",max_concurrent=3" }, 503, "all_nodes_busy"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, simulate(t, 1), c.tweak)
			var running []*http.Response
			for range 3 {
				running = append(running, s.begin("/v1/chat/completions", chatBody("hello", streaming), "x-sim-fault",
					"stall_after=1"))
			}
			r := s.chat(chatBody("hello", streaming))
			if r.status != c.status || r.code() != c.code || r.header.Get("Retry-After") == "" {
				t.Errorf("%v", r)
			}
			for _, resp := range running {
				resp.Body.Close() // the client leaves
			}
			s.idle()
			mustAll(t, "there is room again", []*reply{s.chat(chatBody("hello", streaming))})
		})
	}
}

// policyInForce returns the policy in /debug/fleet, and the fleet's problems.
func (s *site) policyInForce() (in policy.InForce, problems string) {
	s.t.Helper()
	_, page := s.get(s.admin + "/debug/fleet")
	f := struct {
		Policy   *policy.InForce
		Problems json.RawMessage
	}{Policy: &in}
	if err := json.Unmarshal(page, &f); err != nil {
		s.t.Fatal(err)
	}
	return in, string(f.Problems)
}

// TestPolicyInForce checks that /debug/fleet and the log tell which policy is in force, where it
// comes from, and why a newer document is not.
func TestPolicyInForce(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.json")
	write := func(doc string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"mode":"least_loaded"}`)
	s := serve(t, simulate(t, 2), func(c *router.Config) { c.Router.PolicyFile = file })
	reloads := func(result string) float64 {
		return s.metrics().sum("cgn_router_policy_reloads_total", `result="`+result+`"`)
	}
	write(`{"mode":"round_robin","cost":{"temperature":1},"max_queue":7}`)
	eventually(t, "it is in force", func() bool { return reloads("applied") == 1 })
	if in, problems := s.policyInForce(); in.Mode != "round_robin" || in.Source != "file "+file || in.Refused != nil ||
		in.ModeBy != "" || in.Settings.MaxQueue != 7 || strings.Contains(problems, "policy") {
		t.Errorf("in force: %+v, problems %s", in, problems)
	}
	if text := s.log.text(); !strings.Contains(text, "msg=\"policy in force\" source=\"file "+file+
		"\" mode=round_robin without_effect=[cost.temperature] prefill_load_model.mode=none max_queue=7") ||
		strings.Contains(text, "score.weights.kv") {
		t.Error("the log does not have the policy with its source, or has settings of other modes")
	}
	write(`{"mode":"round_robin`)
	eventually(t, "garbage is refused", func() bool { return reloads("refused") == 1 })
	if in, problems := s.policyInForce(); in.Mode != "round_robin" || in.Refused == nil ||
		in.Refused.Source != "file "+file || !strings.Contains(in.Refused.Reason, "malformed JSON") ||
		!strings.Contains(problems, `"policy, file `+file+`"`) {
		t.Errorf("refused: %+v, problems %s", in, problems)
	}
	if s.log.count("stays\" source=\"file "+file) != 1 {
		t.Error("the log does not name the refused file")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a file that is gone is a problem", func() bool {
		in, problems := s.policyInForce()
		return in.Refused != nil && in.Refused.Unread &&
			strings.Contains(problems, "the file is gone; the policy that it had stays in force")
	})
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a file that cannot be read is another problem", func() bool {
		in, problems := s.policyInForce()
		return in.Refused.Unread && strings.Contains(problems, "the file cannot be read: ")
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	write(`{"mode":"random"}`)
	eventually(t, "a good document ends the problem", func() bool {
		in, problems := s.policyInForce()
		return in.Mode == "random" && in.Refused == nil && !strings.Contains(problems, "policy")
	})
}

// TestPolicyFile checks that a changed file is accepted or refused as a whole while the router
// runs.
func TestPolicyFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.json")
	write := func(doc string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"mode":"least_loaded"}`)
	s := serve(t, simulate(t, 2), func(c *router.Config) { c.Router.PolicyFile = file })
	reloads := func(result string) float64 {
		return s.metrics().sum("cgn_router_policy_reloads_total", `result="`+result+`"`)
	}
	write(`{"mode":"round_robin"}`)
	eventually(t, "it is in force", func() bool { return reloads("applied") == 1 })
	write(`{"mode":"round_robin`)
	eventually(t, "garbage is refused", func() bool { return reloads("refused") == 1 })
	served := map[string]int{}
	for i := range 10 {
		served[s.chat(chatBody(fmt.Sprint(i), plain)).node()]++
	}
	if served["sim-0"] != 5 {
		t.Errorf("round robin gave %v", served)
	}
	if status, body := s.get(s.admin + "/v1/models"); status != 404 || !strings.Contains(string(body),
		"this is the admin port; the API is at 127.0.0.1:0 (router.listen)") {
		t.Errorf("the API at the admin port: %d %s", status, body)
	}
	if status, body := s.get(s.admin + "/"); status != 404 || !strings.Contains(string(body),
		"there are /adapters/load, /adapters/unload, /busy_threshold, /debug/fleet, /debug/route, /healthz, /metrics, /readyz, "+
			"/usage, /debug/pprof/") {
		t.Errorf("the root of the admin port: %d %s", status, body)
	}
	if status, body := s.get(s.admin + "/debug/route"); status != 405 || !strings.Contains(string(body), "use POST") {
		t.Errorf("GET instead of POST: %d %s", status, body)
	}
	if resp, err := http.Get(s.admin + "/healthz"); err != nil || resp.StatusCode != 200 {
		t.Errorf("healthz: %v %v", resp, err)
	} else {
		resp.Body.Close()
	}
}
