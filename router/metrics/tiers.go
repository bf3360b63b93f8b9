package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cognitora/dataplane/internal/metric"
)

// ByTier has a prompt's cached tokens by the tier that is nearest to the engine: its own memory,
// the host's RAM, the host's SSD, and other hosts.
type ByTier [4]float64

// tierNames are the labels of ByTier's numbers.
var tierNames = [len(ByTier{})]string{"device", "host", "disk", "shared"}

// These are the labels of found tokens that are in no number of ByTier.
const (
	tierPrefill = "prefill"
	tierUnknown = "unknown"
)

// tiers are the counters by tier of one model.
type tiers struct {
	believed, found  [len(ByTier{})]prometheus.Counter
	prefill, unknown prometheus.Counter
}

func newBelieved(s *metric.Set) *prometheus.CounterVec {
	return s.Counter("cgn_router_tier_believed_tokens_total", "Prompt tokens believed cached for the node that "+
		"answered, by nearest tier: the engine's own memory (device), the host's RAM (host) or SSD (disk), or other hosts "+
		"whose blocks the host can get (shared); without prompts with images, and without engines that report no cached "+
		"tokens.", "model", "tier")
}

func newFound(s *metric.Set) *prometheus.CounterVec {
	return s.Counter("cgn_router_tier_cached_tokens_total", "Prompt tokens that engines did not compute, as they "+
		"report them (cgn_router_cached_tokens_total), by the nearest tier in which they were believed; prefill: the "+
		"engine is one that computed the prompt for another; unknown: they were not believed in any tier.", "model", "tier")
}

func (r *Router) tiers(model string) (t tiers) {
	for i, tier := range tierNames {
		t.believed[i], t.found[i] = r.believed.WithLabelValues(model, tier), r.found.WithLabelValues(model, tier)
	}
	t.prefill, t.unknown = r.found.WithLabelValues(model, tierPrefill), r.found.WithLabelValues(model, tierUnknown)
	return t
}

// CountTiers counts an answer's cached tokens. believed are those of the node before the answer;
// found is the engine's count. Tokens are found in the nearest tier first, because a prompt's
// blocks are used from its beginning on.
func (m *Model) CountTiers(believed *ByTier, found float64) {
	for i, n := range believed {
		if n <= 0 {
			continue
		}
		m.tiers.believed[i].Add(n)
		if of := min(n, found); of > 0 {
			m.tiers.found[i].Add(of)
			found -= of
		}
	}
	if found > 0 {
		m.tiers.unknown.Add(found)
	}
}

// CountPrefill counts the cached tokens of a prompt that one node computed for another.
func (m *Model) CountPrefill(found float64) { m.tiers.prefill.Add(found) }
