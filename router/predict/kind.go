package predict

import (
	"math"
	"sync"
	"sync/atomic"
)

// Kind is what engines of one kind have taught together. Kind is safe for concurrent use.
type Kind struct {
	rates atomic.Pointer[Rates]

	mu          sync.Mutex
	first, step fit
	each        float64
	// typical holds the moving means of the logarithms of the engines' factors. An observation
	// counts as that of an engine of these factors.
	typical [2]float64
}

// publishEvery is the number of observations after which new rates are published, because they take
// memory. Each of the first publishEvery is published.
const publishEvery = 32

// NewKind returns a Kind that has learned nothing.
func NewKind() *Kind {
	k := &Kind{
		first: newFit([width]float64{start.Base, start.Token, start.Pair, start.Steps}),
		step:  newFit([width]float64{start.Step, start.Sequence, start.Block, 0}),
	}
	k.rates.Store(&start)
	return k
}

// Rates returns the present rates.
func (k *Kind) Rates() *Rates { return k.rates.Load() }

// publish solves the fits, unless the last rates are nearly as good. The caller holds k.mu.
func (k *Kind) publish(f *fit) {
	if f.n > publishEvery && f.n%publishEvery != 0 {
		return
	}
	f.solve()
	a, b := &k.first, &k.step
	k.rates.Store(&Rates{
		Base: a.coef[0], Token: a.coef[1], Pair: a.coef[2], Steps: a.coef[3], Each: k.each,
		Step: b.coef[0], Sequence: b.coef[1], Block: b.coef[2],
		Typical: [2]float64{math.Exp(k.typical[prefill]), math.Exp(k.typical[decode])}, Firsts: a.n, Gaps: b.n,
	})
}

const (
	// clipUp bounds an observation relative to its expectation, so that outliers count little. Much
	// can make an answer later than expected, but nothing makes it earlier, so clipDown is larger.
	clipUp, clipDown = 1.5, 4
	// raw is the number of observations that are not clipped. The start values may be far off.
	raw = 16
)

// like returns an observation of an engine as that of a typical engine, within the bounds of a
// clip. log is the logarithm of the engine's factor, n the number of observations so far, and
// expected the Kind's expectation. The caller holds k.mu.
func (k *Kind) like(which part, log, y, expected float64, n int) float64 {
	y *= math.Exp(k.typical[which] - log)
	if n < raw {
		return max(y, 0)
	}
	return min(max(y, expected/clipDown), expected*clipUp)
}
