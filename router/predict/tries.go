package predict

import (
	"math"
	"sync/atomic"
)

// tries decides when an engine that is slower than its kind is tried again: with one request at a
// time, of which the caller expects what it expects of a typical engine. The kind's lock guards
// writes.
type tries struct {
	last  atomic.Int64 // the kind's number of first tokens at the engine's last one
	pause atomic.Int64 // first tokens of the kind after which a try is due
}

const (
	// pauseLeast and pauseMost bound the pause before a try. Each try of an engine that is still
	// slow doubles it.
	pauseLeast, pauseMost = 64, 1024
	// slowFactor is the factor, in parts of the typical one, from which on an engine is slow.
	slowFactor = 1.3
	// usualGain is the weight of a prompt in its kind's usual one.
	usualGain = 1.0 / 256
)

var slowLeast = math.Log(slowFactor)

// Try makes s the speed of a typical engine if e is slower and may be tried with work that no other
// request delays. A try is due after the pause if the prompt takes at most half as long as the
// kind's usual one. Longer ones come after as many more pauses, because a slow engine makes them
// wait longest.
func (e *Engine) Try(s *Speed, w Work) (tried bool) {
	if s.PrefillFactor < slowFactor*s.Typical[prefill] && s.DecodeFactor < slowFactor*s.Typical[decode] {
		return false
	}
	since, pause := float64(e.kind.firsts.Load()-e.tries.last.Load()), float64(e.tries.pause.Load())
	if since < pause || 2*(s.Base+s.Prefill(w))*pause > e.kind.usualWork()*since {
		return false
	}
	s.PrefillFactor = min(s.PrefillFactor, s.Typical[prefill])
	s.DecodeFactor = min(s.DecodeFactor, s.Typical[decode])
	return true
}

// slow returns by how much the logarithm of a factor is above its kind's typical one, if that is
// enough for a slow engine; else 0. The caller holds the kind's lock.
func (e *Engine) slow(which part) float64 {
	if over := e.parts[which].beyond(); over > slowLeast {
		return over
	}
	return 0
}

// began notes a first token before it teaches a factor. work is the time that the prompt's own work
// takes a typical engine, in seconds. The caller holds the kind's lock.
func (e *Engine) began(work float64) {
	k, t := e.kind, &e.tries
	usual := k.usualWork()
	k.usual.Store(math.Float64bits(usual + (work-usual)*usualGain))
	since := k.firsts.Load() - t.last.Load()
	switch {
	case e.slow(prefill)+e.slow(decode) == 0:
		t.pause.Store(pauseLeast)
	case since >= t.pause.Load():
		t.pause.Store(min(2*t.pause.Load(), pauseMost))
	}
	t.last.Store(k.firsts.Add(1))
}

// recovering lets a slow engine be tried again at once if an observation is nearer to its kind's
// typical factor than to its own. ratio is the observation's logarithm. The caller holds the kind's
// lock.
func (e *Engine) recovering(which part, ratio float64) {
	if over := e.slow(which); over > 0 && ratio < e.kind.typical[which]+over/2 {
		e.tries.pause.Store(pauseLeast)
		e.tries.last.Store(e.kind.firsts.Load() - 8*pauseLeast)
	}
}
