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
	if err := r.known.fleet.Reload(ctx, backends); err != nil {
		return err
	}
	r.known.setBackends(backends)
	return nil
}

// NoteReload records the result of the last reload, for the metrics and the audit log.
func (r *Router) NoteReload(err error) {
	r.reloadFailed.Store(err != nil)
	r.acted("signal", "reload", "", err)
}

// reloadable lists the settings that ReloadConfig applies. Of a model it applies the settings that
// etcd can have too.
var reloadable = []string{"router.backends", "backend", "model", "limit", "limits.output_tokens"}

// modelKept names the settings of models that ReloadConfig does not apply.
const modelKept = "model (timeouts and caps)"

// ReloadConfig is Reload with the backends, models and limits of next. An error changes nothing.
// ReloadConfig returns the number of backends. kept lists the other settings of next that differ
// from the running ones. These settings stay unchanged, because they need a restart. A new
// tokenizer of a model is loaded afterwards.
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
	if err := r.known.fleet.Configure(ctx, list, next.modelSettings()); err != nil {
		return 0, nil, err
	}
	r.known.setBackends(list)
	r.callers.book.Put(next.limitSettings())
	return len(list), kept, nil
}
