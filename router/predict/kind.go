package predict

import (
	"math"
	"sync"
	"sync/atomic"
)

// Kind is what engines of one kind have taught together. Kind is safe for concurrent use.
type Kind struct {
	rates   atomic.Pointer[Rates]
	traffic *Traffic
	tries   tries
	usual   [2]atomic.Uint64 // bits of moving means: tokens and pairs of a prompt

	mu   sync.Mutex
	fits [2]fit // of first tokens and of decode steps, by part
	each float64
	// typical holds the moving means of the logarithms of the engines' factors. An observation
	// counts as that of an engine of these factors.
	typical [2]float64
	scatter [2]float64 // of observed logarithms around their engine's quicker mean: standard deviations
}

// publishEvery is the number of observations after which new rates are published, because they take
// memory. Each of the first publishEvery is published.
const publishEvery = 32

// These are the features of observations that are large, but not rare.
var (
	longPrompt = [width]float64{1, 8192, 8192 * 8192 / 2, 0.02}
	largeBatch = [width]float64{1, 32, 2048, 0}
)

// NewKind returns a Kind of engines of the model with traffic t. The Kind has learned nothing.
func NewKind(t *Traffic) *Kind {
	k := &Kind{traffic: t, fits: [2]fit{
		prefill: newFit([width]float64{start.Base, start.Token, start.Pair, start.Steps}, longPrompt),
		decode:  newFit([width]float64{start.Step, start.Sequence, start.Block, 1}, largeBatch),
	}}
	k.rates.Store(&start)
	k.tries.pause.Store(kindPauseLeast)
	return k
}

// Traffic returns the traffic of the model of the kind's engines.
func (k *Kind) Traffic() *Traffic { return k.traffic }

// Rates returns the present rates.
func (k *Kind) Rates() *Rates { return k.rates.Load() }

// usualWork returns the work of the kind's usual prompt.
func (k *Kind) usualWork() Work {
	return Work{math.Float64frombits(k.usual[0].Load()), math.Float64frombits(k.usual[1].Load())}
}

// learnRates learns from an observation y of an engine with the features x. log is the
// logarithm of the engine's factor before it. The caller holds k.mu.
func (k *Kind) learnRates(which part, x [width]float64, y, log, weight float64) {
	f := &k.fits[which]
	expected := f.expect(x)
	all, alike := f.seen(x)
	y, isLate := like(log-k.typical[which], y, expected, all, alike)
	if isLate {
		weight *= late
	}
	f.observe(x, y, expected, weight)
	if f.n <= publishEvery || alike < unclippedAlike || f.n%publishEvery == 0 {
		f.solve()
		k.publish()
	}
}

// publish publishes the rates of the last solutions of the fits. The caller holds k.mu.
func (k *Kind) publish() {
	a, b := &k.fits[prefill], &k.fits[decode]
	factor := func(which part) float64 { return math.Exp(min(max(k.typical[which], -logMost), logMost)) }
	k.rates.Store(&Rates{
		Base: a.coef[0], Token: a.coef[1], Pair: a.coef[2], Steps: a.coef[3], Each: k.each,
		Step: b.coef[0], Sequence: b.coef[1], Block: b.coef[2],
		Typical: [2]float64{factor(prefill), factor(decode)}, Firsts: a.n, Gaps: b.n,
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
	// unclippedAlike is the number of a class's first observations that are not clipped.
	unclippedAlike = 4
)

// like returns an observation of an engine as that of a typical engine, within the bounds of a
// clip, and whether it was above them. over is the logarithm of the engine's factor beyond the
// typical one, seen and alike the numbers of observations so far, and expected the expectation.
func like(over, y, expected float64, seen, alike int) (like float64, isLate bool) {
	y *= math.Exp(-over)
	if seen < unclippedFirst || alike < unclippedAlike {
		return max(y, 0), false
	}
	return min(max(y, expected/clipDown), expected*clipUp), y > expected*clipUp
}
