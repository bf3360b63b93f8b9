package modes

import "math"

// situation is a request and the workers that may take it. Its JSON is the input of main.rs. All
// blocks have BlockSize tokens.
type situation struct {
	// Leg is "prefill" for the workers of a prefill pool, and "decode" for all others. The workers
	// of a pool that does both are "decode".
	Leg       string    `json:"leg"`
	BlockSize int       `json:"block_size"`
	Tokens    int       `json:"tokens"`
	Config    config    `json:"config"`
	Override  *override `json:"override,omitempty"`
	// Shared holds the blocks of the prompt in the shared cache: ranges of positions in the prompt,
	// ascending, each without its end.
	Shared [][2]int `json:"shared,omitempty"`
	// Preferred holds the request's weight of each label.
	Preferred map[string]float32 `json:"preferred_taints,omitempty"`
	Workers   []worker           `json:"workers"`
}

// config holds settings by their names in the crate. The crate's default holds for nil.
type config struct {
	Credit           *float64 `json:"overlap_score_credit,omitempty"`
	Decay            *float64 `json:"overlap_score_credit_decay,omitempty"`
	PrefillScale     *float64 `json:"prefill_load_scale,omitempty"`
	OverlapWeight    *float64 `json:"overlap_score_weight,omitempty"`
	RequestWeight    *float64 `json:"decode_active_request_weight,omitempty"`
	HostWeight       *float64 `json:"host_cache_hit_weight,omitempty"`
	DiskWeight       *float64 `json:"disk_cache_hit_weight,omitempty"`
	SharedMultiplier *float64 `json:"shared_cache_multiplier,omitempty"`
	SharedType       string   `json:"shared_cache_type,omitempty"` // none or hicache
	TrackPrefill     *bool    `json:"router_track_prefill_tokens,omitempty"`
	AssumeReuse      *bool    `json:"router_assume_kv_reuse,omitempty"`
	TrackBlocks      *bool    `json:"router_track_active_blocks,omitempty"`
}

// override holds the settings that a request may bring, by their names in the crate.
type override struct {
	Credit           *float64 `json:"overlap_score_credit,omitempty"`
	PrefillScale     *float64 `json:"prefill_load_scale,omitempty"`
	OverlapWeight    *float64 `json:"overlap_score_weight,omitempty"`
	SharedMultiplier *float64 `json:"shared_cache_multiplier,omitempty"`
	TrackPrefill     *bool    `json:"track_prefill_tokens,omitempty"`
	AssumeReuse      *bool    `json:"assume_kv_reuse,omitempty"`
}

// worker is one that may take the request.
type worker struct {
	// Device, Host and Disk count the leading blocks of the prompt that are in the engine's own
	// cache, in that or host memory, and in those or on disk.
	Device int      `json:"device,omitempty"`
	Host   int      `json:"host,omitempty"`
	Disk   int      `json:"disk,omitempty"`
	Load   *load    `json:"load,omitempty"` // nil: unknown
	Taints []string `json:"taints,omitempty"`
}

// load is the load of a worker before the request.
type load struct {
	PrefillTokens int     `json:"prefill_tokens,omitempty"`
	ActiveBlocks  float64 `json:"active_blocks,omitempty"` // not whole if weighed by progress
	// SharedActive counts the leading blocks of the prompt that are among the active blocks.
	SharedActive int `json:"shared_active,omitempty"`
	Requests     int `json:"requests,omitempty"`
}

// complete returns the number of the prompt's complete blocks.
func (s *situation) complete() int { return s.Tokens / s.BlockSize }

// sharedBeyond counts the blocks in the shared cache after the worker's own ones.
func (s *situation) sharedBeyond(w *worker) (n int) {
	for _, r := range s.Shared {
		n += max(r[1]-max(r[0], w.Device), 0)
	}
	return n
}

// taint sums the request's weights of the worker's labels.
func (s *situation) taint(w *worker) (sum float64) {
	for _, label := range w.Taints {
		sum += float64(s.Preferred[label])
	}
	return sum
}

// factor returns the worker's factor for the labels that the request prefers or avoids.
func (s *situation) factor(w *worker) float64 { return math.Exp(-math.Tanh(s.taint(w))) }
