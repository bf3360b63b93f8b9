package leg

import (
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/predict"
	"github.com/cognitora/dataplane/router/prefix"
)

// promotes returns how far the prompt should reach in the RAM of the host at a place of the leg's
// pool. Blocks that only other hosts have do not count if the engine computes them as fast. They
// count if it is unknown how fast either is.
func (l *Leg) promotes(at int) holdings.Reach {
	r := l.reach(at)
	if r.Fetch <= 0 || r.Shared <= r.Disk {
		return r
	}
	n := l.pool.members[at]
	s := n.engine.Speed()
	if l.foresees() {
		s = l.speed(n) // the pick counts on it, learned or not
	} else if !s.KnowsFirsts() {
		return r
	}
	computing := func(blocks int32) float64 {
		return s.PrefillFactor * s.Prefill(predict.Prompt(l.prompt.Tokens(), int64(blocks)*prefix.BlockTokens))
	}
	if float64(r.Shared-r.Disk)*float64(r.Fetch) >= computing(r.Disk)-computing(r.Shared) {
		r.Shared = r.Disk
	}
	return r
}
