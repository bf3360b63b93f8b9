package policy

import "testing"

func answerOf(t *ExpectedTerms) float64 { return t.Answer }
func viaOf(t *ExpectedTerms) float64    { return t.Via }

// TestAnotherNodeForThePrompt checks the costs where nodes compute prompts for each other.
func TestAnotherNodeForThePrompt(t *testing.T) {
	const answer, first = 100 * (0.01 + own), 2.62
	lately := func(prompts float64) func(*Timing) {
		return func(t *Timing) { t.Prompts, t.Lately = prompts, 10 }
	}
	by := func(v Via, change func(*Timing)) func(*Timing) {
		return func(t *Timing) {
			if t.Via = v; change != nil {
				change(t)
			}
		}
	}
	ownPrompt := 1 + 2*0.16/0.84 // busy with this prompt alone
	for _, c := range []expectedCase{
		{name: "prompts that do not count", at: func(t *Timing) { t.Prompts = 5 }, want: idle},
		{name: "this prompt", at: lately(0), term: answerOf, is: answer * ownPrompt},
		{name: "prompts", at: lately(4), term: answerOf, is: answer * (1 + 2*0.56/0.44), want: 2*first +
			answer*(1+2*0.56/0.44)},
		{name: "too many prompts", at: lately(50), term: answerOf, is: answer * (1 + 2*0.9/0.1)},
		{name: "requests that come", at: func(t *Timing) { t.Coming = 3 }, want: idle + 100*3*0.001},
		{name: "sooner alone", at: by(Via{First: 2.7}, nil), want: idle, term: viaOf},
		{name: "sooner by another", at: by(Via{First: 1}, nil), want: 2*2.02 + answer, term: viaOf, is: 1},
		{name: "at any cost", at: by(Via{First: 7, Always: true}, nil), want: 2*8.02 + answer, term: viaOf, is: 7},
		{name: "stalls there", at: by(Via{First: 1, Stalls: 3}, nil), want: idle, term: viaOf},
		{name: "stalls here", at: by(Via{First: 2, Stalls: 1}, func(t *Timing) { t.Decoding = 3 }),
			term: viaOf, is: 2},
		{name: "fewer prompts there", at: by(Via{First: 2}, lately(0)), want: 2*3.02 + answer, term: viaOf, is: 2},
		{name: "too few", at: by(Via{First: 2}, lately(4)), term: answerOf, is: answer * (1 + 2*0.4/0.6)},
		{name: "waiting prefill here", at: by(Via{First: 1}, func(t *Timing) { t.Wait = 1.5 }), want: 2*2.52 + answer,
			term: firstOf, is: 2.52},
		{name: "slots", node: Candidate{EngineSlots: 4, InFlight: 5}, at: by(Via{First: 0.2, Always: true}, nil),
			term: firstOf, is: 1.02 + 2./4*100*0.01},
	} {
		c.check(t)
	}
}
