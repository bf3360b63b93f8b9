package router_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestDeadlinesOfClientsOpenNoBreaker checks that a client's deadline does not count against the
// node. Mode score sends requests that mode predicted would refuse.
func TestDeadlinesOfClientsOpenNoBreaker(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2), scored)
	for i := range 12 {
		var r *reply
		for ms := 60; ms <= 4000; ms *= 2 { // the head must come before the deadline
			if r = s.chat(chatBody(fmt.Sprint("hello ", i), `,"stream":true,"max_tokens":4000`), "x-cgn-deadline-ms",
				fmt.Sprint(ms)); r.status != 504 {
				break
			}
		}
		if r.status != 200 || !strings.Contains(string(r.body), "deadline_exceeded") ||
			strings.Contains(string(r.body), "[DONE]") {
			t.Fatalf("request %d: %v", i, r)
		}
	}
	late := 0
	for i := range 20 {
		if r := s.chat(chatBody(fmt.Sprint("soon ", i), ""), "x-cgn-deadline-ms", "1"); r.status == 504 {
			late++
		}
	}
	if late == 0 {
		t.Error("all answers came within 1 ms")
	}
	if n := s.eligible(); n != 2 {
		t.Errorf("%d of 2 nodes are eligible", n)
	}
	if n := s.log.count("request failed on node"); n != 0 {
		t.Errorf("%d lines of the log blame a node", n)
	}
	mustAll(t, "after the deadlines", together(8, func(i int) *reply {
		return s.chat(chatBody(fmt.Sprint("after ", i), ""))
	}))
}

// TestStreamOptionsRefused checks an engine that refuses stream_options. The router repeats the
// request without stream_options and omits them from later requests.
func TestStreamOptionsRefused(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1, func(c *engine.Config) { c.RejectStreamOptions = true }))
	for i := range 3 {
		r := s.chat(chatBody("hello", streaming))
		mustAll(t, fmt.Sprint("request ", i), []*reply{r})
		if !strings.HasSuffix(strings.TrimSpace(string(r.body)), "[DONE]") {
			t.Errorf("request %d: %v", i, r)
		}
	}
	if n := s.metrics().sum("cgn_router_stream_options_rejected_total"); n != 1 {
		t.Errorf("resent %v times, want 1", n)
	}
}

// TestPathsThatDoNotPass checks that the router refuses paths that change an engine for all
// clients. The router must forward exactly the path that it has routed.
func TestPathsThatDoNotPass(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	if r := s.post("/v1/load_lora_adapter", `{"model":"sim","lora_name":"x"}`); r.status != 404 {
		t.Errorf("load_lora_adapter: %v", r)
	}
	if r := s.post("/v1/x/../chat/completions", chatBody("hello", "")); r.status != 200 {
		t.Errorf("dot segments: %v", r)
	}
	for _, seen := range s.engines[0].Requests() {
		if strings.Contains(seen.Path, "..") {
			t.Errorf("the engine was asked for %s", seen.Path)
		}
	}
}

// TestStreamWithoutItsClosingEvent checks that a stream without its API's closing event counts as
// cut, although it ends properly in HTTP.
func TestStreamWithoutItsClosingEvent(t *testing.T) {
	t.Parallel()
	half := "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"},\"finish_reason\":null}]}\n\n"
	whole := half + "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n"
	for name, c := range map[string]struct {
		events string
		fails  bool
	}{"cut": {half, true}, "finished, without an end mark": {whole, false}} {
		t.Run(name, func(t *testing.T) {
			backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/v1/models" {
					io.WriteString(w, `{"object":"list","data":[{"id":"sim","object":"model"}]}`)
				} else if r.Method == http.MethodPost {
					w.Header().Set("Content-Type", "text/event-stream")
					io.WriteString(w, c.events)
				}
			}))
			t.Cleanup(backend.Close)
			s := serve(t, nil, func(rc *router.Config) { rc.Router.Backends = []string{backend.URL} })
			eventually(t, "the backend is eligible", func() bool { return s.eligible() == 1 })
			r := s.chat(chatBody("hello", streaming))
			if failed := strings.Contains(string(r.body), "backend_failed"); r.status != 200 || failed != c.fails {
				t.Errorf("%v", r)
			}
		})
	}
}
