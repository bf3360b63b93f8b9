package policy

import (
	"math"

	"github.com/cognitora/dataplane/kv/block"
)

// CostSettings are the settings of mode cost. The lowest cost wins, and equal costs win at random.
// A session's request stays at the session's node, with a temperature too, while the node's cost
// exceeds the lowest by at most a tenth of the prompt's blocks. The cost counts blocks of
// BlockTokens tokens:
//
//	cost   = (PrefillLoadScale*max(0, raw-credit) + decode + ActiveRequestWeight*requests) * labels
//	raw    = (active prefill tokens + max(0, prompt tokens - cached) + cached) / BlockTokens
//	cached = device + HostCacheHitWeight*host + DiskCacheHitWeight*disk, in whole tokens
//	credit = OverlapScoreCredit*decay*device + HostCacheHitWeight*host + DiskCacheHitWeight*disk +
//	         elsewhere + experts
//	decay  = 1 / (1 + OverlapScoreCreditDecay*excess/max(1, prompt))
//	decode = active blocks + blocks of the prompt that are not active yet
//	labels = exp(-tanh(sum of the weights of the preferred labels)), 1 for a pinned request
//
// device, host and disk are the whole blocks that the node has there and in no better tier.
// elsewhere is SharedCacheMultiplier for each block behind device that the node's host has, or gets
// from other hosts. Without a SharedCacheMultiplier it is what was measured: for each block behind
// disk that the host gets from other hosts, HostCacheHitWeight*Saved. Blocks of disk then have that
// worth too, if it is above DiskCacheHitWeight. experts is the
// share of the request's experts that the node hosts, times OverlapScoreCredit*decay*device.
// experts brings the credit at most to the prompt's blocks. excess is the node's active prefill
// above the least of all candidates, in blocks. With TrackPrefillTokens off and OverlapScoreCredit
// above 0, the credit is taken off decode instead:
//
//	cost = (max(0, decode-credit) + ActiveRequestWeight*requests) * labels
//
// Two facts about a pick change the formula. A candidate with PrefillTokens below 0 has no decode
// and no requests, and its raw is the prompt; the router knows at least its own requests of a node,
// and never passes less than 0. In a Situation with Prefill, of a leg that only computes a prompt,
// the credit is never taken off decode.
type CostSettings struct {
	// BlockTokens is the unit of the cost, in tokens. Only whole blocks count as cached.
	BlockTokens int `json:"block_tokens" range:"1..65536"`
	// OverlapScoreCredit is the worth of a block in the engine's own memory.
	OverlapScoreCredit float64 `json:"overlap_score_credit" range:"0..1000000"`
	// OverlapScoreCreditDecay lowers the credit of nodes with more active prefill than others.
	// 0: no decay.
	OverlapScoreCreditDecay float64 `json:"overlap_score_credit_decay" range:"0..1000000"`
	HostCacheHitWeight      float64 `json:"host_cache_hit_weight" range:"0..1"`
	DiskCacheHitWeight      float64 `json:"disk_cache_hit_weight" range:"0..1"`
	// SharedCacheMultiplier is the worth of a block that the host has, or gets from other hosts,
	// beside the host's own two weights. nil: as measured.
	SharedCacheMultiplier *float64 `json:"shared_cache_multiplier,omitempty" range:"0..1"`
	// PrefillLoadScale is the weight of prefill against decode. A 0 by its older name also sets
	// OverlapScoreCredit to 0.
	PrefillLoadScale float64 `json:"prefill_load_scale" range:"0..1000000" older:"overlap_score_weight"`
	// ActiveRequestWeight is the cost of each request at the node, in blocks.
	ActiveRequestWeight float64 `json:"active_request_weight" range:"0..1000000"`
	// Temperature draws a node with a probability that falls with its cost. 0: the lowest cost
	// wins.
	Temperature float64 `json:"temperature" range:"0..1000000"`
	// AssumeKVReuse counts blocks of the prompt that are active at the node already only once.
	AssumeKVReuse bool `json:"assume_kv_reuse"`
	// TrackPrefillTokens counts prefill. Without it raw is 0 and nothing decays.
	TrackPrefillTokens bool `json:"track_prefill_tokens"`
	// TrackActiveBlocks counts decode.
	TrackActiveBlocks bool `json:"track_active_blocks"`
	// TrackOutputBlocks adds the blocks of answers to a node's active blocks as they grow.
	TrackOutputBlocks bool `json:"track_output_blocks"`
}

func (p *CostSettings) pick(s *Situation, e *Explanation) int {
	k := p.costing(s)
	if e != nil {
		k.fill(s, e)
	}
	best, low := k.lowest(s)
	stays := s.Home > 0 && k.stays(&s.Candidates[s.Home-1], low)
	if stays {
		best = s.Home - 1
	}
	if best >= 0 && (k.Temperature > 0 || e != nil) {
		high := k.highest(s)
		if k.Temperature > 0 && !stays {
			best = k.draw(s, low, high)
		}
		if e != nil {
			k.explain(e, best, low, high, stays)
		}
	}
	return best
}

// sessionShare is how much more a session's request may cost at the session's node, as a share of
// the prompt's blocks. A larger share would let sessions wait longer at busy nodes. With none a
// session would leave its node at the load at which any request leaves.
const sessionShare = 0.1

// margin returns sessionShare in blocks.
func (k *costing) margin() float64 { return sessionShare * k.blocks }

// stays says whether a session at the node c stays there. low is the lowest cost.
func (k *costing) stays(c *Candidate, low float64) bool {
	return c.Room() && k.cost(c, nil) <= low+k.margin()
}

// lowest returns a candidate with the lowest cost, and that cost. Equal candidates win at random.
// lowest returns -1 if no candidate has room.
func (k *costing) lowest(s *Situation) (best int, low float64) {
	best, low = -1, math.Inf(1)
	high := uint64(0) // the draw of the best
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if !c.Room() {
			continue
		}
		cost := k.cost(c, nil)
		if cost > low {
			continue
		}
		if draw := mix(s.Random + uint64(i)); cost < low || draw > high || best < 0 {
			best, low, high = i, cost, draw
		}
	}
	return best, low
}

// highest returns the highest cost of a candidate with room.
func (k *costing) highest(s *Situation) (high float64) {
	for i := range s.Candidates {
		if c := &s.Candidates[i]; c.Room() {
			high = max(high, k.cost(c, nil))
		}
	}
	return high
}

// draw picks a candidate with room with a probability proportional to its weight. The highest sum
// of a weight's logarithm and a Gumbel variate is such a draw.
func (k *costing) draw(s *Situation, low, high float64) int {
	best, most := -1, 0.0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if !c.Room() {
			continue
		}
		uniform := (float64(mix(s.Random+uint64(i))>>11) + 0.5) / (1 << 53)
		lot := k.logWeight(k.cost(c, nil), low, high) - math.Log(-math.Log(uniform))
		if best < 0 || lot > most {
			best, most = i, lot
		}
	}
	return best
}

// logWeight returns the logarithm of a candidate's weight in a draw. low and high are the lowest
// and the highest cost.
func (k *costing) logWeight(cost, low, high float64) float64 {
	if high <= low {
		return 0
	}
	return -(cost - low) / (high - low) / k.Temperature
}

// usesPrefixes says whether a cost can depend on the blocks that a node holds. Without scale and
// credit, as after overlap_score_weight 0, only decode depends on blocks: on those that active
// requests share. That alone is not worth hashing every prompt, so each request then counts in
// full. With a credit the shared blocks count once, because the credit shows that prefixes have
// worth.
func (p *CostSettings) usesPrefixes(o *Overrides) bool {
	c := *p
	o.apply(&c)
	// The credit for cached blocks, and the uncached tokens that wait:
	prefill := c.PrefillLoadScale > 0 && c.TrackPrefillTokens
	offDecode := c.OverlapScoreCredit > 0 && !c.TrackPrefillTokens
	worth := c.PrefillLoadScale > 0 || c.OverlapScoreCredit > 0
	shared := c.TrackActiveBlocks && c.AssumeKVReuse && worth
	return prefill || offDecode || shared
}

// costing is the cost function in one situation.
type costing struct {
	CostSettings         // with the overrides of the request
	unit         float64 // BlockTokens
	prompt       float64 // tokens of the prompt
	blocks       float64 // whole blocks of the prompt
	least        int64   // the least active prefill of the candidates, in tokens
	decays       bool    // nodes with more active prefill get less credit
	offDecode    bool    // the credit is taken off decode
	pinned       bool
	shared       Optional[float64] // SharedCacheMultiplier; none: as measured
}

func (p *CostSettings) costing(s *Situation) costing {
	tokens := max(s.Tokens, 0)
	k := costing{CostSettings: *p, prompt: float64(tokens), pinned: s.Pinned}
	s.Overrides.apply(&k.CostSettings)
	if k.shared = s.Overrides.SharedCacheMultiplier; !k.shared.Given && p.SharedCacheMultiplier != nil {
		k.shared = Given(*p.SharedCacheMultiplier)
	}
	k.unit, k.blocks = float64(k.BlockTokens), float64(tokens/int64(k.BlockTokens))
	k.offDecode = !s.Prefill && k.OverlapScoreCredit > 0 && !k.TrackPrefillTokens
	if k.decays = k.OverlapScoreCreditDecay > 0 && k.TrackPrefillTokens; k.decays {
		k.least = math.MaxInt64
		for i := range s.Candidates {
			if c := &s.Candidates[i]; c.Room() {
				k.least = min(k.least, max(c.PrefillTokens, 0))
			}
		}
	}
	return k
}

// whole converts leading blocks of a candidate's count to whole blocks of the cost.
func (k *costing) whole(blocks int32) float64 {
	if k.BlockTokens == block.Tokens {
		return float64(blocks) // a division less
	}
	return float64(int64(blocks) * block.Tokens / int64(k.BlockTokens))
}

// cost returns the cost of one candidate, and writes its parts into t, unless t is nil.
func (k *costing) cost(c *Candidate, t *CostTerms) (total float64) {
	decay, labels := 1.0, 1.0
	if k.decays {
		decay = k.decay(c)
	}
	if c.Labels != 0 {
		labels = preference(c.Labels, k.pinned)
	}
	cached, credit, tokens := 0.0, 0.0, k.prompt
	if c.Matched|c.Coming|c.Host|c.Disk|c.SharedCache != 0 {
		cached, credit, tokens = k.credit(c, decay)
	}
	experts := 0.0
	if c.Experts > 0 {
		experts = k.experts(c, decay, credit)
		credit += experts
	}
	decode, requests := 0.0, 0.0
	if c.PrefillTokens >= 0 {
		tokens += float64(c.PrefillTokens)
		if k.TrackActiveBlocks {
			active := c.ActiveBlocks
			if k.BlockTokens != block.Tokens || active != float64(uint32(active)) { // mostly there is nothing to round
				active = k.active(active)
			}
			decode = active + k.blocks
			if c.SharedActive > 0 && k.AssumeKVReuse {
				decode -= min(k.whole(c.SharedActive), k.blocks)
			}
		}
		if k.ActiveRequestWeight > 0 {
			requests = k.ActiveRequestWeight * float64(c.busy())
		}
	}
	raw, prefill := 0.0, 0.0
	if k.offDecode {
		total = (max(0, decode-credit) + requests) * labels
	} else {
		if k.TrackPrefillTokens {
			raw = tokens / k.unit
		}
		if raw > credit {
			prefill = raw - credit
		}
		total = (k.PrefillLoadScale*prefill + decode + requests) * labels
	}
	if t != nil {
		*t = CostTerms{
			Cached: cached, Raw: raw, Decay: decay, Credit: credit, Experts: experts, Scale: k.PrefillLoadScale,
			Prefill: prefill, Decode: decode, Requests: requests, Labels: labels, Total: total, OffDecode: k.offDecode,
			Elsewhere: k.elsewhere(c),
		}
	}
	return total
}

// credit returns the cached blocks, the credit for them, and the tokens of the prompt that count in
// the raw prefill. A node with an unknown load counts all of them.
func (k *costing) credit(c *Candidate, decay float64) (cached, credit, tokens float64) {
	near := max(c.Matched, c.Coming, 0)
	device := k.whole(near)
	host := k.whole(max(c.Host, near)) - device
	disk := k.whole(max(c.Disk, c.Host, near)) - device - host
	lower := k.HostCacheHitWeight*host + k.DiskCacheHitWeight*disk
	cached = device + lower
	credit = k.OverlapScoreCredit*decay*device + lower
	if k.shared.Given {
		credit += k.shared.Value * (k.whole(max(c.SharedCache, near)) - device)
	} else if c.Saved > 0 {
		worth, here := fetched(k.HostCacheHitWeight, c), device+host+disk
		credit += max(worth-k.DiskCacheHitWeight, 0)*disk + worth*max(k.whole(c.SharedCache)-here, 0)
	}
	whole := device * k.unit
	if lower > 0 {
		whole = math.Round(cached * k.unit)
	}
	if tokens = k.prompt; whole > tokens && c.PrefillTokens >= 0 {
		tokens = whole // more is cached than the prompt has
	}
	return cached, credit, tokens
}

// elsewhere returns the worth of a block that only other hosts have.
func (k *costing) elsewhere(c *Candidate) float64 {
	if k.shared.Given {
		return k.shared.Value
	}
	return fetched(k.HostCacheHitWeight, c)
}

// experts returns what the credit is raised by for the request's experts at the node. The credit
// does not exceed the prompt's blocks.
func (k *costing) experts(c *Candidate, decay, credit float64) float64 {
	device := k.whole(max(c.Matched, c.Coming, 0))
	return min(float64(c.Experts)*k.OverlapScoreCredit*decay*device, max(0, k.blocks-credit))
}

// decay returns the factor of the credit for blocks in the engine's own memory.
func (k *costing) decay(c *Candidate) float64 {
	excess := float64(max(max(c.PrefillTokens, 0)-k.least, 0)) / k.unit
	return 1 / (1 + k.OverlapScoreCreditDecay*excess/max(math.Ceil(k.prompt/k.unit), 1))
}

// active converts a candidate's active blocks to whole blocks of the cost.
func (k *costing) active(blocks float64) float64 {
	if !known(blocks) {
		return 0
	}
	return math.Round(blocks * block.Tokens / k.unit)
}

// preference returns the factor of the preferred labels, between exp(-1) and exp(1). sum is the sum
// of their weights. Labels do not count for a pinned request.
func preference(sum float64, pinned bool) float64 {
	if pinned || sum == 0 || math.IsNaN(sum) {
		return 1
	}
	return math.Exp(-math.Tanh(sum))
}
