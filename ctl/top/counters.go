package top

import (
	"bytes"
	"fmt"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// counters are the figures in a router's /metrics that `top` shows.
type counters struct {
	Requests   float64 `json:"requests"`
	Retries    float64 `json:"retries"`
	Prompt     float64 `json:"prompt_tokens"`
	Cached     float64 `json:"cached_tokens"`
	Completion float64 `json:"completion_tokens"`
	Waiting    float64 `json:"waiting"` // requests in the router's queue now

	// Prediction is the mean of the believed minus the reported cached share, by node.
	Prediction map[string]float64 `json:"prediction_error"`
}

func readCounters(page []byte) (counters, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
	if err != nil {
		return counters{}, fmt.Errorf("/metrics cannot be read: %w", err)
	}
	c := counters{Prediction: map[string]float64{}}
	for name, into := range map[string]*float64{
		"cgn_router_requests_total":          &c.Requests,
		"cgn_router_retries_total":           &c.Retries,
		"cgn_router_prompt_tokens_total":     &c.Prompt,
		"cgn_router_cached_tokens_total":     &c.Cached,
		"cgn_router_completion_tokens_total": &c.Completion,
	} {
		for _, m := range families[name].GetMetric() {
			*into += m.GetCounter().GetValue()
		}
	}
	for _, m := range families["cgn_router_queue_requests"].GetMetric() {
		c.Waiting += m.GetGauge().GetValue()
	}
	for _, m := range families["cgn_router_prediction_error_ratio"].GetMetric() {
		for _, l := range m.GetLabel() {
			if h := m.GetHistogram(); l.GetName() == "node" && h.GetSampleCount() > 0 {
				c.Prediction[l.GetValue()] = h.GetSampleSum() / float64(h.GetSampleCount())
			}
		}
	}
	return c, nil
}

// minus returns the counts since before. A router that has restarted counts from 0.
func (c counters) minus(before counters) counters {
	since := func(now, then float64) float64 {
		if now < then {
			return now
		}
		return now - then
	}
	return counters{
		Requests: since(c.Requests, before.Requests), Retries: since(c.Retries, before.Retries),
		Prompt: since(c.Prompt, before.Prompt), Cached: since(c.Cached, before.Cached),
		Completion: since(c.Completion, before.Completion), Prediction: c.Prediction, Waiting: c.Waiting,
	}
}
