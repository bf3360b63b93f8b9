package router_test

import (
	"fmt"
	"testing"

	"github.com/cognitora/dataplane/router"
)

// TestReloadNamesWhatNeedsARestart checks that a reload applies the backends. The reload names
// every other changed setting and leaves it unchanged.
func TestReloadNamesWhatNeedsARestart(t *testing.T) {
	engines := simulate(t, 2)
	s := serve(t, nil, func(c *router.Config) { c.Router.Backends = []string{engines[0].URL()} })
	again := func(change func(c *router.Config)) (int, []string, error) {
		next := settings(t, s.log)
		next.Router.Backends = []string{engines[0].URL(), engines[1].URL()}
		change(&next)
		return s.ReloadConfig(t.Context(), &next)
	}
	if backends, kept, err := again(func(*router.Config) {}); err != nil || backends != 2 || len(kept) > 0 {
		t.Fatalf("%d backends, kept %v, %v", backends, kept, err)
	}
	eventually(t, "both are asked", func() bool { return s.eligible() == 2 })
	_, kept, err := again(func(c *router.Config) { c.Router.Mode, c.Limits.MaxStreams = "random", 7 })
	if err != nil || fmt.Sprint(kept) != "[router.mode limits.max_streams]" {
		t.Errorf("kept %v, %v", kept, err)
	}
	if _, _, err := again(func(c *router.Config) { c.Router.Backends, c.Limits.MaxStreams = nil, 0 }); err == nil ||
		s.eligible() != 2 {
		t.Errorf("a bad configuration: %v, %d eligible", err, s.eligible())
	}
}
