package router_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestLostRequestsLeaveATrace checks the traces of lost requests: the first in the log with its
// node and reason, and each in the metrics and the access log.
func TestLostRequestsLeaveATrace(t *testing.T) {
	t.Parallel()
	for kind, fault := range map[string]engine.Fault{
		"protocol": {Garbage: true}, "reset": {Reset: true}, "status_500": {Status: 500}, "overloaded": {Status: 503},
	} {
		t.Run(kind, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "access")
			s := serve(t, simulate(t, 1), func(c *router.Config) { c.Log.Access = file })
			s.engines[0].SetFault(&fault)
			for range 2 {
				if r := s.chat(chatBody("hello", plain)); r.status < 500 {
					t.Errorf("%v", r)
				}
			}
			if n := s.log.count("request failed on node"); n != 1 || s.log.count("node=sim-0 reason="+kind) != 1 {
				t.Errorf("%d lines in the log", n)
			}
			if n := s.metrics().sum("cgn_router_upstream_errors_total", `node="sim-0"`, `kind="`+kind+`"`); n != 2 {
				t.Errorf("%v failures counted, want 2", n)
			}
			eventually(t, "the access log has the cause", func() bool {
				page, err := os.ReadFile(file)
				return err == nil && strings.Count(string(page), `"cause":"`+kind+`"`) == 2
			})
		})
	}
}

// TestBusyIsNoFailure checks that a 429 passes through and is not logged.
func TestBusyIsNoFailure(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	s.engines[0].SetFault(&engine.Fault{Status: 429})
	if r := s.chat(chatBody("hello", plain)); r.status != 429 {
		t.Errorf("%v", r)
	}
	if n := s.log.count("request failed on node"); n != 0 {
		t.Errorf("%d lines in the log", n)
	}
}

// TestAllFailAlikeIsLogged checks the log line for equal failures of all nodes, for which no
// breaker opens.
func TestAllFailAlikeIsLogged(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 3))
	for _, e := range s.engines {
		e.SetFault(&engine.Fault{Status: 500})
	}
	for i := range 8 {
		if r := s.chat(chatBody(fmt.Sprint("question ", i), plain)); r.status != 500 {
			t.Errorf("%v", r)
		}
	}
	if n := s.log.count("nodes answer the same request with the same server error"); n != 1 ||
		s.log.count("model=sim status=500") != 1 {
		t.Errorf("%d lines in the log", n)
	}
}

// TestCutAnswersAreToldOfTheirNode checks that cut answers are reported with their node, even after
// a part has reached the client.
func TestCutAnswersAreToldOfTheirNode(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access")
	s := serve(t, simulate(t, 1), func(c *router.Config) { c.Log.Access = file })
	r := s.chat(chatBody("hello", streaming), "x-sim-fault", "die_after=3")
	if events := r.events(); r.status != 200 || !openAIError(events[len(events)-1]) {
		t.Errorf("%v", r)
	}
	s.idle()
	if s.log.count("node=sim-0 reason=cut") != 1 ||
		s.metrics().sum("cgn_router_upstream_errors_total", `kind="cut"`) != 1 {
		t.Error("neither log nor metric tells")
	}
	eventually(t, "the access log has the cause", func() bool {
		page, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(page), `"end":"upstream_failed","cause":"cut"`)
	})
}
