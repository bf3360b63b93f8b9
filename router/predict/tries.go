package predict

import (
	"math"
	"sync/atomic"
)

// Traffic counts the first tokens of all engines of a model, of any kind.
type Traffic struct{ firsts atomic.Int64 }

// tries decides when an engine that is slower than its kind is tried again: with one request, which
// the caller sends as if the engine were like its kind. A kind that answers nothing has tries, too.
type tries struct {
	last  atomic.Int64 // the model's number of first tokens at the last one or at the last try
	pause atomic.Int64 // first tokens of the model after which a try is due
	open  atomic.Bool  // the last try of a kind has no first token yet
	fresh bool         // no gaps were learned from since the last first token; the kind's lock guards it
}

const (
	// pauseLeast and pauseMost bound the pause before a try. Each try doubles it until an answer
	// shows that the engine recovers.
	pauseLeast, pauseMost = 64, 1024
	// kindPauseLeast and kindPauseMost are those of a kind. A try of a kind costs more, because it
	// may be much slower than others.
	kindPauseLeast, kindPauseMost = 512, 8192
	// pausesSkipped is the number of pauses that are skipped when an engine recovers, so that the
	// next prompt may be several times as long as the usual one.
	pausesSkipped = 8
	// slowFactor is the factor, in parts of the typical one, from which on an engine is slow.
	slowFactor = 1.3
	// usualGain is the least weight of a prompt in its kind's usual one.
	usualGain = 1.0 / 256
)

var slowLeast = math.Log(slowFactor)

// MayTry makes s the speed of a typical engine if e is slower and may be tried with work that no
// other request delays. Tried must follow if the request is sent there. A try is due after the
// pause if the prompt takes at most half as long as the kind's usual one. Longer ones come after as
// many more pauses, because a slow engine makes them wait longest.
func (e *Engine) MayTry(s *Speed, w Work) bool {
	if s.PrefillFactor < slowFactor*s.Typical[prefill] && s.DecodeFactor < slowFactor*s.Typical[decode] {
		return false
	}
	since, pause := float64(e.kind.traffic.firsts.Load()-e.tries.last.Load()), float64(e.tries.pause.Load())
	if since < pause || 2*(s.Base+s.Prefill(w))*pause > (s.Base+s.Prefill(e.kind.usualWork()))*since {
		return false
	}
	s.PrefillFactor = min(s.PrefillFactor, s.Typical[prefill])
	s.DecodeFactor = min(s.DecodeFactor, s.Typical[decode])
	return true
}

// Tried notes that a request is sent to e to try it.
func (e *Engine) Tried() { e.tries.noteTry(e.kind.traffic, pauseMost) }

func (t *tries) noteTry(of *Traffic, most int64) {
	t.last.Store(of.firsts.Load())
	t.pause.Store(min(2*t.pause.Load(), most))
}

// Unproven says that the speed of k's engines is unknown, or was learned so long ago that w may try
// one of them. w is the work of a prompt, which must not be much above the usual one.
func (k *Kind) Unproven(w Work) bool {
	r := k.Rates()
	if !r.KnowsFirsts() {
		return true
	}
	due := k.traffic.firsts.Load()-k.tries.last.Load() >= k.tries.pause.Load()
	return due && r.Prefill(w) <= 2*r.Prefill(k.usualWork())
}

// Tried notes that a request is sent to an engine of k although others look faster.
func (k *Kind) Tried() {
	k.tries.noteTry(k.traffic, kindPauseMost)
	k.tries.open.Store(true)
}

// answered notes a first token in the kind's tries. The caller holds k.mu.
func (k *Kind) answered() {
	if wasTry := k.tries.open.Swap(false); !wasTry {
		k.tries.pause.Store(kindPauseLeast)
	}
	k.tries.last.Store(k.traffic.firsts.Load())
}

// early makes the next try of the kind due at once if the answer to one was earlier than its
// forecast. ratio is the logarithm of the time in parts of the forecast. The caller holds k.mu.
func (k *Kind) early(ratio float64) {
	if pause := k.tries.pause.Load(); ratio < -slowLeast && pause > kindPauseLeast {
		k.tries.last.Store(k.traffic.firsts.Load() - pause)
	}
}

// slow returns by how much the logarithm of a factor is above its kind's typical one, if that is
// enough for a slow engine; else 0. The caller holds the kind's lock.
func (e *Engine) slow(which part) float64 {
	if over := e.log(which) - e.kind.typical[which]; over > slowLeast {
		return over
	}
	return 0
}

// began notes a first token before it teaches a factor. w is the prompt's own work. The caller
// holds the kind's lock.
func (e *Engine) began(w Work) {
	k, t := e.kind, &e.tries
	usual, weight := k.usualWork(), max(usualGain, 1/float64(k.fits[prefill].n+1))
	k.usual[0].Store(math.Float64bits(usual.Tokens + (w.Tokens-usual.Tokens)*weight))
	k.usual[1].Store(math.Float64bits(usual.Pairs + (w.Pairs-usual.Pairs)*weight))
	if e.slow(prefill)+e.slow(decode) == 0 {
		t.pause.Store(pauseLeast)
	}
	t.last.Store(k.traffic.firsts.Add(1))
	t.fresh = true
}

// recovering lets a slow engine be tried again at once if an observation is nearer to its kind's
// typical factor than to its own. ratio is the observation's logarithm. The caller holds the kind's
// lock.
func (e *Engine) recovering(which part, ratio float64) {
	if over := e.slow(which); over > 0 && ratio < e.kind.typical[which]+over/2 {
		e.tries.pause.Store(pauseLeast)
		e.tries.last.Store(e.kind.traffic.firsts.Load() - pausesSkipped*pauseLeast)
	}
}
