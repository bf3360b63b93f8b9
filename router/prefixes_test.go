package router_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cognitora/dataplane/router"
)

// TestPolicyWithoutPrefixes checks that nothing is indexed while the policy gives prefixes no
// worth, and that answers still name the length of the prompt.
func TestPolicyWithoutPrefixes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.json")
	write := func(doc string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(`{"mode":"cost","cost":{"overlap_score_weight":0}}`)
	s := serve(t, simulate(t, 1), func(c *router.Config) { c.Router.PolicyFile = file })
	prompt := ids(1000, 200, nil)
	ask := func(want string) {
		t.Helper()
		r := s.post("/v1/completions", prompt)
		if got := r.header.Get("x-cgn-overlap"); r.status != 200 || got != want {
			t.Errorf("x-cgn-overlap: %s, want %s: %v", got, want, r)
		}
		s.idle()
	}
	ask("0/12")
	ask("0/12")
	if s.index() != 0 {
		t.Errorf("%v blocks are in the index", s.index())
	}
	write(`{"mode":"cost"}`)
	eventually(t, "prefixes have a worth again", func() bool {
		return s.metrics().sum("cgn_router_policy_reloads_total", `result="applied"`) == 1
	})
	ask("0/12")
	ask("12/12")
	if s.index() != 12 {
		t.Errorf("%v blocks are in the index, want 12", s.index())
	}
}
