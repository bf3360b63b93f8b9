package predict

import (
	"math"
	"sync/atomic"
	"time"
)

// part is one of the two parts of an engine's work.
type part uint8

const (
	prefill part = iota
	decode
)

// Engine is one engine of a Kind. Engine is safe for concurrent use.
type Engine struct {
	kind  *Kind
	parts [2]factor
	tries tries
	last  compared
}

// NewEngine returns an engine of which only its kind is known.
func NewEngine(k *Kind) *Engine {
	e := &Engine{kind: k}
	e.tries.pause.Store(pauseLeast)
	return e
}

// Kind returns the engine's kind.
func (e *Engine) Kind() *Kind { return e.kind }

// factor is how much slower than its kind an engine is. The kind's lock guards writes, mean and
// fast.
type factor struct {
	own     atomic.Bool   // the engine has a factor of its own; else it has the typical one
	present atomic.Uint64 // bits of the logarithm of the engine's own factor at the last observation
	at      atomic.Int64  // time of the last observation, Unix ns
	n       atomic.Int32  // observations that have taught the factor
	all     atomic.Int32  // observations
	mean    float64       // moving mean of the observed logarithms
	fast    float64       // a quicker mean
	changed int           // successive observations at which the engine had changed its speed
}

const (
	// gain is the weight of an observation in a factor, once there are some.
	gain = 1.0 / 32
	// fastGain is the weight of an observation in the quicker mean, once there are some.
	fastGain = 1.0 / 4
	// settled is the number of observations from which on an engine that is like its kind keeps its
	// factor while the typical one changes.
	settled = 32
	// changeFor is the number of observations after which a change of speed has become usual.
	changeFor = 16
	// changeLeast is the least difference of the two means at which the engine has changed its
	// speed. The quicker mean is then right.
	changeLeast = 0.5
	// doubt is the number of a mean's standard errors that count as chance. It is large, because
	// the errors of successive first tokens are alike: a wait that nobody forecast delays several.
	doubt = 6
	// factorMost bounds a factor, and its inverse.
	factorMost = 32
)

var logMost = math.Log(factorMost)

// last returns the logarithm of the engine's own factor after the last observation.
func (f *factor) last() float64 { return math.Float64frombits(f.present.Load()) }

// log returns the logarithm of a factor. The caller holds the kind's lock.
func (e *Engine) log(which part) float64 {
	if f := &e.parts[which]; f.own.Load() {
		return f.last()
	}
	return e.kind.typical[which]
}

// observe takes in the logarithm of an observation's ratio to the kind's expectation. weight is
// between 0 and 1. The engine is like its kind, whose factor has the logarithm typical, unless the
// means differ from it by more than chance. scatter is the standard deviation of the logarithms.
func (f *factor) observe(ratio, weight, typical, scatter float64, now time.Time) {
	n := f.n.Load()
	slow, quick := max(gain, 1/float64(n+2)), max(fastGain, 1/float64(n+2))
	// An outlier counts in the mean as far as the quicker one has confirmed it.
	f.mean += (min(max(ratio, f.fast-changeLeast), f.fast+changeLeast) - f.mean) * weight * slow
	f.fast += (ratio - f.fast) * weight * quick
	usual := typical
	if math.Abs(f.mean-typical) > doubt*scatter*standardError(slow) {
		usual = f.mean
	}
	present := usual
	if math.Abs(f.fast-usual) > max(changeLeast, doubt*scatter*standardError(quick)) {
		present = f.fast
		f.changed++
	} else {
		f.changed = 0
	}
	if f.changed >= changeFor {
		f.mean, f.changed = f.fast, 0
	}
	f.present.Store(math.Float64bits(min(max(present, -logMost), logMost)))
	f.own.Store(present != typical || n >= settled)
	f.at.Store(now.UnixNano())
	f.n.Store(min(n+1, math.MaxInt32-1))
}

// standardError returns the standard error of a moving mean of observations with the standard
// deviation 1.
func standardError(gain float64) float64 { return math.Sqrt(gain / (2 - gain)) }

// Speed is what a pick needs to know of an engine's speed.
type Speed struct {
	*Rates
	PrefillFactor, DecodeFactor float64 // the engine's factors
}

// Untaught returns the speed of an engine of which nothing is known.
func Untaught() Speed { return Speed{Rates: &start, PrefillFactor: 1, DecodeFactor: 1} }

// Speed returns the engine's speed. An engine that has answered nothing is as fast as those whose
// answers the rates are from.
func (e *Engine) Speed() Speed {
	r := e.kind.Rates()
	return Speed{r, e.parts[prefill].times(r.Typical[prefill]), e.parts[decode].times(r.Typical[decode])}
}

// times returns the factor. typical is that of the kind.
func (f *factor) times(typical float64) float64 {
	if !f.own.Load() {
		return typical
	}
	return math.Exp(f.last())
}

// First is a forecast of a first token. It is made when the request is sent.
type First struct {
	Wait     float64 // seconds of prefill that wait before this one
	Ahead    float64 // prompts that wait before this one
	Work     Work
	Step     float64 // seconds of a decode step of a typical engine
	Expected float64 // seconds until the first token

	factor float64 // the engine's factor in Expected
	each   float64 // the kind's Each in Wait
}

// Forecast completes f with the expected time.
func (s *Speed) Forecast(f *First) {
	f.factor, f.each = s.PrefillFactor, s.Each
	f.Expected = s.PrefillFactor*(s.Base+s.Prefill(f.Work)+s.Steps*f.Step) + f.Wait
}

// LearnFirst learns from a first token that came took seconds after its request was sent.
func (e *Engine) LearnFirst(f *First, took float64, now time.Time) {
	if !plausible(f.Expected, took, f.Wait, f.Ahead, f.Work.Tokens, f.Work.Pairs, f.Step) ||
		f.Expected == 0 || took == 0 {
		return
	}
	k := e.kind
	k.mu.Lock()
	defer k.mu.Unlock()
	log := e.log(prefill)
	x := [width]float64{1, f.Work.Tokens, f.Work.Pairs, f.Step}
	inFactor, inRates := k.weights(f, x)
	k.learnEach(f, took, log)
	// The wait is known as well as the rest: its expectation errs by the same factor. The forecast
	// may be older than the last observation.
	ratio := math.Log(f.factor) + bounded(math.Log(took/f.Expected))
	e.began(f.Work)
	k.answered()
	k.early(ratio - math.Log(f.factor))
	e.recovering(prefill, ratio)
	e.learnFactor(prefill, ratio, k.certain(prefill, x, inFactor), now)
	k.learnRates(prefill, x, took-f.Wait, log, inRates)
}

// waited is the weight, in its kind's rates, of a prompt that waited for a short time.
const waited = 0.05

// weights returns the weights of a first token in its engine's factor and in its kind's rates. The
// longer a prompt waited, the less it says. Prompts that wait together err together, so they count
// little more than one of them in the factor. x are the features of its own work. The caller holds
// k.mu.
func (k *Kind) weights(f *First, x [width]float64) (inFactor, inRates float64) {
	if f.Ahead == 0 {
		return 1, 1
	}
	own := f.factor * k.fits[prefill].expect(x)
	share := own / (own + f.Wait)
	return share / (1 + f.Ahead), share * (share * waited)
}

// learnEach learns the time that each waiting prompt takes besides its tokens. log is the logarithm
// of the engine's factor. A longer wait than a decode step for each of them has another cause. The
// forecast may be older than the last answer, as in a burst, so the time is learned and not its
// error. The caller holds k.mu.
func (k *Kind) learnEach(f *First, took, log float64) {
	if f.Ahead == 0 {
		return
	}
	off := min(max((took-f.Expected)/f.Ahead, -f.Step), f.Step)
	k.each = max(k.each+(f.each+off*math.Exp(-log)-k.each)*eachGain, 0)
}

// learnFactor takes in the logarithm of an observation's ratio to its kind's expectation. The
// caller holds the kind's lock.
func (e *Engine) learnFactor(which part, ratio, weight float64, now time.Time) {
	k, own := e.kind, &e.parts[which]
	own.all.Add(1)
	if weight == 0 {
		return
	}
	if own.n.Load() >= scatterFrom {
		off := min(math.Abs(ratio-own.fast), scatterMost) * deviation
		k.scatter[which] += (off - k.scatter[which]) * weight * scatterGain
	}
	own.observe(ratio, weight, k.typical[which], k.scatter[which], now)
	k.typical[which] += (own.mean - k.typical[which]) * typicalGain
}

const (
	eachGain    = 1.0 / 32  // weight of a prompt that waited in Each
	typicalGain = 1.0 / 64  // weight of an engine's factor in its kind's typical one
	scatterGain = 1.0 / 128 // weight of an observation in its kind's scatter, which begins at 0
	scatterFrom = 8         // observations of an engine before others count in its kind's scatter
	scatterMost = 2         // the most that one counts
	deviation   = 1.25      // standard deviation for a mean absolute deviation of 1
)

// Gaps is a stretch of an answer.
type Gaps struct {
	Tokens   float64
	Seconds  float64 // from the token before the first one to the last one
	Prefill  float64 // seconds of other requests' prefill in that time
	Requests float64 // of the engine's step, on average
	Blocks   float64
}

// LearnGaps learns from a stretch of an answer. How far others' prefill delays the tokens is
// learned too, because the times of prompts that are computed together are not known well.
func (e *Engine) LearnGaps(g *Gaps, now time.Time) {
	step := g.Seconds / g.Tokens
	if !plausible(g.Tokens, g.Seconds, g.Prefill, g.Requests, g.Blocks, step) || step == 0 ||
		g.Prefill > g.Seconds*gapsPrefill {
		return
	}
	k := e.kind
	k.mu.Lock()
	defer k.mu.Unlock()
	log := e.log(decode)
	x := [width]float64{1, g.Requests, g.Blocks, g.Prefill / g.Tokens}
	ratio := bounded(math.Log(step / k.fits[decode].expect(x)))
	if e.tries.fresh {
		e.tries.fresh = false
		e.recovering(decode, ratio)
		k.early(ratio - log)
	}
	e.learnFactor(decode, ratio, k.certain(decode, x, 1), now)
	k.learnRates(decode, x, step, log, 1)
}

// gapsPrefill is the share of others' prefill in a stretch beyond which it says nothing.
const gapsPrefill = 0.9

// plausible says whether all values are numbers that an engine may have.
func plausible(values ...float64) bool {
	for _, v := range values {
		if v != 0 && !(v >= 1e-12 && v <= 1e15) { // true for NaN
			return false
		}
	}
	return true
}

// certain returns the weight of an observation with the features x in an engine's factor. It is 0
// while the kind has seen too few observations, or too few like it: the expectation may be far off,
// and the engines that answer first would count as unlike their kind. The caller holds k.mu.
func (k *Kind) certain(which part, x [width]float64, weight float64) float64 {
	if all, alike := k.fits[which].seen(x); all < unclippedFirst || alike < unclippedAlike {
		return 0
	}
	return weight
}

// bounded bounds the logarithm of a ratio that is learned from.
func bounded(log float64) float64 { return min(max(log, -ratioMost), ratioMost) }

var ratioMost = math.Log(8)
