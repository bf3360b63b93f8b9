package modes

import (
	"encoding/json"
	"math"
	"testing"

	"github.com/cognitora/dataplane/router/policy"
)

// costs returns the cost of every worker and the index of the picked one, by mode cost.
func costs(t *testing.T, s *situation) (costs []float64, pick int) {
	t.Helper()
	p := policyOf(t, s)
	var e policy.Explanation
	pick = p.Explain(asked(s), &e)
	for _, terms := range e.Terms {
		costs = append(costs, terms.Cost.Total)
	}
	return costs, pick
}

// asked expresses s as the policy's question. The policy counts in blocks of chain tokens.
func asked(s *situation) *policy.Situation {
	const chain = 16
	blocks := func(n int) int32 { return int32(n * s.BlockSize / chain) }
	q := &policy.Situation{
		Blocks: s.Tokens / chain, Tokens: int64(s.Tokens), Random: uint64(s.Tokens), Prefill: s.Leg == "prefill",
		Overrides: overridesOf(s.Override),
	}
	for i := range s.Workers {
		w := &s.Workers[i]
		c := policy.Candidate{
			Matched: blocks(w.Device), Host: blocks(w.Host), Disk: blocks(w.Disk),
			SharedCache: blocks(w.Device + s.sharedBeyond(w)), PrefillTokens: -1, Fit: policy.Fit{Labels: s.taint(w)},
		}
		if l := w.Load; l != nil {
			c.PrefillTokens, c.InFlight = int64(l.PrefillTokens), int32(l.Requests)
			c.ActiveBlocks = l.ActiveBlocks * float64(s.BlockSize) / chain
			c.SharedActive = blocks(l.SharedActive)
		}
		q.Candidates = append(q.Candidates, c)
	}
	return q
}

// policyOf returns the policy with the configuration of s.
func policyOf(t *testing.T, s *situation) *policy.Policy {
	t.Helper()
	c := &s.Config
	cost := map[string]any{"block_tokens": s.BlockSize}
	if c.SharedType == "hicache" {
		cost["shared_cache_multiplier"] = 0.5
	}
	set := func(name string, value any, given bool) {
		if given {
			cost[name] = value
		}
	}
	set("overlap_score_credit", c.Credit, c.Credit != nil)
	set("overlap_score_credit_decay", c.Decay, c.Decay != nil)
	set("prefill_load_scale", c.PrefillScale, c.PrefillScale != nil)
	set("overlap_score_weight", c.OverlapWeight, c.OverlapWeight != nil)
	set("active_request_weight", c.RequestWeight, c.RequestWeight != nil)
	set("host_cache_hit_weight", c.HostWeight, c.HostWeight != nil)
	set("disk_cache_hit_weight", c.DiskWeight, c.DiskWeight != nil)
	set("shared_cache_multiplier", c.SharedMultiplier, c.SharedMultiplier != nil)
	set("track_prefill_tokens", c.TrackPrefill, c.TrackPrefill != nil)
	set("assume_kv_reuse", c.AssumeReuse, c.AssumeReuse != nil)
	set("track_active_blocks", c.TrackBlocks, c.TrackBlocks != nil)
	if c.OverlapWeight != nil {
		delete(cost, "prefill_load_scale") // the crate lets the older name win
	}
	doc, err := json.Marshal(map[string]any{"mode": "cost", "cost": cost})
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Parse(doc)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// overridesOf returns the request's own values. A 0 by the older name of the scale also sets the
// credit to 0.
func overridesOf(o *override) (out policy.Overrides) {
	if o == nil {
		return out
	}
	give := func(into *policy.Optional[float64], v *float64) {
		if v != nil {
			*into = policy.Given(*v)
		}
	}
	give(&out.OverlapScoreCredit, o.Credit)
	give(&out.PrefillLoadScale, o.PrefillScale)
	give(&out.SharedCacheMultiplier, o.SharedMultiplier)
	if w := o.OverlapWeight; w != nil {
		out.PrefillLoadScale = policy.Given(*w)
		if *w == 0 {
			out.OverlapScoreCredit = policy.Given(0.0)
		}
	}
	if o.TrackPrefill != nil {
		out.TrackPrefillTokens = policy.Given(*o.TrackPrefill)
	}
	if o.AssumeReuse != nil {
		out.AssumeKVReuse = policy.Given(*o.AssumeReuse)
	}
	return out
}

// first returns the first value that is set, or else the fallback.
func first[T any](fallback T, values ...*T) T {
	for _, v := range values {
		if v != nil {
			return *v
		}
	}
	return fallback
}

// floor returns the fewest tokens that wait for prefill at a worker. An unknown load counts as 0.
func floor(s *situation) int {
	least := math.MaxInt
	for _, w := range s.Workers {
		least = min(least, first(load{}, w.Load).PrefillTokens)
	}
	return least
}
