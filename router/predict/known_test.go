package predict

import (
	"math"
	"testing"
	"time"
)

// TestKnown checks the factors, the number of answers behind them and the time of the last one.
func TestKnown(t *testing.T) {
	k, now := NewKind(new(Traffic)), time.Unix(1_700_000_000, 0)
	slow, other := NewEngine(k), NewEngine(k)
	if prefills, decodes := slow.Known(); prefills != (Known{Factor: 1}) || decodes != (Known{Factor: 1}) {
		t.Errorf("before an answer: %+v, %+v", prefills, decodes)
	}
	for range 64 {
		for e, times := range map[*Engine]float64{slow: 4, other: 1} {
			s := e.Speed()
			f := First{Work: Prompt(1000, 0), Step: 0.01}
			s.Forecast(&f)
			e.LearnFirst(&f, times*0.15, now)
		}
		slow.LearnGaps(&Gaps{Tokens: 10, Seconds: 0.2, Requests: 1}, now)
		now = now.Add(time.Second)
	}
	at := now.Add(-time.Second)
	prefills, decodes := slow.Known()
	its, _ := other.Known()
	if ratio := prefills.Factor / its.Factor; math.Abs(ratio-4) > 0.8 {
		t.Errorf("prefill takes %v times as long as at the other engine, want 4", ratio)
	}
	if prefills.Answers != 64 || prefills.Taught < 54 || decodes.Answers != 64 ||
		decodes.Taught != 64-unclippedFirst || !prefills.At.Equal(at) || !decodes.At.Equal(at) {
		t.Errorf("%+v, %+v, want 64 answers, the last at %v", prefills, decodes, at)
	}
}
