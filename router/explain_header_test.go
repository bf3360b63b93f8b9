package router_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/ctl/route"
	"github.com/cognitora/dataplane/router"
)

// explained runs cgn-ctl route explain with the given headers.
func (s *site) explained(headers ...string) (e explanation, err error) {
	s.t.Helper()
	args := []string{"route", "explain", "--prompt", "hello", "-o", "json"}
	for _, h := range headers {
		args = append(args, "-H", h)
	}
	out, err := ctltest.Run(s.t, route.Command, map[string]string{"CGN_ADMIN": s.admin}, args...)
	s.t.Cleanup(http.DefaultClient.CloseIdleConnections)
	if err == nil {
		err = json.Unmarshal([]byte(out), &e)
	}
	return e, err
}

// TestRouteExplainHeedsHeaders checks that the command explains a request with a session, a pin and
// an override as the request is routed, and that an error names the header.
func TestRouteExplainHeedsHeaders(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 3), affine("hard"))
	for i := range 3 {
		node := fmt.Sprint("sim-", i)
		r := s.chat(chatBody("hello", plain), "x-cgn-session-id", node, "x-cgn-node", node)
		mustAll(t, "a session at its node", []*reply{r})
		s.idle()
		if e, err := s.explained("x-cgn-session-id: " + node); err != nil || e.Winner != node ||
			!strings.Contains(e.Why, "its session is there") {
			t.Errorf("session %s: %s, %s, %v", node, e.Winner, e.Why, err)
		}
		if e, err := s.explained("X-Cgn-Node: " + node); err != nil || e.Winner != node ||
			e.Candidates[(i+1)%3].Filter != "pinned" {
			t.Errorf("pin %s: %+v, %v", node, e, err)
		}
	}
	for header, want := range map[string]string{
		"x-cgn-router-temperature: hot": "x-cgn-router-temperature", "x-data-parallel-rank: -1": "x-data-parallel-rank",
		"x-cgn-router-temprature: 1": "x-cgn-router-temprature", "x-cgn-deadline-ms: soon": "x-cgn-deadline-ms",
	} {
		if _, err := s.explained(header); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", header, err)
		}
	}
	if _, err := s.explained("x-data-parallel-rank: 5"); err == nil {
		t.Error("a rank that no node has is no error")
	}
}

// TestRouteExplainHeedsOverrides checks an override of mode cost.
func TestRouteExplainHeedsOverrides(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2), func(c *router.Config) { c.Router.Mode = "cost" })
	if e, err := s.explained(); err != nil || strings.Contains(e.Why, "temperature") {
		t.Errorf("without an override: %s, %v", e.Why, err)
	}
	if e, err := s.explained("x-cgn-router-temperature: 0.25"); err != nil ||
		!strings.Contains(e.Why, "at temperature 0.25") {
		t.Errorf("with an override: %s, %v", e.Why, err)
	}
}
