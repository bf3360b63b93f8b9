package router_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router"
)

// affine sets router.session.affinity.
func affine(how string) func(*router.Config) {
	return func(c *router.Config) { c.Router.Session.Affinity = how }
}

// TestSessionsOfEachClient checks the ids that clients send: their requests stay on one node, which
// the policy alone would spread, and move with the session.
func TestSessionsOfEachClient(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 4), affine("hard"), func(c *router.Config) { c.Router.Mode = "round_robin" })
	headers := []string{
		"x-cgn-session-id", "x-dynamo-session-id", "x-claude-code-session-id", "thread-id", "x-session-id",
	}
	for _, name := range headers {
		first := s.chat(chatBody("hello", plain), name, "of "+name)
		mustAll(t, name, []*reply{first})
		for turn := range 6 {
			if r := s.chat(chatBody(fmt.Sprint(turn), plain), name, "of "+name); r.node() != first.node() {
				t.Errorf("%s, turn %d: %v instead of %s", name, turn, r, first.node())
			}
		}
		moved := "sim-0"
		if first.node() == moved {
			moved = "sim-1"
		}
		mustAll(t, "pinned", []*reply{s.chat(chatBody("hello", plain), name, "of "+name, "x-cgn-node", moved)})
		if r := s.chat(chatBody("hello", plain), name, "of "+name); r.node() != moved {
			t.Errorf("%s: %v instead of %s, which gave the last answer", name, r, moved)
		}
		if e := s.explain(chatBody("hello", ""), name, "of "+name); e.Winner != moved {
			t.Errorf("%s: explained as %s, %s", name, e.Winner, e.Why)
		}
	}
	m := s.metrics()
	for _, c := range []struct {
		name, label string
		want        float64
	}{
		{"cgn_router_sessions", "", 5}, {"cgn_router_sessions_dropped_total", "", 0},
		{"cgn_router_session_answers_total", `result="new"`, 5},
		{"cgn_router_session_answers_total", `result="moved"`, 5},
		{"cgn_router_session_answers_total", `result="kept"`, 35},
	} {
		if got := m.sum(c.name, c.label); got != c.want {
			t.Errorf("%s{%s} is %v, want %v", c.name, c.label, got, c.want)
		}
	}
}

// TestSessionLeavesANodeThatFails checks that a session moves with the first failed request, and
// stays where it went.
func TestSessionLeavesANodeThatFails(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"soft", "hard"} {
		s := serve(t, simulate(t, 3), affine(how))
		ask := func() string {
			t.Helper()
			r := s.chat(chatBody("hello", plain), "x-cgn-session-id", "s")
			mustAll(t, how, []*reply{r})
			return r.node()
		}
		home := ask()
		s.engines[home[len(home)-1]-'0'].Refuse()
		next := ask()
		if next == home {
			t.Fatalf("%s: a node that refuses has answered", how)
		}
		for range 5 {
			if got := ask(); got != next {
				t.Errorf("%s: at %s instead of %s", how, got, next)
			}
		}
	}
}

// TestSessionsAreBounded checks router.session.max, and that off remembers nothing.
func TestSessionsAreBounded(t *testing.T) {
	t.Parallel()
	for how, want := range map[string][2]float64{"soft": {3, 5}, "off": {0, 0}} {
		s := serve(t, simulate(t, 2), affine(how), func(c *router.Config) { c.Router.Session.Max = 3 })
		for i := range 8 {
			mustAll(t, how, []*reply{s.chat(chatBody("hello", plain), "x-cgn-session-id", fmt.Sprint(i))})
		}
		m := s.metrics()
		if got := [2]float64{m.sum("cgn_router_sessions"), m.sum("cgn_router_sessions_dropped_total")}; got != want {
			t.Errorf("%s: %v sessions and dropped, want %v", how, got, want)
		}
	}
}

// TestSessionSettingsAreChecked checks that mistakes are refused by their field.
func TestSessionSettingsAreChecked(t *testing.T) {
	for args, want := range map[string]string{
		"--router.session.ttl 0s":   "router.session.ttl: 0s is too short",
		"--router.session.max 0":    "router.session.max: 0 is too small; use 1 or more",
		"--session-affinity sticky": `router.session.affinity = "sticky": must be one of off, soft, hard`,
		"--session-affinity hard":   "",
	} {
		err := check(strings.Fields("--backend http://e:1 " + args)...)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
