package predict

import (
	"math/rand/v2"
	"testing"
)

// TestLongPromptsAfterShortOnes checks that prompts of one length do not wipe out what others have
// taught, and that the first prompt of another length makes no engine slow.
func TestLongPromptsAfterShortOnes(t *testing.T) {
	k, dice := NewKind(new(Traffic)), rand.New(rand.NewPCG(1, 2))
	engines := []*Engine{NewEngine(k), NewEngine(k), NewEngine(k)}
	answers := func(n int, tokens int64) {
		for i := range n {
			e := engines[i%len(engines)]
			s, work := e.Speed(), Prompt(tokens+dice.Int64N(4), 0)
			f := First{Work: work, Step: 0.01}
			s.Forecast(&f)
			e.LearnFirst(&f, (0.002+work.Tokens/20000)*(1+0.1*dice.NormFloat64()), noon)
		}
	}
	expected := func(tokens int64) float64 {
		s, f := engines[0].Speed(), First{Work: Prompt(tokens, 0), Step: 0.01}
		s.Forecast(&f)
		return f.Expected
	}
	answers(300, 900)
	answers(600, 24)
	within(t, "the time of a long prompt after short ones", expected(6000), 0.3, 0.5)
	within(t, "the time of a short one", expected(24), 0.0032, 0.2)

	k = NewKind(new(Traffic))
	engines = []*Engine{NewEngine(k), NewEngine(k), NewEngine(k)}
	answers(600, 24)
	answers(6, 6000)
	within(t, "the time of a long prompt after some", expected(6000), 0.3, 0.3)
	for _, e := range engines {
		within(t, "a factor after long prompts", e.Speed().PrefillFactor, 1, 0.3)
	}
}

// TestAnIdleEngineKeepsItsFactor checks that an engine that answers nothing is not taken for as
// slow as one that answers much.
func TestAnIdleEngineKeepsItsFactor(t *testing.T) {
	all, machines, now := fleet(linear, 300, 1, 1)
	was := all[0].Speed()
	machines[1].slower = 5
	machines[1].run(all[1], 400, now)
	is := all[0].Speed()
	within(t, "the factor of prefill", is.PrefillFactor, was.PrefillFactor, 0.1)
	within(t, "the factor of decode", is.DecodeFactor, was.DecodeFactor, 0.1)
}

// TestOneLateAnswerOfAClass checks that the first prompt of another length does not spoil the rates
// by being very late.
func TestOneLateAnswerOfAClass(t *testing.T) {
	all, machines, now := fleet(linear, 400, 1, 1)
	s, f := all[0].Speed(), First{Work: Prompt(100_000, 0), Step: 0.02}
	s.Forecast(&f)
	all[0].LearnFirst(&f, 20*f.Expected, now)
	machines[1].run(all[1], 64, machines[0].run(all[0], 64, now))
	for i, e := range all {
		if off := machines[i].expects(e, now); off > 0.25 {
			t.Errorf("a time is %.0f %% off", 100*off)
		}
	}
}
