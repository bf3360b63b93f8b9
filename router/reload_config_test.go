package router_test

import (
	"fmt"
	"path/filepath"
	"strings"
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

// TestARefusedReloadChangesNothing checks that a reload whose backends are refused leaves the
// settings of models as they were.
func TestARefusedReloadChangesNothing(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 1)
	s := serve(t, engines)
	reload := func(backend string) error {
		next := settings(t, s.log)
		next.Router.Backends = []string{backend}
		next.Models = []router.ModelConfig{{Name: "sim", Aliases: []string{"other"}}}
		_, _, err := s.ReloadConfig(t.Context(), &next)
		return err
	}
	ask := func() int { return s.chat(`{"model":"other","messages":[{"role":"user","content":"hello"}]}`).status }
	url := engines[0].URL() + ",id=sim-0"
	if err := reload(url + ",api_key_file=" + filepath.Join(t.TempDir(), "none")); err == nil ||
		!strings.Contains(err.Error(), "api_key_file") {
		t.Fatal("a file that is not there:", err)
	}
	if status := ask(); status != 404 {
		t.Errorf("the alias of the refused configuration: %d", status)
	}
	if err := reload(url); err != nil {
		t.Fatal(err)
	}
	if status := ask(); status != 200 {
		t.Errorf("the alias of the next configuration: %d", status)
	}
}
