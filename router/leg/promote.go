package leg

import (
	"time"

	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/predict"
	"github.com/cognitora/dataplane/router/prefix"
)

// promotes returns how far the prompt should reach in the RAM of the host at a place of the leg's
// pool. Blocks that only other hosts have do not count if the engine computes them as fast. They
// count if it is unknown how fast either is. Every remeasure some count although they come slowly:
// otherwise a host that was slow once would get no blocks, and its speed would stay unmeasured.
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
	if float64(r.Shared-r.Disk)*float64(r.Fetch) >= l.computing(&s, r.Disk, r.Shared) {
		most := r.Disk
		if n.node.remeasures(time.Now()) {
			most += remeasured
		}
		r.Shared = min(r.Shared, most)
	}
	return r
}

const (
	remeasure  = time.Minute
	remeasured = 64 // blocks at most
)

// remeasures says whether the node's host shall get blocks of other hosts that do not pay, so that
// its daemon measures how fast they come: once in remeasure, and not at the first of them.
func (n *nodeState) remeasures(now time.Time) bool {
	last := n.unpaid.Load()
	if last != 0 && now.UnixNano()-last < int64(remeasure) {
		return false
	}
	return n.unpaid.CompareAndSwap(last, now.UnixNano()) && last != 0
}

// computing returns the seconds in which an engine computes the prompt's blocks from one up to
// another, excluded.
func (l *Leg) computing(s *predict.Speed, from, to int32) float64 {
	prefill := func(blocks int32) float64 {
		return s.Prefill(predict.Prompt(l.prompt.Tokens(), int64(blocks)*prefix.BlockTokens))
	}
	return s.PrefillFactor * (prefill(from) - prefill(to))
}

// measures says whether blocks of other hosts count as measured in the leg's picks, and caches have
// reported.
func (l *Leg) measures() bool {
	if !l.prompt.Reported() {
		return false
	}
	o := l.overrides()
	return l.picks.policy.Measures(&o)
}

// saved returns the share of the time for computing the blocks beyond the host's memory that the
// node at a place of the pool saves if its host gets them; 0: none, or unknown. The transfer takes
// as long as lately, and computing as long as the engine's answers have taught.
func (l *Leg) saved(at int, r *holdings.Reach) policy.Part {
	from := max(r.Host, r.Device, 0)
	if r.Shared <= from {
		return 0
	}
	s := l.pool.members[at].engine.Speed()
	computing := l.computing(&s, from, r.Shared)
	if !s.KnowsFirsts() || computing <= 0 {
		return 0
	}
	return policy.PartOf(1 - float64(r.Shared-from)*float64(r.Fetch)/computing)
}

// clock prepares to learn the engine's speed from the first token of an attempt at the candidate
// pick, in the modes that expect no times. Only the answer to a prompt that waits for nothing but
// its own computation teaches.
func (l *Leg) clock(a *attempt, pick int, now time.Time) {
	c, n := &l.picks.cands[pick], a.member
	if l.hand != nil || !l.teaches() || c.Queues() || c.Loads || c.SharedCache > max(c.Host, c.Matched) ||
		n.rank.Book.WaitingPrompts() > 0 || n.rank.Load().Waiting > 0 {
		return
	}
	t := l.timing(n, c.InFlight, now)
	a.forecast.first = predict.First{
		Step: t.Decode(t.Decoding, t.Blocks),
		Work: predict.Prompt(l.prompt.Tokens(), l.picks.policy.Score.Tiers.Held(c)),
	}
	t.Forecast(&a.forecast.first)
}
