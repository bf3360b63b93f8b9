package nvext

import "github.com/cognitora/dataplane/router/policy"

// field is a member of nvext, or a header.
type field struct {
	name       string
	read       func(r *reader)
	privileged bool // only some clients may send it
}

// These are the members of nvext and of the objects in it.
var (
	rootFields = []field{
		{name: "greed_sampling", read: func(r *reader) { r.flag() }},
		{name: "use_raw_prompt", read: func(r *reader) { r.flag() }},
		{name: "annotations", read: func(r *reader) { r.texts() }},
		{name: "backend_instance_id", read: (*reader).pin, privileged: true},
		{name: "token_data", read: (*reader).tokens},
		{name: "max_thinking_tokens", read: func(r *reader) { r.count() }},
		{name: "cache_salt", read: func(r *reader) { r.x.CacheSalt = r.text(maxSalt) }},
		{name: "extra_fields", read: func(r *reader) { r.texts() }},
		{name: "metadata_upload", read: func(r *reader) { r.object(uploadFields) }},
		{name: "prefill_worker_id", read: func(r *reader) { r.x.Prefill.Worker = r.choice() }, privileged: true},
		{name: "decode_worker_id", read: (*reader).pin, privileged: true},
		{name: "dp_rank", read: (*reader).rank, privileged: true},
		{name: "prefill_dp_rank", read: (*reader).prefillRank, privileged: true},
		{name: "agent_hints", read: func(r *reader) { r.object(hintFields) }},
		{name: "request_timestamp_ms", read: func(r *reader) { r.positive() }},
		{name: "routing_constraints", read: func(r *reader) { r.object(constraintFields) }},
		{name: "router", read: (*reader).overrides, privileged: true},
		{name: "allowed_worker_ids", read: (*reader).allowed, privileged: true},
	}
	uploadFields = []field{
		{name: "url", read: func(r *reader) { r.text(maxText) }},
	}
	hintFields = []field{
		{name: "priority", read: (*reader).priority},
		{name: "strict_priority", read: (*reader).strictPriority},
		{name: "osl", read: func(r *reader) { r.x.OSL = r.count() }},
		{name: "speculative_prefill", read: func(r *reader) { r.flag() }},
		{name: "latency_sensitivity", read: func(r *reader) { r.finite() }},
	}
	constraintFields = []field{
		{name: "required_taints", read: (*reader).required},
		{name: "preferred_taints", read: (*reader).taints},
	}
	routerFields = []field{
		{name: "overlap_score_credit", read: func(r *reader) { r.x.Overrides.OverlapScoreCredit = policy.Given(r.factor()) }},
		{name: "prefill_load_scale", read: func(r *reader) { r.x.Overrides.PrefillLoadScale = policy.Given(r.factor()) }},
		{name: "overlap_score_weight", read: (*reader).overlapWeight},
		{name: "kv_overlap_score_weight", read: (*reader).overlapWeight},
		{name: "router_temperature", read: func(r *reader) { r.x.Overrides.Temperature = policy.Given(r.factor()) }},
		{name: "assume_kv_reuse", read: func(r *reader) { r.x.Overrides.AssumeKVReuse = policy.Given(r.flag()) }},
		{name: "track_prefill_tokens", read: func(r *reader) { r.x.Overrides.TrackPrefillTokens = policy.Given(r.flag()) }},
		{name: "shared_cache_multiplier", read: func(r *reader) { r.x.Overrides.SharedCacheMultiplier = policy.Given(r.share()) }},
		{name: "ttft_target", read: func(r *reader) { r.x.Overrides.Targets.First = r.milliseconds() / 1000 }},
		{name: "itl_target", read: func(r *reader) { r.x.Overrides.Targets.Step = r.milliseconds() / 1000 }},
		{name: "moe_query", read: (*reader).moeQuery},
	}
	moeFields = []field{
		{name: "experts", read: (*reader).experts},
		{name: "fallback_to_unlabeled", read: func(r *reader) { r.x.MoE.FallbackToUnlabeled = r.flag() }},
	}
)
