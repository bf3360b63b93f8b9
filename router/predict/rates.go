package predict

// Rates are the times of one kind of engine, in seconds. Rates are immutable.
type Rates struct {
	Base  float64 // before the first token of any answer
	Token float64 // prefill of a token
	Pair  float64 // further prefill of a token for each token before it
	Steps float64 // decode steps that a first token waits for
	Each  float64 // further prefill of each prompt that waits before another

	Step     float64 // decode step
	Sequence float64 // further time of a step for each request
	Block    float64 // further time of a step for each KV block of its requests

	Typical [2]float64 // factors of the engines whose observations these are: of prefill and of decode steps

	Firsts, Gaps int // observations of first tokens and of gaps behind these rates
}

// firstsFew is the number of first tokens from which on a kind can be compared with others.
const firstsFew = 4

// KnowsFirsts says whether there were enough first tokens to compare the kind with others.
func (r *Rates) KnowsFirsts() bool { return r.Firsts >= firstsFew }

// KnowsSteps says whether there were enough gaps to tell an unusual one.
func (r *Rates) KnowsSteps() bool { return r.Gaps >= unclippedFirst }

// start are the rates of a Kind without observations.
var start = Rates{
	Base: 0.02, Token: 1.0 / 8000, Pair: 1e-9, Steps: 1,
	Step: 0.015, Sequence: 0.0002, Block: 1e-6, Typical: [2]float64{1, 1},
}

// Work is the prefill of a prompt, or of several.
type Work struct {
	Tokens float64 // tokens to compute
	Pairs  float64 // pairs of a token to compute with a token before it
}

// Prompt returns the work of a prompt of which cached tokens need not be computed.
func Prompt(tokens, cached int64) Work {
	fresh, held := float64(max(tokens-cached, 0)), float64(max(cached, 0))
	return Work{fresh, fresh * (held + fresh/2)}
}

// Prefill returns the time for the work on a typical engine, without a wait.
func (r *Rates) Prefill(w Work) float64 { return r.Token*w.Tokens + r.Pair*w.Pairs }

// Decode returns the time of a step of a typical engine.
func (r *Rates) Decode(requests, blocks float64) float64 {
	return r.Step + r.Sequence*requests + r.Block*blocks
}
