package router_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/ctl/route"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/leg"
)

// TestExpectedTimesAreSeen checks where mode predicted shows what it expects: in the access log, in
// the metrics and in explanations.
func TestExpectedTimesAreSeen(t *testing.T) {
	t.Parallel()
	access := filepath.Join(t.TempDir(), "access.log")
	s := serve(t, simulate(t, 2), func(c *router.Config) { c.Router.Mode, c.Log.Access = "predicted", access })
	const each = 20 // more answers than a comparison needs; the first ones teach no factor
	for i := range 2 * each {
		node := fmt.Sprint("sim-", i%2)
		body, id := chatBody(document(i, 4000), streaming), fmt.Sprint("stream-", i)
		mustAll(t, "streams", []*reply{s.chat(body, "x-cgn-node", node, "x-request-id", id)})
	}
	mustAll(t, "no stream", []*reply{s.chat(chatBody("hello", plain), "x-request-id", "plain")})
	s.idle()
	p := s.metrics()
	for name, want := range map[string]float64{
		"expected_ttft_error_seconds_count": 2 * each, "expected_ttft_error_ratio_count": 2 * each,
		"expected_length_error_tokens_count": 2*each + 1,
	} {
		if got := p.sum("cgn_router_"+name, `model="sim"`); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	for _, node := range []string{"sim-0", "sim-1"} {
		if v := p.sum("cgn_router_node_slowdown_ratio", `node="`+node+`"`, `part="prefill"`); v <= 0 {
			t.Errorf("%s has no slowdown", node)
		}
	}
	_, page := s.get(s.admin + "/debug/fleet")
	var view struct {
		Nodes []struct{ Speed *leg.NodeSpeed }
	}
	if err := json.Unmarshal(page, &view); err != nil || len(view.Nodes) != 2 {
		t.Fatalf("%v in %s", err, page)
	}
	for _, n := range view.Nodes {
		if n.Speed == nil || n.Speed.Prefill.Answers < each/2 || n.Speed.Prefill.Answers > each || n.Speed.Slow != "" {
			t.Errorf("%+v", n.Speed)
		}
	}
	out, err := ctltest.Run(t, route.Command, map[string]string{"CGN_ADMIN": s.admin}, "route", "explain", "--prompt",
		"hello", "-o", "json")
	var e leg.Explanation
	if err == nil {
		err = json.Unmarshal([]byte(out), &e)
	}
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	if err != nil || len(e.Candidates) != 2 {
		t.Fatalf("%v in %s", err, out)
	}
	for _, c := range e.Candidates {
		if c.Expected == nil || c.Expected.First <= 0 || c.Expected.Answer <= 0 || c.Speed == nil ||
			c.Speed.Prefill.Answers < each/2 {
			t.Errorf("%s: %+v, %+v", c.Node, c.Expected, c.Speed)
		}
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	lines := accessLines(t, access)
	for id, l := range lines {
		if (l.Expected > 0) != (id != "plain") || l.TTFT <= 0 {
			t.Errorf("%s: %v s expected, and %v s until the first token", id, l.Expected, l.TTFT)
		}
	}
	if len(lines) != 2*each+1 {
		t.Errorf("%d lines, want %d", len(lines), 2*each+1)
	}
}
