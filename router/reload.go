package router

import (
	"context"
	"slices"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router/fleet"
)

// Reload puts backends in the place of the static ones.
func (r *Router) Reload(ctx context.Context, backends []fleet.Backend) error {
	if err := r.fleet.Reload(ctx, backends); err != nil {
		return err
	}
	static := staticCaches(backends)
	r.staticCaches.Store(&static)
	r.holdings.SetStatic(r.caches())
	r.events.Set(eventSources(backends))
	return nil
}

// ReopenAccessLog opens the access log anew, so that a rotated one is let go. On an error the old
// file stays in use.
func (r *Router) ReopenAccessLog() error {
	if r.access == nil {
		return nil
	}
	return r.access.Reopen()
}

// NoteReload says how the last attempt to reload has ended, for the metrics.
func (r *Router) NoteReload(err error) { r.reloadFailed.Store(err != nil) }

// reloadable are the settings that ReloadConfig takes over.
var reloadable = []string{"router.backends", "backend"}

// ReloadConfig is Reload with the backends of next. It returns how many there are now, and which
// settings of next differ from those the router was started with and stay as they are, because they
// need a restart.
func (r *Router) ReloadConfig(ctx context.Context, next *Config) (backends int, kept []string, err error) {
	if err := config.Check(next); err != nil {
		return 0, nil, err
	}
	if kept, err = config.Changed(r.config, next); err != nil {
		return 0, nil, err
	}
	kept = slices.DeleteFunc(kept, func(name string) bool { return slices.Contains(reloadable, name) })
	list, err := next.backends()
	if err != nil {
		return 0, nil, err
	}
	return len(list), kept, r.Reload(ctx, list)
}
