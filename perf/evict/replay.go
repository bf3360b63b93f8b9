package evict

import (
	"math"

	"github.com/cognitora/dataplane/kv/accesses"
)

// Result is the result of one policy at one size.
type Result struct {
	Policy   string  `json:"policy"`
	Share    float64 `json:"share"` // share of the working set
	Blocks   int     `json:"blocks"`
	Accesses int     `json:"accesses"`
	// Prefix is the ratio of blocks that were held together with all blocks before them in the
	// request. Raw is the ratio of all held blocks.
	Prefix float64 `json:"prefix_hit_ratio"`
	Raw    float64 `json:"hit_ratio"`
}

// Capacity returns the number of blocks in a share of the working set, at least 1.
func Capacity(t *accesses.Trace, share float64) int {
	return max(int(math.Round(share*float64(t.Distinct()))), 1)
}

// Replay runs the trace against a fresh policy.
func Replay(t *accesses.Trace, m Maker, share float64) Result {
	r := Result{Policy: m.Name, Share: share, Blocks: Capacity(t, share)}
	p := m.New(r.Blocks, t.Distinct())
	leading, hits := 0, 0
	for stored, keys := range t.All() {
		if stored {
			p.Store(keys)
			continue
		}
		l, h := p.Request(keys)
		leading, hits, r.Accesses = leading+l, hits+h, r.Accesses+len(keys)
	}
	if r.Accesses > 0 {
		r.Prefix, r.Raw = float64(leading)/float64(r.Accesses), float64(hits)/float64(r.Accesses)
	}
	return r
}
