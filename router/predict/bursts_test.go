package predict

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestWeights checks how much a first token counts, by the wait before it. The kind's own time for
// the prompt is a second, and the engine's is its factor.
func TestWeights(t *testing.T) {
	k := NewKind(new(Traffic))
	k.fits[prefill].coef = [width]float64{0.5, 0.5}
	x := [width]float64{1, 1}
	for _, c := range []struct{ factor, ahead, wait, inFactor, inRates float64 }{
		{1, 0, 0, 1, 1}, {1, 0, 3, 1, 1}, {1, 1, 0, 0.5, waited}, {1, 1, 1, 0.25, waited / 4},
		{1, 7, 3, 0.25 / 8, waited / 16}, {5, 1, 5, 0.25, waited / 4},
	} {
		inFactor, inRates := k.weights(&First{Ahead: c.ahead, Wait: c.wait, factor: c.factor}, x)
		if inFactor != c.inFactor || inRates != c.inRates {
			t.Errorf("%v prompts of %v s before it: %v and %v, want %v and %v", c.ahead, c.wait, inFactor, inRates,
				c.inFactor, c.inRates)
		}
	}
}

// TestBursts checks bursts of prompts that are all sent before the first of them is answered. Each
// takes 2 ms more than the one before it. The whole burst of an engine is faster or slower by
// chance. The forecasts settle, and equal engines have nearly equal factors.
func TestBursts(t *testing.T) {
	const burst, each, base = 40, 0.002, 0.02
	k := NewKind(new(Traffic))
	engines := []*Engine{NewEngine(k), NewEngine(k), NewEngine(k)}
	dice, now := rand.New(rand.NewPCG(4, 5)), noon
	for turn := range 12 {
		now = now.Add(time.Second)
		luck := make([]float64, len(engines))
		all := make([][]First, len(engines))
		for i, e := range engines {
			luck[i] = math.Exp(0.3 * dice.NormFloat64())
			s := e.Speed()
			for n := range burst {
				f := First{Work: Prompt(64, 0), Ahead: float64(n), Step: 0.01}
				f.Wait = f.Ahead * s.PrefillFactor * (s.Each + s.Prefill(f.Work))
				s.Forecast(&f)
				all[i] = append(all[i], f)
			}
		}
		last := all[0][burst-1].Expected
		if real := base + each*(burst-1); turn >= 6 && (last < real/2 || last > real*2) {
			t.Errorf("burst %d: the last first token was expected after %.3f s, and comes after %.3f s", turn,
				last, real)
		}
		for n := range burst {
			for i, e := range engines {
				e.LearnFirst(&all[i][n], luck[i]*(base+each*float64(n)), now.Add(time.Duration(n)*time.Millisecond))
			}
		}
	}
	for i, e := range engines {
		if own, other := e.Speed(), engines[0].Speed(); own.PrefillFactor > 1.3*other.PrefillFactor ||
			own.PrefillFactor < other.PrefillFactor/1.3 {
			t.Errorf("equal engines have the factors %.2f and %.2f (%d)", own.PrefillFactor, other.PrefillFactor, i)
		}
	}
}
