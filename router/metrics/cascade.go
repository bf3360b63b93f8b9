package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/cognitora/dataplane/internal/metric"
)

// Cascade counts the requests for models with a cascade. The label model is the cascade's own name,
// and step the model of one of its steps.
type Cascade struct {
	Steps    *prometheus.CounterVec // model, step, outcome
	Unjudged *prometheus.CounterVec // model, reason
	Tokens   *prometheus.CounterVec // model, step, kind
}

func newCascade(s *metric.Set) Cascade {
	return Cascade{
		Steps: s.Counter("cgn_router_cascade_steps_total", "Steps of cascades, by the cascade's name, the model of the "+
			"step, and outcome: confident (the client got the answer), escalated (the answer was dropped, and the next "+
			"model asked), unjudged (the client got the answer without a judgement), last (the client got the answer of "+
			"the last model), failed (no usable answer came) or skipped (not begun, as the deadline is too near).",
			"model", "step", "outcome"),
		Unjudged: s.Counter("cgn_router_cascade_unjudged_total", "Requests for a cascade that were answered without a "+
			"judgement, by reason: api, tools, format, choices, echo or pinned (told before any model was asked), "+
			"logprobs (the answer has none), bound (longer than router.cascade.max_held), latency "+
			"(router.cascade.latency), deadline (the client's) or no_next (no node could take the next step).",
			"model", "reason"),
		Tokens: s.Counter("cgn_router_cascade_tokens_total", "Tokens of the steps of cascades whose answers the "+
			"client did not get, by kind: prompt or completion. Where the engine did not report them, the router's own counts.",
			"model", "step", "kind"),
	}
}

// forget removes the series of a model, as a cascade and as a step.
func (c *Cascade) forget(model string) {
	for _, v := range []*prometheus.CounterVec{c.Steps, c.Unjudged, c.Tokens} {
		v.DeletePartialMatch(prometheus.Labels{"model": model})
	}
	for _, v := range []*prometheus.CounterVec{c.Steps, c.Tokens} {
		v.DeletePartialMatch(prometheus.Labels{"step": model})
	}
}
