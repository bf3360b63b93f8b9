package predict

import (
	"time"
)

// Known is what an engine's own answers have taught about one part of its work.
type Known struct {
	Factor  float64   // how much longer the engine took than its kind, at the last answer
	Answers int       // first tokens, or stretches of answers
	Taught  int       // of these, those that have taught the factor: not the first ones of a kind
	At      time.Time // time of the last of these; zero: there was none
}

// Known returns what is known about the engine's prefill and about its decode steps.
func (e *Engine) Known() (prefills, decodes Known) {
	r := e.kind.Rates()
	return e.parts[prefill].known(r.Typical[prefill]), e.parts[decode].known(r.Typical[decode])
}

func (f *factor) known(typical float64) Known {
	k := Known{Factor: f.times(typical), Answers: int(f.all.Load()), Taught: int(f.n.Load())}
	if k.Taught > 0 {
		k.At = time.Unix(0, f.at.Load())
	}
	return k
}
