package router

import (
	"log/slog"
	"slices"

	"github.com/cognitora/dataplane/router/fleet"
)

// warnings are the log's warnings about the fleet and the settings together. One goroutine uses
// them.
type warnings struct {
	divided    undivided
	connectors untried
	cascades   mistaken
}

// look warns about what is new in now, as far as the configuration uses it.
func (w *warnings) look(now *fleet.Snapshot, c *RouterConfig, log *slog.Logger) {
	if c.Disagg.Enabled == "true" {
		w.divided.look(now, log)
	}
	if c.Disagg.Enabled != "false" {
		w.connectors.look(now, log)
	}
	if c.Cascade.Enabled {
		w.cascades.look(now, log)
	}
}

// mistaken are the mistakes in the models' cascades that the log has, by model.
type mistaken struct {
	seen *fleet.Snapshot
	told map[string][]string
}

// look warns about mistakes in cascades, once until they change. A model that no node serves yet is
// no mistake while backends have not said what they serve.
func (t *mistaken) look(now *fleet.Snapshot, log *slog.Logger) {
	if now == t.seen || now.Partial {
		return
	}
	t.seen = now
	all := map[string][]string{}
	for _, m := range now.Models() {
		if len(m.Amiss) == 0 {
			continue
		}
		all[m.Name] = m.Amiss
		for _, why := range m.Amiss {
			if !slices.Contains(t.told[m.Name], why) {
				log.Warn("a model's cascade cannot answer as configured", "model", m.Name, "why", why)
			}
		}
	}
	t.told = all
}
