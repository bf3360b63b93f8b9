package policy

import "math"

// chainTokens is the number of tokens in a block of the candidates' counts.
const chainTokens = 16

// CostSettings are the settings of mode cost. The lowest cost wins, and equal costs win at random.
// The cost counts blocks of BlockTokens tokens:
//
//	cost   = (PrefillLoadScale*max(0, raw-credit) + decode + ActiveRequestWeight*requests) * taint
//	raw    = (active prefill tokens + max(0, prompt tokens - cached) + cached) / BlockTokens
//	cached = device + HostCacheHitWeight*host + DiskCacheHitWeight*disk, in whole tokens
//	credit = OverlapScoreCredit*decay*device + HostCacheHitWeight*host + DiskCacheHitWeight*disk +
//	         SharedCacheMultiplier*shared + experts
//	decay  = 1 / (1 + OverlapScoreCreditDecay*excess/max(1, prompt))
//	decode = active blocks + blocks of the prompt that are not active yet
//	taint  = exp(-tanh(sum of the weights of matching preferred taints)), 1 for a pinned request
//
// device, host and disk are the whole blocks that the node has there and in no better tier. shared
// are the blocks behind device in a cache that every host reaches. experts is the share of the
// request's experts that the node hosts, times OverlapScoreCredit*decay*device. experts brings the
// credit at most to the prompt's blocks. excess is the node's active
// prefill above the least of all candidates, in blocks. A node with an unknown load has no decode
// and no requests, and its raw is the prompt. With TrackPrefillTokens off, the credit is taken off
// decode instead, if there is credit and the node does not only compute the prompt:
//
//	cost = (max(0, decode-credit) + ActiveRequestWeight*requests) * taint
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
	SharedCacheMultiplier   float64 `json:"shared_cache_multiplier" range:"0..1"`
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
	best, low, high, bestDraw := -1, 0.0, 0.0, uint64(0)
	for i := range s.Candidates {
		c := &s.Candidates[i]
		room := c.room()
		if !room && e == nil {
			continue
		}
		t := k.terms(c)
		if e != nil {
			e.Terms[i].Cost, e.Terms[i].Total, e.Terms[i].Formula = t, t.Total, t.formula()
		}
		if !room {
			continue
		}
		cost, draw := t.Total, mix(s.Random+uint64(i))
		high = max(high, cost)
		if best < 0 || cost < low || cost == low && draw > bestDraw {
			best, low, bestDraw = i, cost, draw
		}
	}
	if best >= 0 && k.Temperature > 0 {
		best = k.draw(s, low, high)
	}
	if e != nil && best >= 0 {
		k.explain(s, e, best, low, high)
	}
	return best
}

// draw picks a candidate with room with a probability proportional to its weight. The highest sum
// of a weight's logarithm and a Gumbel variate is such a draw.
func (k *costing) draw(s *Situation, low, high float64) int {
	best, most := -1, 0.0
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if !c.room() {
			continue
		}
		uniform := (float64(mix(s.Random+uint64(i))>>11) + 0.5) / (1 << 53)
		lot := k.logWeight(k.terms(c).Total, low, high) - math.Log(-math.Log(uniform))
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
	tokens       int64   // of the prompt
	blocks       float64 // whole blocks of the prompt
	least        int64   // the least active prefill of the candidates, in tokens
	prefill      bool    // the node only computes the prompt
	pinned       bool
}

func (p *CostSettings) costing(s *Situation) costing {
	k := costing{CostSettings: *p, tokens: max(s.Tokens, 0), prefill: s.Prefill, pinned: s.Pinned}
	s.Overrides.apply(&k.CostSettings)
	k.blocks = float64(k.tokens / int64(k.BlockTokens))
	if k.OverlapScoreCreditDecay > 0 && k.TrackPrefillTokens {
		k.least = math.MaxInt64
		for i := range s.Candidates {
			if c := &s.Candidates[i]; c.room() {
				k.least = min(k.least, max(c.PrefillTokens, 0))
			}
		}
	}
	return k
}

// whole converts leading blocks of a candidate's count to whole blocks of the cost.
func (k *costing) whole(blocks int32) float64 {
	if k.BlockTokens == chainTokens {
		return float64(blocks) // a division less
	}
	return float64(int64(blocks) * chainTokens / int64(k.BlockTokens))
}

// terms returns the cost of one candidate.
func (k *costing) terms(c *Candidate) CostTerms {
	device := k.whole(max(c.Matched, c.Coming, 0))
	host := max(k.whole(c.Host)-device, 0)
	disk := max(k.whole(c.Disk)-device-host, 0)
	lower := k.HostCacheHitWeight*host + k.DiskCacheHitWeight*disk
	shared := max(k.whole(c.SharedCache)-device, 0)
	t := CostTerms{Cached: device + lower, Decay: k.decay(c), Scale: k.PrefillLoadScale, Taint: k.taint(c)}
	t.Credit = k.OverlapScoreCredit*t.Decay*device + lower + k.SharedCacheMultiplier*shared
	if c.Experts > 0 {
		raise := float64(c.Experts) * k.OverlapScoreCredit * t.Decay * device
		t.Experts = min(raise, max(0, k.blocks-t.Credit))
		t.Credit += t.Experts
	}
	if c.PrefillTokens >= 0 {
		t.Decode, t.Requests = k.decode(c), k.ActiveRequestWeight*float64(c.busy())
	}
	if !k.prefill && k.OverlapScoreCredit > 0 && !k.TrackPrefillTokens {
		t.OffDecode = true
		t.Total = (max(0, t.Decode-t.Credit) + t.Requests) * t.Taint
		return t
	}
	t.Raw = k.raw(c, t.Cached)
	t.Prefill = max(0, t.Raw-t.Credit)
	t.Total = (t.Scale*t.Prefill + t.Decode + t.Requests) * t.Taint
	return t
}

// raw returns the node's prefill with this prompt, before the credit for cached blocks.
func (k *costing) raw(c *Candidate, cached float64) float64 {
	if !k.TrackPrefillTokens {
		return 0
	}
	tokens := float64(k.tokens)
	if c.PrefillTokens >= 0 {
		cached = math.Round(cached * float64(k.BlockTokens))
		tokens = float64(c.PrefillTokens) + max(0, tokens-cached) + cached
	}
	return tokens / float64(k.BlockTokens)
}

// decay returns the factor of the credit for blocks in the engine's own memory.
func (k *costing) decay(c *Candidate) float64 {
	if !(k.OverlapScoreCreditDecay > 0 && k.TrackPrefillTokens) {
		return 1
	}
	unit := int64(k.BlockTokens)
	excess := float64(max(max(c.PrefillTokens, 0)-k.least, 0)) / float64(unit)
	prompt := float64(max((k.tokens+unit-1)/unit, 1))
	return 1 / (1 + k.OverlapScoreCreditDecay*excess/prompt)
}

// decode returns the blocks that would be active at the node with this request.
func (k *costing) decode(c *Candidate) float64 {
	if !k.TrackActiveBlocks {
		return 0
	}
	added := k.blocks
	if k.AssumeKVReuse {
		added = max(added-k.whole(max(c.SharedActive, 0)), 0)
	}
	active := 0.0
	if known(c.ActiveBlocks) {
		active = math.Round(c.ActiveBlocks * chainTokens / float64(k.BlockTokens))
	}
	return active + added
}

// taint returns the factor of the preferred taints, between exp(-1) and exp(1).
func (k *costing) taint(c *Candidate) float64 {
	sum := c.Taint
	if k.pinned || sum == 0 || math.IsNaN(sum) {
		return 1
	}
	return math.Exp(-math.Tanh(sum))
}
