package router

import (
	"context"
	"log/slog"
	"testing"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router/fleet"
)

// TestOnlyFollowAgentsFollows checks that a reload wakes the one goroutine that says what is
// followed, and follows nothing itself. A look at the fleet that began before the reload then
// cannot undo it.
func TestOnlyFollowAgentsFollows(t *testing.T) {
	t.Parallel()
	var c Config
	if err := config.Defaults(&c); err != nil {
		t.Fatal(err)
	}
	c.Router.Listen, c.Router.Admin = "127.0.0.1:0", "127.0.0.1:0"
	c.Router.Backends, c.Logger = []string{"http://127.0.0.1:1"}, slog.New(slog.DiscardHandler)
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.known.fleet.Run(ctx) }()
	defer func() { stop(); <-ended }()

	engines := func() int { return part(&r.known, "events", "wanted").Len() }
	caches := func() int { return part(&r.known, "holdings", "static").Len() }
	seen := r.known.follow(followed{})
	if err := r.Reload(ctx, []fleet.Backend{
		{URL: "http://127.0.0.1:1", ID: "a", KVEvents: "tcp://127.0.0.1:2", KV: "127.0.0.1:3"},
	}); err != nil {
		t.Fatal(err)
	}
	if engines() != 0 || caches() != 0 || len(r.known.reloaded) != 1 {
		t.Errorf("%d engines and %d caches are followed, woken %d times", engines(), caches(), len(r.known.reloaded))
	}
	if seen = r.known.follow(seen); engines() != 1 || caches() != 1 || seen != r.known.follow(seen) {
		t.Errorf("%d engines and %d caches are followed", engines(), caches())
	}
}
