package policy

import (
	"fmt"
	"math"
	"slices"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/router/predict"
)

// PredictedSettings are the settings of mode predicted. The lowest cost wins, in expected seconds.
// Costs within 1 % count as equal, and rendezvous by the prompt decides, as in mode score. A
// session's request stays at the session's node while its cost there is at most a tenth higher.
//
//	cost   = (First*(first + Later*delays) + answer + Others*(stalls + slower) +
//	          Burst*repeat + 100*late) * labels
//	first  = Base + Wait*wait + prefill + Steps*step + the wait for a slot of the engine
//	delays = prefill * later requests that will have to wait for it, on average
//	answer = expected output tokens * step
//	stalls = prefill * decoding requests
//	slower = decoding requests * half of the output tokens * growth of a step by this request
//	repeat = prefill of the blocks that the node computes for others * prompts that wait there
//	late   = seconds beyond the request's targets
//
// wait is the prefill that waits at the node, and prefill this request's own. Blocks in the host's
// memory and on its disk count as computed in part, by score.tiers. step is the time between two
// tokens with this request in the batch. Base, Steps, and the rates behind prefill and step are
// learned; package predict has the formulas. While a prompt is computed, its engine's other
// requests get no tokens; stalls is their loss. repeat is the price of a second request for blocks
// that are not computed yet. Where one request follows another at once more will follow, and need
// the blocks on several nodes. labels is as in mode cost. Power and capacity do not count.
type PredictedSettings struct {
	// First is the weight of a second until a first token, against a second of waiting for further
	// tokens.
	First float64 `json:"first" range:"0..1000"`
	// Wait is the weight of the prefill that waits at a node. 0: what waits does not count.
	Wait float64 `json:"wait" range:"0..1000"`
	// Later is the weight of the time that later requests will wait for this one's prefill.
	Later float64 `json:"later" range:"0..1000"`
	// Others is the weight of the time that the node's decoding requests lose.
	Others float64 `json:"others" range:"0..1000"`
	// Burst is the weight of requests for blocks that are being computed. 0: they gather on a node.
	Burst float64 `json:"burst" range:"0..1000"`
	// Learn says that rates are learned. Without it all nodes have the start values.
	Learn bool `json:"learn"`
	// Explore says that a change of a node's speed is forgotten in some tens of seconds while the
	// node gets no requests. A node that was slow is then tried again.
	Explore bool `json:"explore"`
}

// lateness is the weight of a second beyond a target.
const lateness = 100

// Timing is what mode predicted knows about a candidate.
type Timing struct {
	predict.Speed
	Wait     float64 // seconds of prefill that wait at the node
	Pressing float64 // prompts that wait there
	Decoding float64 // requests that get tokens
	Blocks   float64 // KV blocks of the node's requests
	Load     float64 // seconds to load the request's adapter
}

// ExpectedTerms are the parts of one node's cost in mode predicted, in seconds.
type ExpectedTerms struct {
	Wait    float64 `json:"wait_s"`       // prefill that waits at the node
	Prefill float64 `json:"prefill_s"`    // of this prompt
	First   float64 `json:"first_s"`      // until the first token
	Delays  float64 `json:"delays_s"`     // of later requests
	Step    float64 `json:"step_s"`       // between two tokens
	Answer  float64 `json:"answer_s"`     // from the first token to the last
	Stalls  float64 `json:"stalls_s"`     // of the node's other requests while the prompt is computed
	Slower  float64 `json:"slower_s"`     // of the node's other requests, by longer steps
	Repeat  float64 `json:"repeat_s"`     // of blocks that are being computed
	Late    float64 `json:"late_s"`       // beyond the request's targets
	Labels  float64 `json:"taint_factor"` // factor of the preferred labels
	Total   float64 `json:"total"`        // the cost
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
	tiers    *Tiers
	tokens   int64
	blocks   float64
	output   float64
	targets  Targets
	pinned   bool
	pressure float64
}

func (p *predicted) pick(s *Situation, e *Explanation) int {
	if len(s.Times) != len(s.Candidates) {
		return p.Score.pick(s, e) // the caller knows no times
	}
	x := expecting{
		PredictedSettings: &p.Predicted, tiers: &p.Score.Tiers, tokens: max(s.Tokens, 0), blocks: float64(s.Blocks),
		output: s.Output, targets: s.Overrides.Targets.or(Targets{First: p.TTFTSloMs / 1000}), pinned: s.Pinned,
		pressure: s.Pressure,
	}
	s.Scratch = slices.Grow(s.Scratch[:0], len(s.Candidates))[:len(s.Candidates)]
	best, low, second, takers := -1, math.Inf(1), math.Inf(1), 0
	var t ExpectedTerms
	for i := range s.Candidates {
		c := &s.Candidates[i]
		s.Scratch[i] = standing{math.Inf(-1), c.IDHash}
		if e == nil && !c.Room() {
			continue
		}
		x.expect(c, &s.Times[i], &t)
		if e != nil {
			e.Terms[i].expected(&t, p)
		}
		if !c.Room() {
			continue
		}
		takers++
		if s.Scratch[i].total = -t.Total; t.Total < low {
			best, low, second = i, t.Total, low
		} else {
			second = min(second, t.Total)
		}
	}
	if best < 0 {
		return -1
	}
	return s.among(best, low, second, takers, e)
}

const (
	alike = 0.01 // costs this much higher than the lowest count as equal
	loyal = 0.1  // a session's request may cost this much more at the session's node
)

// among picks among the candidates whose cost is near low, the lowest, which is that of best.
// second is the next lowest. The prompt's key is asked for only if second is near too.
func (s *Situation) among(best int, low, second float64, takers int, e *Explanation) int {
	pick, tied, keyed := best, 1, false
	if second <= low*(1+alike) {
		pick, tied, keyed = s.breakTie(-low * (1 + alike))
	}
	if e != nil {
		e.Why = fmt.Sprintf("lowest expected cost %s s of %d candidates", decimals(low, 4), takers)
		if tied > 1 {
			how := "at random, the prompt has no key"
			if keyed {
				how = "by rendezvous of node id and session or prompt"
			}
			e.Why = fmt.Sprintf("%d candidates within 1 %% of the lowest expected cost %s s, chosen %s",
				tied, decimals(low, 4), how)
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

// expect computes the cost of a candidate.
func (x *expecting) expect(c *Candidate, at *Timing, t *ExpectedTerms) {
	step := at.Decode(at.Decoding, at.Blocks)
	f := predict.First{Wait: x.Wait*at.Wait + at.Load, Work: predict.Prompt(x.tokens, x.held(c)), Step: step}
	if over := int64(c.EngineSlots); over > 0 {
		if over = c.busy() + 1 - over; over > 0 {
			f.Wait += float64(over) / float64(c.EngineSlots) * x.output * at.Decodes * step
		}
	}
	at.Forecast(&f)
	own := at.Sequence + at.Block*(x.blocks+x.output/(2*block.Tokens))
	*t = ExpectedTerms{
		Wait: at.Wait, Prefill: at.Prefills * at.Prefill(f.Work), First: f.Expected,
		Step: at.Decodes * (step + own), Labels: 1,
	}
	t.Delays, t.Answer, t.Stalls = x.pressure*t.Prefill, x.output*t.Step, at.Decoding*t.Prefill
	t.Slower = at.Decoding * x.output / 2 * at.Decodes * own
	if coming := int64(c.Coming - c.Matched); coming > 0 {
		again := predict.Prompt(int64(c.Coming)*block.Tokens, int64(c.Matched)*block.Tokens)
		t.Repeat = at.Pressing * at.Prefills * at.Prefill(again)
	}
	if x.targets != (Targets{}) {
		t.Late = x.targets.late(t.First, t.Step, x.output)
	}
	if c.Labels != 0 {
		t.Labels = preference(c.Labels, x.pinned)
	}
	mine, others := x.First*(t.First+x.Later*t.Delays)+t.Answer, x.Others*(t.Stalls+t.Slower)+x.Burst*t.Repeat
	t.Total = (mine + others + lateness*t.Late) * t.Labels
}

// held returns the tokens of the prompt that the node need not compute.
func (x *expecting) held(c *Candidate) int64 {
	near := max(c.Matched, c.Coming, 0)
	if c.Host <= near && c.Disk <= near && c.Experts == 0 {
		return int64(near) * block.Tokens
	}
	host := max(c.Host, near)
	disk := max(c.Disk, host)
	worth := float64(near)*float64(1+c.Experts) + x.tiers.Host*float64(host-near) + x.tiers.Disk*float64(disk-host)
	return int64(min(worth, x.blocks) * block.Tokens)
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

// expected stores the terms with their formula.
func (t *Terms) expected(x *ExpectedTerms, p *predicted) {
	s := &p.Predicted
	t.Expected, t.Total = *x, x.Total
	sum := decimal(s.First) + " * (" + decimal(x.First) + " + " + decimal(s.Later) + " * " + decimal(x.Delays) +
		") + " + decimal(x.Answer) + " + " + decimal(s.Others) + " * " + decimal(x.Stalls+x.Slower)
	if x.Repeat > 0 {
		sum += " + " + decimal(s.Burst) + " * " + decimal(x.Repeat)
	}
	if x.Late > 0 {
		sum += fmt.Sprintf(" + %d * ", lateness) + decimal(x.Late)
	}
	if x.Labels != 1 {
		sum = decimal(x.Labels) + " * (" + sum + ")"
	}
	t.Formula = decimals(x.Total, 4) + " = " + sum + " (first_s: " + decimal(x.First) + ", step_s: " +
		decimals(x.Step, 4) + ")"
}
