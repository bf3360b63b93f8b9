package policy

import (
	"fmt"
	"math"
	"slices"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/router/predict"
)

// PredictedSettings are the settings of mode predicted. The lowest cost wins, in expected seconds.
// Costs count as equal if they exceed the lowest one by at most 2 % of its early part, and
// rendezvous by the prompt decides, as in mode score. The early part is what does not grow with the
// answer's length: the cost without answer, slower and late. A session's request stays at
// the session's node while its cost there is at most a tenth higher.
//
//	cost   = (First*(first - shared) + answer + Others*(stalls + slower) + 100*late) * labels
//	first  = Base + Wait*wait + stalled + prefill + fetch + Steps*step + waits for slot and adapter
//	answer = expected output tokens * step
//	stalls = (prefill + fetch) * decoding requests
//	slower = decoding requests * half of the output tokens * growth of a step by this request
//	shared = prefill of the prompt's beginning, as far as other running requests bear its price
//	late   = seconds beyond the request's targets
//
// wait is the prefill that waits at the node, and prefill this request's own. stalled is the time
// by which the first token of the node's oldest prompt is late, or the longer one since the node's
// last token. Only the part above twice the fleet's least of these counts. Blocks in the host's
// memory and on its disk count as computed in part, by host and disk of score.tiers. fetch is the
// time in which the host gets blocks that only other hosts have. They count like those in its
// memory then, or not at all if computing them is faster. step is the time between two tokens with
// this request in the batch, and those whose prompts wait. Base, Steps, and the rates behind
// prefill and step are learned; package predict has the formulas. While a prompt is computed, its
// engine's other requests get no tokens; stalls is their loss. A node that computes the beginning
// of a prompt once more does so for all requests that have it. Where many run at once, more are
// expected to follow, so each pays for a part. labels is as in mode cost. Power and capacity do not
// count. First and Others are not both 0, because then no prompt would count.
//
// Where nodes compute prompts for each other, a node without prompts is worth more to an answer:
//
//	answer = expected output tokens * step * (1 + 2*busy/(1-busy))
//
// busy is the share of its time that the node needs for the prompts that it got lately, with this
// one if it is to compute it. Each candidate counts with the cheaper of two ways, see Via.
type PredictedSettings struct {
	// First is the weight of a second until a first token, against a second of waiting for further
	// tokens.
	First float64 `json:"first" range:"0..1000"`
	// Wait is the weight of the prefill that waits at a node. 0: what waits does not count.
	Wait float64 `json:"wait" range:"0..1000"`
	// Others is the weight of the time that the node's decoding requests lose.
	Others float64 `json:"others" range:"0..1000"`
	// Burst is how far each running request with the same beginning of its prompt lowers the price
	// of computing the beginning on one more node. The first two do not. 0: they gather on a node.
	Burst float64 `json:"burst" range:"0..1000"`
	// Learn says that rates are learned. Without it all nodes have the start values.
	Learn bool `json:"learn"`
	// Explore lets some requests try idle nodes that were slower than their kind, and those of a
	// kind whose speed is unknown.
	Explore bool `json:"explore"`
}

// lateness is the weight of a second beyond a target.
const lateness = 100

// Timing is what mode predicted knows about a candidate.
type Timing struct {
	predict.Speed
	Wait     float64 // seconds of prefill that wait at the node
	Overdue  float64 // seconds by which the first token of its oldest prompt is late
	Silent   float64 // seconds beyond Wait and Overdue for which the node is expected to give no token
	Pressing float64 // prompts that wait there
	Decoding float64 // requests that get tokens
	Coming   float64 // requests whose prompts another node computes first
	Blocks   float64 // KV blocks of the node's requests
	Load     float64 // seconds to load the request's adapter
	Fetch    float64 // seconds in which the host gets a block of another host; 0: unknown
	Tried    bool    // the speed is that of the node's kind, because the node may be tried again
	// Unproven says that the speed of the node's kind is unknown, or known from long ago.
	Unproven bool
	// Prompts are the seconds of prefill that the node got in the last Lately seconds. Lately is 0
	// if the model's nodes do not compute prompts for each other. Prompts then do not count.
	Prompts, Lately float64
	Via             Via
}

// Via is what mode predicted expects if another node computes the prompt for a candidate. The zero
// value says that no other node can.
type Via struct {
	First  float64 // seconds until the candidate has the prompt's blocks
	Stalls float64 // of the other node's requests, in seconds
	Always bool    // the other node computes the prompt, whatever it costs
}

// ExpectedTerms are the parts of one node's cost in mode predicted, in seconds.
type ExpectedTerms struct {
	Wait    float64 `json:"wait_s"`            // prefill that waits at the node
	Delay   float64 `json:"stalled_s"`         // further wait, because a token of the node is overdue
	Prefill float64 `json:"prefill_s"`         // of this prompt
	Fetch   float64 `json:"fetch_s,omitempty"` // of blocks that only other hosts have
	First   float64 `json:"first_s"`           // until the first token
	Shared  float64 `json:"shared_s"`          // of these, for blocks that other running requests have too
	Step    float64 `json:"step_s"`            // between two tokens
	Answer  float64 `json:"answer_s"`          // from the first token to the last
	Stalls  float64 `json:"stalls_s"`          // of the node's other requests while the prompt is computed
	Slower  float64 `json:"slower_s"`          // of the node's other requests, by longer steps
	Late    float64 `json:"late_s"`            // beyond the request's targets
	Via     float64 `json:"via_s,omitempty"`   // until another node has computed the prompt; 0: the node does itself
	Labels  float64 `json:"taint_factor"`      // factor of the preferred labels
	Total   float64 `json:"total"`             // the cost
}

// Targets are a request's objectives in seconds; 0: none.
type Targets struct{ First, Step float64 }

// or returns the targets of t, and those of other where t has none.
func (t Targets) or(other Targets) Targets {
	if t.First == 0 {
		t.First = other.First
	}
	if t.Step == 0 {
		t.Step = other.Step
	}
	return t
}

// predicted is a policy in mode predicted.
type predicted Policy

// expecting is the cost function in one situation.
type expecting struct {
	*PredictedSettings
	tiers   *Tiers
	tokens  int64
	blocks  float64
	output  float64
	targets Targets
	pinned  bool
	// shared are the tokens of the prompt's beginning that running prompts have too, and spread is
	// the part of their price that counts.
	shared int64
	spread float64
	// usual is the delay of a token that does not tell the candidates apart.
	usual float64
}

// everywhere looks for a delay that all candidates with room have in common. The expectations are
// wrong then, or the whole fleet hangs. Only more than twice the least delay counts against one.
func (x *expecting) everywhere(s *Situation) {
	delay := math.Inf(1)
	for i := range s.Times {
		if at := &s.Times[i]; s.Candidates[i].Room() {
			delay = min(delay, at.delay())
		}
	}
	x.usual = 2 * delay
}

// delay returns the seconds for which a token of the node is overdue.
func (t *Timing) delay() float64 { return t.Overdue + t.Silent }

func (p *predicted) pick(s *Situation, e *Explanation) int {
	if len(s.Times) != len(s.Candidates) {
		return p.Score.pick(s, e) // the caller knows no times
	}
	x := p.expecting(s)
	x.everywhere(s)
	s.Scratch = slices.Grow(s.Scratch[:0], len(s.Candidates))[:len(s.Candidates)]
	best, low, second, band, takers := -1, math.Inf(1), math.Inf(1), 0.0, 0
	var t ExpectedTerms
	for i := range s.Candidates {
		c := &s.Candidates[i]
		s.Scratch[i] = standing{math.Inf(-1), c.IDHash}
		if e == nil && !c.Room() {
			continue
		}
		early := x.expect(c, &s.Times[i], &t)
		if e != nil {
			e.Terms[i].expected(&t, x.parts(c, &s.Times[i]))
		}
		if !c.Room() {
			continue
		}
		takers++
		if s.Scratch[i].total = -t.Total; t.Total < low {
			best, low, second, band = i, t.Total, low, alike*early
		} else {
			second = min(second, t.Total)
		}
	}
	if best < 0 {
		return -1
	}
	if s.Tries && s.Home == 0 {
		if i := s.untried(best); i >= 0 {
			if e != nil {
				e.Why = "it is idle, and the speed of its kind of engine is unknown, or known from long ago"
			}
			return i
		}
	}
	pick := s.among(best, low, second, band, takers, e)
	if e != nil && s.Times[pick].Tried {
		e.Why = "it was slower than its kind, and is tried again; " + e.Why
	}
	return pick
}

// untried returns the cheapest idle candidate of a kind whose speed is unproven; -1: there is none,
// or that of the best candidate is unproven too. Without a try, a fast kind might never be known:
// others that are faster than the start values get all requests.
func (s *Situation) untried(best int) int {
	at := -1
	if s.Times[best].Unproven {
		return at
	}
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.busy() == 0 && c.Room() && !c.Loads && s.Times[i].Unproven &&
			(at < 0 || s.Scratch[i].total > s.Scratch[at].total) {
			at = i
		}
	}
	return at
}

// expecting returns the cost function in a situation.
func (p *predicted) expecting(s *Situation) expecting {
	return expecting{
		PredictedSettings: &p.Predicted, tiers: &p.Score.Tiers, tokens: max(s.Tokens, 0), blocks: float64(s.Blocks),
		shared: int64(s.Shared) * block.Tokens, spread: p.Predicted.spread(s.Sharers),
		output: s.Output, targets: s.Overrides.Targets.or(Targets{First: p.TTFTSloMs / 1000}), pinned: s.Pinned,
	}
}

// Expected returns what mode predicted expects of the candidate at index i, for a comparison with
// what comes. Preferences of the cost have no part in it: the weight of a wait, experts, and that
// twice the fleet's least delay does not count. s has the times of the candidates. Expected
// allocates nothing.
func (p *Policy) Expected(s *Situation, i int) (t ExpectedTerms) {
	x, set, c := (*predicted)(p).expecting(s), p.Predicted, s.Candidates[i]
	set.Wait, c.Experts = 1, 0
	x.PredictedSettings = &set
	x.expect(&c, &s.Times[i], &t)
	return t
}

const (
	// alike is how far above the lowest cost an equal one may be, in parts of its early cost.
	alike = 0.02
	// loyal is how much more a session's request may cost at the session's node.
	loyal = 0.1
)

// among picks among the candidates whose cost is at most band above low, the lowest, which is that
// of best. second is the next lowest. The prompt's key is asked for only if second is near too.
func (s *Situation) among(best int, low, second, band float64, takers int, e *Explanation) int {
	pick, tied, keyed := best, 1, false
	if second <= low+band {
		pick, tied, keyed = s.breakTie(-(low + band))
	}
	if e != nil {
		e.Why = fmt.Sprintf("lowest expected cost %s s of %d candidates", decimals(low, 4), takers)
		if tied > 1 {
			how := "at random, the prompt has no key"
			if keyed {
				how = "by rendezvous of node id and session or prompt"
			}
			e.Why = fmt.Sprintf("%d candidates within %s s of the lowest expected cost %s s, chosen %s",
				tied, decimals(band, 4), decimals(low, 4), how)
		}
	}
	if home := s.Home - 1; home >= 0 && -s.Scratch[home].total <= low*(1+loyal) {
		if e != nil && home != best {
			e.Why = "its session is there, and its expected cost is within a tenth of the lowest"
		}
		return home
	}
	return pick
}

// expect computes the cost of a candidate. early is the part of it that does not grow with the
// answer's length. All prefill is little beside a long answer.
func (x *expecting) expect(c *Candidate, at *Timing, t *ExpectedTerms) (early float64) {
	step, delay := at.Decode(at.Decoding, at.Blocks), max(at.delay()-x.usual, 0)
	warm := x.tiers.Warm(c, at, x.tokens)
	credit := x.credit(c, warm.Held)
	f := predict.First{
		Wait: x.Wait*at.Wait + delay + at.Load + x.slot(c, at, step) + warm.Fetch, Step: step,
		Work: predict.Prompt(x.tokens, credit),
	}
	at.Forecast(&f)
	own := at.Sequence + at.Block*(x.blocks+x.output/(2*block.Tokens))
	batch := at.Decoding + at.Pressing + at.Coming // prompts that wait have their answers beside this one
	*t = ExpectedTerms{
		Wait: at.Wait, Delay: delay, Prefill: at.PrefillFactor * at.Prefill(f.Work), Fetch: warm.Fetch,
		First: f.Expected, Step: at.DecodeFactor * (at.Decode(batch, at.Blocks) + own), Labels: 1,
	}
	busy := t.Prefill + t.Fetch
	t.Answer, t.Stalls = x.output*t.Step, at.Decoding*busy
	t.Slower = at.Decoding * x.output / 2 * at.DecodeFactor * own
	if x.targets != (Targets{}) {
		t.Late = x.targets.late(t.First, t.Step, x.output)
	}
	if c.Labels != 0 {
		t.Labels = preference(c.Labels, x.pinned)
	}
	if x.spread < 1 {
		t.Shared = x.beginning(c, at, warm.Fetch > 0) * (1 - x.spread)
	}
	early = (x.First*(t.First-t.Shared) + x.Others*t.Stalls) * t.Labels
	quiet := t.Answer
	t.Answer = quiet * at.disturbed(busy)
	if at.Via.First > 0 {
		early = x.via(c, at, t, early, quiet*at.disturbed(0))
	}
	t.Total = early + (t.Answer+x.Others*t.Slower+lateness*t.Late)*t.Labels
	return early
}

// via changes t to what is expected if another node computes the prompt, if that costs less. early
// is the early part of the cost without the other node, and answer the time of the answer with it.
// The returned early part is that of the cheaper way. The prefill that waits at the node matters
// only if it takes longer than the other node's part.
func (x *expecting) via(c *Candidate, at *Timing, t *ExpectedTerms, early, answer float64) float64 {
	step := at.Decode(at.Decoding, at.Blocks)
	free := x.Wait*at.Wait + at.Load + x.slot(c, at, step)
	first := at.PrefillFactor*(at.Base+at.Steps*step) + t.Delay + max(at.Via.First, free)
	late := 0.0
	if x.targets != (Targets{}) {
		late = x.targets.late(first, t.Step, x.output)
	}
	other := (x.First*first + x.Others*at.Via.Stalls) * t.Labels
	if !at.Via.Always && other+(answer+lateness*late)*t.Labels >= early+(t.Answer+lateness*t.Late)*t.Labels {
		return early
	}
	t.Wait, t.Prefill, t.Fetch, t.Shared, t.Answer = 0, 0, 0, 0, answer
	t.First, t.Stalls, t.Late, t.Via = first, at.Via.Stalls, late, at.Via.First
	return other
}

// disturbed returns how much longer an answer at the node takes because of the prompts that come
// meanwhile, if those of the last time and more seconds of prompts are typical.
func (t *Timing) disturbed(more float64) float64 {
	if t.Lately == 0 {
		return 1
	}
	busy := min((t.Prompts+more)/t.Lately, busiest)
	return 1 + interrupted*busy/(1-busy)
}

const (
	// interrupted is the weight of the time in which an answer is held up by prompts.
	interrupted = 2
	// busiest is the largest share of its time that a node is expected to spend on prompts.
	busiest = 0.9
)

// slot returns the time until the candidate's engine has a free slot. step is a typical engine's.
func (x *expecting) slot(c *Candidate, at *Timing, step float64) float64 {
	if c.Queues() {
		return float64(c.busy()+1-int64(c.EngineSlots)) / float64(c.EngineSlots) * x.output * at.DecodeFactor * step
	}
	return 0
}

// credit returns the tokens of the prompt that do not count as work of the node: those that it need
// not compute, and more for hosted experts.
func (x *expecting) credit(c *Candidate, held int64) int64 {
	if c.Experts == 0 {
		return held
	}
	near := float64(max(c.Matched, c.Coming, 0))
	return min(held+int64(near*float64(c.Experts)*block.Tokens), int64(x.blocks)*block.Tokens)
}

// Held returns how many tokens of the prompt mode predicted expects the node not to compute. Blocks
// in the engine's own memory count whole, like those that it computes for other requests. Blocks in
// the host's memory and on its disk count in part, because the engine has to load them.
func (t *Tiers) Held(c *Candidate) int64 {
	near := max(c.Matched, c.Coming, 0)
	if c.Host <= near && c.Disk <= near {
		return int64(near) * block.Tokens
	}
	host := max(c.Host, near)
	disk := max(c.Disk, host)
	return int64((float64(near) + t.Host*float64(host-near) + t.Disk*float64(disk-host)) * block.Tokens)
}

// sharersFew is the number of running requests with the same beginning of their prompts up to which
// one more node pays for it alone. Beyond it more of them are expected.
const sharersFew = 2

// spread returns the part of the price of a beginning that counts for one of the requests with it.
func (s *PredictedSettings) spread(sharers int) float64 {
	return 1 / (1 + s.Burst*float64(max(sharers-sharersFew, 0)))
}

// late returns the seconds beyond the targets. The time between tokens counts for each token.
func (t Targets) late(first, step, output float64) (seconds float64) {
	if t.First > 0 {
		seconds = max(first-t.First, 0)
	}
	if t.Step > 0 {
		seconds += max(step-t.Step, 0) * max(output, 1)
	}
	return seconds
}
