package router_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
