package router_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/perf/engine"
)

// A deadline that the client set is no sign that the node is unwell.
func TestDeadlinesOfClientsOpenNoBreaker(t *testing.T) {
	s := serve(t, simulate(t, 2))
	for i := range 12 {
		r := s.chat(chatBody(fmt.Sprint("hello ", i), `,"stream":true,"max_tokens":4000`), "x-cgn-deadline-ms", "60")
		if r.status != 200 || !strings.Contains(string(r.body), "deadline_exceeded") || strings.Contains(string(r.body), "[DONE]") {
			t.Fatalf("request %d: %v", i, r)
		}
	}
	if n := s.eligible(); n != 2 {
		t.Errorf("%d of 2 nodes are eligible", n)
	}
	mustAll(t, "after the deadlines", together(8, func(i int) *reply { return s.chat(chatBody(fmt.Sprint("after ", i), "")) }))
}

// An engine that refuses stream_options is asked again without, and from then on at once.
func TestStreamOptionsRefused(t *testing.T) {
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

// Paths that change an engine for everybody do not pass, and what passes is what was routed.
func TestPathsThatDoNotPass(t *testing.T) {
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
