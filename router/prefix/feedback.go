package prefix

import (
	"math"
	"time"
)

// defaultEngineBlock is vLLM's block size in tokens.
const defaultEngineBlock = 16

// Observation is an engine's report about one finished request.
type Observation struct {
	Ref Ref
	// Believed is Match's result for this node at the dispatch.
	Believed int
	// PromptTokens and CachedTokens are the engine's counts. Without a cached count no observation
	// is made.
	PromptTokens, CachedTokens int64
	// EngineBlockTokens is the size of the engine's own cache blocks. The engine rounds its count
	// to whole blocks. 0 means 16.
	EngineBlockTokens int
	// Uneven says that the engine counts tokens that the prompt's blocks do not have. An image is
	// hundreds of the engine's tokens and one hash in the prompt's blocks. The engine's count of
	// cached tokens then tells only whether anything was cached.
	Uneven bool
	// DispatchedAt is the time passed to Record.
	DispatchedAt time.Time
}

// verdict compares an observation with the belief, in blocks of the chain. The engine's tokens
// differ from the chain's, so both sides are fractions of the prompt.
type verdict struct {
	believed, actual float64
	slack            float64 // one engine block
	fraction         float64 // believed - actual, 0 within the slack
}

func weigh(c *Chain, o Observation) verdict {
	block := o.EngineBlockTokens
	if block <= 0 {
		block = defaultEngineBlock
	}
	prompt := float64(o.PromptTokens)
	v := verdict{
		believed: float64(o.Believed),
		actual:   c.length * min(max(float64(o.CachedTokens)/prompt, 0), 1),
		slack:    c.length * min(float64(block)/prompt, 1),
	}
	if d := v.believed - v.actual; math.Abs(d) > v.slack+1e-6 {
		v.fraction = d / c.length
	}
	return v
}

// ceil rounds x up to whole blocks. ceil tolerates a small rounding error in x.
func ceil(x float64) int { return int(math.Ceil(x - 1e-6)) }

func (v *verdict) short() bool { return v.fraction > 0 }

// Observe corrects the index by the cached tokens that the engine found. Observe returns the
// prediction error: the believed minus the actual part of the prompt, in [-1,1]. The error is 0 if
// both parts agree within one engine block.
//
// A count below the belief says that the groups behind it were gone, from the first group on that
// the count does not reach. These groups then count as recomputed by this request at its dispatch,
// so older beliefs below them no longer count. The lifetime shrinks if blocks younger than the
// lifetime were gone. The count is no evidence about blocks that another running request may have
// been computing at the dispatch, and none about blocks that only tags tell apart.
func (x *Index) Observe(c *Chain, o Observation) float64 {
	if o.PromptTokens <= 0 || c.blocks == 0 {
		return 0
	}
	if o.Uneven && o.CachedTokens > 0 {
		x.caches(o.Ref)
		x.settle(c, o, c.blocks)
		return 0
	}
	v := weigh(c, o)
	x.settle(c, o, x.learn(c, o, v))
	return v.fraction
}

// settle confirms that the node holds the blocks of a request that has just ended. The groups that
// begin at block cut or behind it count as stored when the request was sent.
func (x *Index) settle(c *Chain, o Observation, cut int) {
	now, _ := x.clock.nowStamp()
	dispatched := x.clock.stamp(o.DispatchedAt)
	x.write(c, o.Ref, func(_ int, g *group) {
		b := g.was
		switch {
		case !g.known:
			g.set(newBelief(dispatched, now, settled), false)
		case g.first >= cut && since(dispatched, b.born()) > 0:
			g.set(newBelief(dispatched, b.touched(), settled).touch(now, settled), false)
		default:
			g.set(b.touch(now, settled), true)
		}
	})
}

// learn updates the node's lifetime by the observation. learn returns the first block of the first
// group that was gone, or the number of blocks. The observation is no evidence if that group was
// used by a request whose end was unknown at the dispatch.
func (x *Index) learn(c *Chain, o Observation, v verdict) (cut int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	n := x.node(o.Ref)
	if n == nil || c.sent.ref != o.Ref {
		return c.blocks
	}
	if o.CachedTokens > 0 {
		n.cached()
	}
	if !v.short() {
		x.learnLonger(n, &c.sent, v)
		return c.blocks
	}
	x.countZero(n, c, o)
	first, ok := v.firstGone(o.Believed)
	if !ok || first >= len(c.sent.seen) || c.sent.seen[first].inUse() {
		return c.blocks
	}
	x.learnShorter(n, since(c.sent.at, c.sent.seen[first].touched()), v)
	return first * groupBlocks
}

// mistaken is how many blocks tags may take for others. More are mistaken once in about 100 million
// requests that leave a prompt within a group.
const mistaken = 6

// firstGone returns the first group whose leader was believed to be there and was gone. ok is false
// if there is none. The blocks behind a leader are no evidence: other prompts with the same leader
// may have used the group since, and tags may be mistaken.
//
// An engine counts whole blocks of its own, so a leader within one such block behind the found ones
// may be there. But an engine that found nothing has not even the leader of the first group, if the
// belief without its doubtful blocks is above one engine block. Blocks of the last believed group,
// up to mistaken, are doubtful: by their tags, they may be another prompt's.
func (v *verdict) firstGone(believed int) (group int, ok bool) {
	group = (ceil(v.actual+v.slack) + groupBlocks - 1) / groupBlocks
	doubtful := min((believed-1)%groupBlocks, mistaken)
	if v.actual == 0 && v.believed-float64(doubtful) > v.slack {
		group = 0
	}
	return group, group*groupBlocks < believed
}

// caches notes that a node has reported cached tokens.
func (x *Index) caches(ref Ref) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if n := x.node(ref); n != nil {
		n.cached()
	}
}

func (n *node) cached() {
	n.zeros = 0
	n.silent.Store(false)
}

// silentAfter is the number of repeats in a row without a cached token after which an engine counts
// as one without prefix caching.
const silentAfter = 3

// countZero counts a repeat that found nothing cached, although a request with the same first block
// had ended before. Concurrent requests count once.
func (x *Index) countZero(n *node, c *Chain, o Observation) {
	if o.CachedTokens > 0 || len(c.sent.seen) == 0 || !c.sent.seen[0].settled() {
		return
	}
	if x.clock.millis(o.DispatchedAt) < n.lastZero {
		return
	}
	_, n.lastZero = x.clock.nowStamp()
	n.zeros = min(n.zeros+1, silentAfter)
	n.silent.Store(n.zeros >= silentAfter)
}

// learnShorter lowers the lifetime to seven eighths of the age of a missing group. Prompts that
// come back in turn have nearly the same age each time, and a lifetime of exactly that age would be
// wrong for half of these prompts. learnShorter ignores a shortfall below a sixteenth of the
// belief, because text does not map evenly to the engine's tokens.
func (x *Index) learnShorter(n *node, age int32, v verdict) {
	if v.believed-v.actual < v.slack+v.believed/16 {
		return
	}
	n.lost = true
	if age < n.lifetime.Load() {
		n.lifetime.Store(max(age-age/8, millis32(x.o.MinLifetime)))
	}
}

// learnLonger raises the lifetime by an eighth of the way to twice the age of the oldest block that
// was still cached. For a node that reports cached tokens and has not lost any block yet, it raises
// the lifetime to the maximum. A later loss then teaches a lower lifetime. Too low a lifetime
// would teach nothing, because requests then go elsewhere.
func (x *Index) learnLonger(n *node, s *sentState, v verdict) {
	if len(s.seen) == 0 || v.actual < 1 {
		return
	}
	oldest := s.seen[min((int(v.actual)-1)/groupBlocks, len(s.seen)-1)]
	if oldest.inUse() {
		return
	}
	if !n.lost {
		n.lifetime.Store(millis32(x.o.MaxLifetime))
		return
	}
	age, lifetime := since(s.at, oldest.touched()), n.lifetime.Load()
	if step := (2*age - lifetime) / 8; step > 0 {
		n.lifetime.Store(min(lifetime+step, millis32(x.o.MaxLifetime)))
	}
}
