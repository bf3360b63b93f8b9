package predict

import (
	"math"
	"sync/atomic"
	"time"
)

// Compared is the time to the first token of an engine's last answer, beside its forecast.
type Compared struct {
	Expected, Real float64 // seconds
	At             time.Time
}

// compared is an engine's last comparison, as two words. A reader may see the moment of one answer
// with the times of the next.
type compared struct {
	times atomic.Uint64 // bits of the expected and the real seconds, each a float32
	at    atomic.Int64  // Unix ns; 0: there was no answer
}

// Compare keeps the expected seconds until a first token, and those that it took until now.
func (e *Engine) Compare(expected, took float64, now time.Time) {
	half := func(v float64) uint64 { return uint64(math.Float32bits(float32(v))) }
	e.last.times.Store(half(expected)<<32 | half(took))
	e.last.at.Store(now.UnixNano())
}

// LastCompared returns the last comparison; false if there was none.
func (e *Engine) LastCompared() (c Compared, ok bool) {
	at := e.last.at.Load()
	if at == 0 {
		return c, false
	}
	times := e.last.times.Load()
	second := func(bits uint64) float64 { return float64(math.Float32frombits(uint32(bits))) }
	return Compared{second(times >> 32), second(times), time.Unix(0, at)}, true
}
