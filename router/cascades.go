package router

import (
	"log/slog"
	"slices"

	"github.com/cognitora/dataplane/router/fleet"
)

// mistaken are the mistakes in the models' cascades that the log has, by model. One goroutine uses
// it.
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
