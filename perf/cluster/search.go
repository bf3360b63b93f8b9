package cluster

import (
	"cmp"
	"fmt"

	"github.com/cognitora/dataplane/router/policy"
)

// Comparison compares several modes under the same load.
type Comparison struct {
	Config Config   // Compare sets Mode and CacheBlocks, and Speed unless it is given
	Modes  []string // default: all
	// CacheShare is the size of all nodes' caches together, as a share of the trace's distinct
	// blocks. Default 0.2.
	CacheShare float64
	// Target is the prefill utilisation of round robin at which the speed is searched. Default 0.9.
	Target float64
}

// Report is the result of a comparison.
type Report struct {
	Nodes        int      `json:"nodes"`
	Routers      int      `json:"routers"`
	Requests     int      `json:"requests"`
	Distinct     int      `json:"distinct_blocks"`
	PromptTokens int      `json:"prompt_tokens"`
	CacheBlocks  int      `json:"cache_blocks"` // of each node
	Seconds      float64  `json:"seconds"`      // simulated time from the first arrival to the last
	Speed        float64  `json:"speed"`
	Reusable     float64  `json:"reusable"` // hit ratio of one cache without a bound
	Seed         uint64   `json:"seed"`
	Results      []Result `json:"results"`
}

// Compare simulates w once for each mode.
func Compare(w *Workload, c Comparison) (*Report, error) {
	cfg := c.Config.withDefaults()
	c.CacheShare, c.Target = cmp.Or(c.CacheShare, 0.2), cmp.Or(c.Target, 0.9)
	if len(c.Modes) == 0 {
		c.Modes = Modes()
	}
	cfg.Engine.CacheBlocks = int(c.CacheShare * float64(w.Distinct()) / float64(cfg.Nodes))
	if cfg.Speed = c.Config.Speed; cfg.Speed == 0 {
		var err error
		if cfg.Speed, err = Search(w, cfg, policy.RoundRobin.String(), c.Target); err != nil {
			return nil, err
		}
	}
	r := &Report{
		Nodes: cfg.Nodes, Routers: cfg.Routers, Requests: w.Len(), PromptTokens: w.Tokens(), Distinct: w.Distinct(),
		CacheBlocks: cfg.Engine.CacheBlocks, Speed: cfg.Speed,
		Seconds: w.Span().Seconds() / cfg.Speed, Reusable: w.Reusable(), Seed: cfg.Seed,
	}
	for _, mode := range c.Modes {
		cfg.Mode = mode
		one, err := Run(w, cfg)
		if err != nil {
			return nil, err
		}
		r.Results = append(r.Results, *one)
	}
	return r, nil
}

// Search finds the Speed at which the nodes' prefill in the given mode is busy for the share target
// of the time. Search uses bisection. Search returns ErrBusy if no speed does, because decoding
// takes the engines' remaining time, or because caches and slots are too small. Search returns
// ErrShort if no speed does and some nodes get no requests.
func Search(w *Workload, cfg Config, mode string, target float64) (float64, error) {
	const (
		closeEnough = 0.002
		tries       = 24
	)
	cfg = cfg.withDefaults()
	cfg.Mode = mode
	var low, high float64 // speeds with a share below and above the target; 0: unknown
	speed := cfg.guess(w, target)
	for range tries {
		cfg.Speed = speed
		r, err := Run(w, cfg)
		if err != nil {
			return 0, err
		}
		busy := r.Utilisation
		switch {
		case busy > target-closeEnough && busy < target+closeEnough:
			return speed, nil
		case busy < target:
			low = speed
		default:
			high = speed
		}
		switch {
		case high == 0:
			speed *= min(max(target/max(busy, 0.01), 1.02), 2)
		case low == 0:
			speed *= max(min(target/busy, 0.98), 0.5)
		default:
			speed = (low + high) / 2
		}
	}
	if w.Len() < cfg.Routers*cfg.Nodes { // each router's round robin begins at the first node
		return 0, fmt.Errorf("a prefill utilisation of %g is out of reach for %s: the trace %w, %d, to reach all %d nodes "+
			"from each of %d routers", target, mode, ErrShort, w.Len(), cfg.Nodes, cfg.Routers)
	}
	return 0, fmt.Errorf("a prefill utilisation of %g %w for %s; the last try was at %.3g times the trace's rate",
		target, ErrBusy, mode, speed)
}

// guess returns the speed that meets the target if no block is found cached.
func (c *Config) guess(w *Workload, target float64) float64 {
	seconds := float64(w.tokens) / c.Engine.PrefillTokensPerSecond / float64(c.Nodes)
	return max(w.Span().Seconds(), 1e-3) * target / seconds
}
