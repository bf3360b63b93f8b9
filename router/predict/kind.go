package predict

import (
	"math"
	"sync"
	"sync/atomic"
)

// Kind is what engines of one kind have taught together. Kind is safe for concurrent use.
type Kind struct {
	rates  atomic.Pointer[Rates]
	firsts atomic.Int64  // first tokens
	usual  atomic.Uint64 // bits of usualWork, a moving mean

	mu   sync.Mutex
	fits [2]fit // of first tokens and of decode steps, by part
	each float64
	// typical holds the moving means of the logarithms of the engines' factors. An observation
	// counts as that of an engine of these factors.
	typical   [2]float64
	published [2]float64 // typical in rates
	scatter   [2]float64 // of observed logarithms around their engine's quicker mean: standard deviations
}

// publishEvery is the number of observations after which new rates are published, because they take
// memory. Each of the first publishEvery is published.
const publishEvery = 32

// NewKind returns a Kind that has learned nothing.
func NewKind() *Kind {
	k := &Kind{fits: [2]fit{
		prefill: newFit([width]float64{start.Base, start.Token, start.Pair, start.Steps}),
		decode:  newFit([width]float64{start.Step, start.Sequence, start.Block, 0}),
	}}
	k.rates.Store(&start)
	return k
}

// Rates returns the present rates.
func (k *Kind) Rates() *Rates { return k.rates.Load() }

// usualWork returns the time that the kind's usual prompt takes a typical engine, in seconds.
func (k *Kind) usualWork() float64 { return math.Float64frombits(k.usual.Load()) }

// learnRates learns from an observation y of an engine with the features x. over is the
// logarithm of the engine's factor before it, beyond the typical one. The caller holds k.mu.
func (k *Kind) learnRates(which part, x [width]float64, y, over, weight float64) {
	f := &k.fits[which]
	expected := f.expect(x)
	y, isLate := like(over, y, expected, f.n)
	if isLate {
		weight *= late
	}
	f.observe(x, y, expected, weight)
	if f.n <= publishEvery || f.n%publishEvery == 0 {
		f.solve()
		k.publish()
	}
}

// publish publishes the rates of the last solutions of the fits. The caller holds k.mu.
func (k *Kind) publish() {
	a, b := &k.fits[prefill], &k.fits[decode]
	for part, log := range k.typical {
		k.published[part] = min(max(log, -logMost), logMost)
	}
	k.rates.Store(&Rates{
		Base: a.coef[0], Token: a.coef[1], Pair: a.coef[2], Steps: a.coef[3], Each: k.each,
		Step: b.coef[0], Sequence: b.coef[1], Block: b.coef[2],
		Typical: [2]float64{math.Exp(k.published[prefill]), math.Exp(k.published[decode])}, Firsts: a.n, Gaps: b.n,
	})
}

const (
	// clipUp bounds an observation relative to its expectation, so that outliers count little. Much
	// can make an answer later than expected, but nothing makes it earlier, so clipDown is larger.
	clipUp, clipDown = 1.5, 4
	// late is the weight of an observation at the upper bound. What made the answer late was not
	// forecast, so the rates are those of answers that nothing delayed.
	late = 0.1
	// unclippedFirst is the number of a fit's first observations that are not clipped. The start
	// values may be far off.
	unclippedFirst = 16
)

// like returns an observation of an engine as that of a typical engine, within the bounds of a
// clip, and whether it was above them. over is the logarithm of the engine's factor beyond the
// typical one, n the number of observations so far, and expected the kind's expectation.
func like(over, y, expected float64, n int) (like float64, isLate bool) {
	y *= math.Exp(-over)
	if n < unclippedFirst {
		return max(y, 0), false
	}
	return min(max(y, expected/clipDown), expected*clipUp), y > expected*clipUp
}
