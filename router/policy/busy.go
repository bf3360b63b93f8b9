package policy

// BusySettings are the thresholds above which a node gets no further requests. Pick does not read
// them. The caller of Pick leaves busy nodes out of the candidates. A nil threshold is not set.
type BusySettings struct {
	// DecodeBlocks is a share of the node's KV blocks in use.
	DecodeBlocks *float64 `json:"active_decode_blocks_threshold,omitempty" range:"0..1"`
	// PrefillTokens counts prompt tokens that wait for their computation.
	PrefillTokens *int `json:"active_prefill_tokens_threshold,omitempty" range:"0..1099511627776"`
	// PrefillFraction is PrefillTokens as a share of the tokens that the engine computes at once.
	PrefillFraction *float64 `json:"active_prefill_tokens_threshold_frac,omitempty" range:"0..1099511627776"`
}
