package router_test

import (
	"net/http"
	"testing"

	"github.com/cognitora/dataplane/router"
)

// TestCapsPerModelAndRole checks the caps: nodes of role both take one request, nodes of role
// decode take two, and prefill nodes take no request.
func TestCapsPerModelAndRole(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 3)
	s := serve(t, nil, func(c *router.Config) {
		c.Router.Backends = []string{engines[0].URL() + ",id=b", engines[1].URL() + ",id=d,role=decode",
			engines[2].URL() + ",id=p,role=prefill"}
		c.Router.Admission.MaxQueue = 1
		c.Models = []router.ModelConfig{{Name: "sim", MaxQueueDecode: 2}}
	})
	eventually(t, "all that serve are well", func() bool { return s.eligible() == 2 })
	var open []*http.Response
	taken := map[string]int{}
	for range 3 {
		resp := s.begin("/v1/chat/completions", chatBody("hello", `,"stream":true,"max_tokens":4000`))
		open = append(open, resp)
		taken[resp.Header.Get("x-cgn-node")]++
	}
	if taken["b"] != 1 || taken["d"] != 2 {
		t.Errorf("sent to %v", taken)
	}
	if r := s.chat(chatBody("one more", plain)); r.status != 503 || r.code() != "queue_full" ||
		r.header.Get("Retry-After") == "" {
		t.Errorf("above both caps: %v", r)
	}
	p := s.metrics()
	for role, want := range map[string]float64{"both": 1, "decode": 2} {
		for _, name := range []string{"cgn_router_model_in_flight", "cgn_router_model_max_queue"} {
			if got := p.sum(name, `model="sim"`, `role="`+role+`"`); got != want {
				t.Errorf("%s of role %s: %v, want %v", name, role, got, want)
			}
		}
	}
	for _, resp := range open {
		resp.Body.Close()
	}
	s.idle()
	mustAll(t, "afterwards", []*reply{s.chat(chatBody("hello", plain))})
	for _, seen := range engines[2].Requests() {
		if seen.Method == http.MethodPost {
			t.Errorf("a node of role prefill was asked for %s", seen.Path)
		}
	}
}
