package router

import (
	"context"
	"maps"
	"slices"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router/fleet"
)

// Reload replaces the static backends.
func (r *Router) Reload(ctx context.Context, backends []fleet.Backend) error {
	if err := r.fleet.Reload(ctx, backends); err != nil {
		return err
	}
	r.backends.Store(&backends)
	r.holdings.SetStatic(r.caches())
	r.events.Set(r.config.eventSources(backends, r.fleet.Load()))
	return nil
}

// ReopenAccessLog opens the access log anew after a rotation. On an error the old file stays in
// use.
func (r *Router) ReopenAccessLog() error {
	if r.access == nil {
		return nil
	}
	return r.access.Reopen()
}

// NoteReload records the result of the last reload for the metrics.
func (r *Router) NoteReload(err error) { r.reloadFailed.Store(err != nil) }

// reloadable lists the settings that ReloadConfig applies. Of a model it applies the settings that
// etcd can have too.
var reloadable = []string{"router.backends", "backend", "model"}

// modelKept names the settings of models that ReloadConfig does not apply.
const modelKept = "model (timeouts and caps)"

// ReloadConfig is Reload with the backends and models of next. ReloadConfig returns the number of
// backends. kept lists the other settings of next that differ from the running ones. These settings
// stay unchanged, because they need a restart. A new tokenizer of a model is loaded afterwards.
func (r *Router) ReloadConfig(ctx context.Context, next *Config) (backends int, kept []string, err error) {
	if err := config.Check(next); err != nil {
		return 0, nil, err
	}
	if kept, err = config.Changed(r.config, next); err != nil {
		return 0, nil, err
	}
	kept = slices.DeleteFunc(kept, func(name string) bool { return slices.Contains(reloadable, name) })
	if !maps.Equal(r.config.limits(), next.limits()) {
		kept = append(kept, modelKept)
	}
	list, err := next.backends()
	if err != nil {
		return 0, nil, err
	}
	if err := r.fleet.SetModels(ctx, next.modelSettings()); err != nil {
		return 0, nil, err
	}
	return len(list), kept, r.Reload(ctx, list)
}
