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
}

// NewEngine returns an engine of which only its kind is known.
func NewEngine(k *Kind) *Engine { return &Engine{kind: k} }

// Kind returns the engine's kind.
func (e *Engine) Kind() *Kind { return e.kind }

// factor is how much slower than its kind an engine is. The kind's lock guards writes and fast.
type factor struct {
	usual   atomic.Uint64 // bits of the logarithm in the long run
	present atomic.Uint64 // bits of the logarithm at the last observation, if the engine has changed its speed
	at      atomic.Int64  // time of the last observation, Unix ns
	n       atomic.Int32
	fast    float64 // a quicker estimate of the logarithm
}

const (
	// gain is the weight of an observation in a factor, once there are some.
	gain = 1.0 / 32
	// fastGain is its weight in the quicker estimate.
	fastGain = 1.0 / 4
	// change is the difference of the two estimates at which the engine has changed its speed. The
	// quicker estimate is then right.
	change = 0.5
	// halfLife is the time in which half of a change is forgotten without observations.
	halfLife = 20 * time.Second
	// most bounds a factor, and its inverse.
	most = 32
)

var logMost = math.Log(most)

// last returns the logarithm of the factor after the last observation.
func (f *factor) last() float64 { return math.Float64frombits(f.present.Load()) }

// fade returns the logarithm of the factor at now. A change of speed fades.
func (f *factor) fade(now time.Time) float64 {
	last, usual := f.last(), math.Float64frombits(f.usual.Load())
	age := time.Duration(now.UnixNano() - f.at.Load())
	if last == usual || age <= halfLife/16 { // exp takes longer than the rest
		return last
	}
	return usual + (last-usual)*math.Exp2(-float64(age)/float64(halfLife))
}

// observe takes in the logarithm of an observation's ratio to the kind's expectation. weight is
// between 0 and 1.
func (f *factor) observe(ratio, weight float64, now time.Time) {
	n := f.n.Load()
	usual := math.Float64frombits(f.usual.Load())
	usual += (ratio - usual) * weight * max(gain, 1/float64(n+2))
	f.fast += (ratio - f.fast) * weight * max(fastGain, 1/float64(n+2))
	present := usual
	if math.Abs(f.fast-usual) > change {
		present = f.fast
	}
	f.usual.Store(math.Float64bits(min(max(usual, -logMost), logMost)))
	f.present.Store(math.Float64bits(min(max(present, -logMost), logMost)))
	f.at.Store(now.UnixNano())
	f.n.Store(min(n+1, math.MaxInt32-1))
}

// Speed is what a pick needs to know of an engine's speed.
type Speed struct {
	*Rates
	Prefills, Decodes float64 // the engine's factors
}

// Untaught returns the speed of an engine of which nothing is known.
func Untaught() Speed { return Speed{Rates: &start, Prefills: 1, Decodes: 1} }

// Speed returns the engine's speed at now. If explores is set, what is known of the engine alone
// fades while it answers nothing. An engine that has answered nothing is as fast as those whose
// answers the rates are from.
func (e *Engine) Speed(now time.Time, explores bool) Speed {
	r := e.kind.Rates()
	return Speed{
		Rates:    r,
		Prefills: e.parts[prefill].times(now, explores, r.Typical[prefill]),
		Decodes:  e.parts[decode].times(now, explores, r.Typical[decode]),
	}
}

// times returns the factor at now, or typical if there was no observation.
func (f *factor) times(now time.Time, fades bool, typical float64) float64 {
	if f.n.Load() == 0 {
		return typical
	}
	log := f.last()
	if fades {
		log = f.fade(now)
	}
	if log == 0 {
		return 1
	}
	return math.Exp(log)
}

// Answers returns the numbers of first tokens and of gaps that the engine has been learned from.
func (e *Engine) Answers() (firsts, gaps int) {
	return int(e.parts[prefill].n.Load()), int(e.parts[decode].n.Load())
}

// First is a forecast of a first token. It is made when the request is sent.
type First struct {
	Wait     float64 // seconds of prefill that wait before this one
	Ahead    float64 // prompts that wait before this one
	Work     Work
	Step     float64 // seconds of a decode step of a typical engine
	Expected float64 // seconds until the first token

	factor float64 // the engine's factor in Expected
}

// Forecast completes f with the expected time.
func (s *Speed) Forecast(f *First) {
	f.factor = s.Prefills
	f.Expected = s.Prefills*(s.Base+s.Prefill(f.Work)+s.Steps*f.Step) + f.Wait
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
	own := &e.parts[prefill]
	log := own.last()
	// The wait is known as well as the rest: its expectation errs by the same factor.
	x := [width]float64{1, f.Work.Tokens, f.Work.Pairs, f.Step}
	expected := k.first.expect(x)
	alone := took - f.Wait
	weight := 1.0
	if f.Ahead > 0 { // a wait says little about this prompt
		weight = expected / (expected + f.Wait)
		k.learnEach(f, took, log)
	}
	// The forecast may be older than the last observation.
	own.observe(math.Log(f.factor)+bounded(math.Log(took/f.Expected)), certain(weight, k.first.n), now)
	k.typical[prefill] += (log - k.typical[prefill]) / 64
	if f.Ahead > 0 {
		weight *= weight * queued
	}
	k.first.observe(x, k.like(prefill, log, alone, expected, k.first.n), expected, weight)
	k.publish(&k.first)
}

// queued is the weight of a prompt that had to wait.
const queued = 0.05

// learnEach learns the time that each waiting prompt takes besides its tokens. log is the logarithm
// of the engine's factor. The caller holds k.mu.
func (k *Kind) learnEach(f *First, took, log float64) {
	off := min(max(took-f.Expected, -f.Expected/2), f.Expected/2) / max(f.Ahead, 1)
	k.each = max(k.each+off*math.Exp(-log)/32, 0)
}

// Gaps is a stretch of an answer.
type Gaps struct {
	Tokens   float64
	Seconds  float64 // from the token before the first one to the last one
	Prefill  float64 // seconds of other requests' prefill in that time
	Requests float64 // of the engine's step, on average
	Blocks   float64
}

// LearnGaps learns from a stretch of an answer.
func (e *Engine) LearnGaps(g *Gaps, now time.Time) {
	step := (g.Seconds - g.Prefill) / g.Tokens
	if !plausible(g.Tokens, g.Seconds, g.Prefill, g.Requests, g.Blocks, step) || step == 0 || g.Prefill > g.Seconds/2 {
		return
	}
	k := e.kind
	k.mu.Lock()
	defer k.mu.Unlock()
	own := &e.parts[decode]
	log := own.last()
	x := [width]float64{1, g.Requests, g.Blocks, 0}
	expected := k.step.expect(x)
	own.observe(bounded(math.Log(step/expected)), certain(1, k.step.n), now)
	k.typical[decode] += (log - k.typical[decode]) / 64
	k.step.observe(x, k.like(decode, log, step, expected, k.step.n), expected, 1)
	k.publish(&k.step)
}

// plausible says whether all values are numbers that an engine may have.
func plausible(values ...float64) bool {
	for _, v := range values {
		if !(v >= 0 && v <= 1e15) { // false for NaN
			return false
		}
	}
	return true
}

// certain returns the weight of an observation in an engine's factor, given its kind's number of
// observations. It is 0 while the kind has few: the start values may be far off, and the engines
// that answer first would count as unlike their kind.
func certain(weight float64, n int) float64 {
	if n < raw {
		return 0
	}
	return weight
}

// bounded bounds the logarithm of a ratio that is learned from.
func bounded(log float64) float64 { return min(max(log, -math.Log(8)), math.Log(8)) }
