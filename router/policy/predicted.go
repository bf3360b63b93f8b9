package policy

import (
	"math"
	"slices"

	"github.com/cognitora/dataplane/router/predict"
)

// PredictedSettings are the settings of mode predicted. The lowest expected cost wins, in seconds
// that all requests of the node spend because of the request:
//
//	cost    = first + answer + stalls + slower + queue
//	first   = expected time to the first token, with the prompts that wait before
//	answer  = output tokens * step
//	stalls  = the prompt's prefill, for each request that gets tokens at the node
//	slower  = tokens that the others still get * growth of a step
//	queue   = the prompt's prefill * requests that will have to wait for it
type PredictedSettings struct {
	// First is the weight of the time to the first token.
	First float64 `json:"first" range:"0..100"`
	// Others is the weight of the times of other requests.
	Others float64 `json:"others" range:"0..100"`
	Queue  float64 `json:"queue" range:"0..100"`
	Stalls float64 `json:"stalls" range:"0..100"`
	Slower float64 `json:"slower" range:"0..100"`
	Answer float64 `json:"answer" range:"0..100"`
	Memory float64 `json:"memory" range:"0..100"`
	Burst float64 `json:"burst" range:"0..100"`
}

// Timing is what mode predicted knows about a candidate.
type Timing struct {
	predict.Speed
	Wait     float64 // seconds of prefill that wait at the node
	Decoding float64 // requests that get tokens
	Pressing float64 // prompts that wait
	Blocks   float64 // KV blocks of the node's requests
	Memory   float64 // KV blocks of the node; 0: unknown
	Slots    float64 // requests that the node computes at once; 0: unknown
}

// Forecast is what mode predicted expects of a request, apart from the node.
type Forecast struct {
	Output   float64 // tokens of the answer
	Usual    float64 // tokens of the model's answers
	Pressure float64 // requests that will wait for this one's prefill, on average
}

// Targets are the request's objectives in seconds; 0: none.
type Targets struct{ First, Step float64 }

// ExpectedTerms are the parts of one node's cost in mode predicted, in seconds.
type ExpectedTerms struct {
	Wait    float64 `json:"wait_s"`    // for prompts before this one
	Prefill float64 `json:"prefill_s"` // of this prompt
	First   float64 `json:"first_s"`   // until the first token
	Step    float64 `json:"step_s"`    // between two tokens
	Answer  float64 `json:"answer_s"`  // from the first token to the last
	Stalls  float64 `json:"stalls_s"`
	Slower  float64 `json:"slower_s"`
	Queue   float64 `json:"queue_s"`
	Total   float64 `json:"total_s"`
}

// predicted is a policy in mode predicted.
type predicted Policy

func (p *predicted) pick(s *Situation, e *Explanation) int {
	if len(s.Times) == 0 {
		return p.Score.pick(s, e)
	}
	s.Scratch = slices.Grow(s.Scratch[:0], len(s.Candidates))[:len(s.Candidates)]
	best, low := -1, math.Inf(1)
	var t ExpectedTerms
	for i := range s.Candidates {
		c := &s.Candidates[i]
		s.Scratch[i] = standing{math.Inf(-1), c.IDHash}
		if !c.Room() {
			continue
		}
		p.Predicted.expect(s, i, &t)
		s.Scratch[i].total = -t.Total
		if t.Total < low {
			best, low = i, t.Total
		}
		if e != nil {
			e.Terms[i].Expected = t
		}
	}
	if best < 0 {
		return -1
	}
	margin := low * 0.01
	if home := s.Home - 1; home >= 0 && -s.Scratch[home].total <= low+margin {
		return home
	}
	pick, _, _ := s.breakTie(-low - margin)
	return pick
}

// expect computes the cost of candidate i.
func (p *PredictedSettings) expect(s *Situation, i int, t *ExpectedTerms) {
	c, at := &s.Candidates[i], &s.Times[i]
	near := max(c.Matched, c.Coming, 0)
	w := predict.Prompt(s.Tokens, int64(near)*16)
	step := at.Decode(at.Decoding, at.Blocks)
	fresh := float64(s.Blocks) + s.Forecast.Output/32
	grown := at.Decodes * (at.Sequence + at.Block*fresh)
	f := predict.First{Wait: at.Wait + p.Memory*s.room(c, at, step), Work: w, Step: step}
	at.Forecast(&f)
	t.Wait, t.Prefill, t.First = at.Wait, at.Prefills*at.Prefill(w), f.Expected
	t.Step = at.Decodes*step + grown
	t.Answer = s.Forecast.Output * t.Step
	t.Stalls = at.Decoding * t.Prefill
	t.Slower = at.Decoding * s.Forecast.Output / 2 * grown
	t.Queue = p.Queue * s.Forecast.Pressure * t.Prefill
	if c.Coming > c.Matched {
		all := at.Prefills * at.Prefill(predict.Prompt(int64(c.Coming)*16, int64(c.Matched)*16))
		t.Queue += p.Burst * all * at.Pressing
	}
	t.Total = p.First*t.First + p.Answer*t.Answer + p.Others*(p.Stalls*t.Stalls+p.Slower*t.Slower+t.Queue)
}

// room returns the time until the node has slots and memory for the request.
func (s *Situation) room(c *Candidate, at *Timing, step float64) (wait float64) {
	life := s.Forecast.Usual * at.Decodes * step
	if over := float64(c.busy()) + 1 - at.Slots; at.Slots > 0 && over > 0 {
		wait = over * life / at.Slots
	}
	if short := at.Blocks + float64(s.Blocks) - at.Memory; at.Memory > 0 && short > 0 {
		wait = max(wait, short*life/at.Blocks)
	}
	return wait
}
