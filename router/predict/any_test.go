package predict

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// sound says why the values that e gives are none that a pick may use; "" if they are sound.
func (e *Engine) sound(now time.Time) string {
	ok := func(values ...float64) bool {
		for _, v := range values {
			if !(v >= 0 && v <= math.MaxFloat64) {
				return false
			}
		}
		return true
	}
	for _, tries := range []bool{false, true} {
		s := e.Speed()
		if tries {
			e.MayTry(&s, Prompt(1000, 0))
		}
		if !ok(s.Base, s.Token, s.Pair, s.Steps, s.Each, s.Step, s.Sequence, s.Block) {
			return "rates"
		}
		for _, f := range [...]float64{s.PrefillFactor, s.DecodeFactor} {
			if !ok(f) || f < 1.0/factorMost-1e-9 || f > factorMost+1e-9 {
				return "factors"
			}
		}
		f := First{Wait: 1, Ahead: 2, Work: Prompt(1e6, 1e5), Step: s.Decode(100, 1e6)}
		if s.Forecast(&f); !ok(f.Expected, f.Step) || f.Expected == 0 {
			return "forecast"
		}
	}
	return ""
}

// observed is an observation of any kind.
type observed struct {
	first  bool
	values [7]float64
}

// learn lets e learn from the observation, and checks that its values stay sound.
func (o *observed) learn(e *Engine, now time.Time) string {
	v := &o.values
	if o.first {
		s := e.Speed()
		f := First{Wait: v[0], Ahead: v[1], Work: Work{v[2], v[3]}, Step: v[4]}
		if s.Forecast(&f); v[6] != 0 {
			f.Expected = v[6]
		}
		e.LearnFirst(&f, v[5], now)
	} else {
		e.LearnGaps(&Gaps{Tokens: v[0], Seconds: v[1], Prefill: v[2], Requests: v[3], Blocks: v[4]}, now)
	}
	return e.sound(now)
}

// TestAnyObservations checks that all rates, factors and forecasts are finite and not negative,
// whatever was observed.
func TestAnyObservations(t *testing.T) {
	odd := []float64{0, math.Copysign(0, -1), -1, 1e-300, 1e-9, 1e15, 1e16, 1e300, math.Inf(1), math.Inf(-1),
		math.NaN(), 1, 32}
	rapid.Check(t, func(t *rapid.T) {
		k := NewKind(new(Traffic))
		engines, now := []*Engine{NewEngine(k), NewEngine(k)}, noon
		for range rapid.IntRange(1, 100).Draw(t, "observations") {
			o := observed{first: rapid.Bool().Draw(t, "first")}
			for i := range o.values {
				if o.values[i] = rapid.Float64Range(0, 100).Draw(t, "value"); rapid.IntRange(0, 9).Draw(t, "odd") == 0 {
					o.values[i] = rapid.SampledFrom(odd).Draw(t, "value")
				}
			}
			if rapid.Bool().Draw(t, "forecast") {
				o.values[6] = 0
			}
			now = now.Add(time.Duration(rapid.Int64Range(-1e9, 1e11).Draw(t, "later")))
			if wrong := o.learn(rapid.SampledFrom(engines).Draw(t, "engine"), now); wrong != "" {
				t.Fatalf("%s after %+v: %+v", wrong, o, k.Rates())
			}
		}
	})
}

// FuzzObservations is TestAnyObservations for observations made of bytes.
func FuzzObservations(f *testing.F) {
	f.Add([]byte{})
	seed := []byte{1}
	for _, v := range []float64{0, 0, 1000, 5e5, 0.02, 0.2, 0} {
		seed = binary.LittleEndian.AppendUint64(seed, math.Float64bits(v))
	}
	f.Add(append(seed, append([]byte{0}, seed[1:]...)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, now := NewEngine(NewKind(new(Traffic))), noon
		var l Lengths
		for len(data) >= 57 {
			o := observed{first: data[0]&1 != 0}
			for i := range o.values {
				o.values[i] = math.Float64frombits(binary.LittleEndian.Uint64(data[1+8*i:]))
			}
			data, now = data[57:], now.Add(time.Second)
			if wrong := o.learn(e, now); wrong != "" {
				t.Fatalf("%s after %+v: %+v", wrong, o, e.Kind().Rates())
			}
			c := Class{Model: math.Float64bits(o.values[0]), Session: uint64(o.values[1]),
				Bound: int64(math.Float64bits(o.values[2]))}
			l.Learn(&c, int64(math.Float64bits(o.values[3])))
			if n := l.Expected(&c); !(n >= 0 && n <= math.MaxInt64) {
				t.Fatalf("%v tokens of %+v", n, c)
			}
		}
	})
}

// TestAnyLengths checks that expected lengths are at least 1 and at most the bound and the longest
// answer, or lengthUnknown, whatever was learned.
func TestAnyLengths(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var l Lengths
		longest := int64(lengthUnknown)
		for range rapid.IntRange(0, 60).Draw(t, "answers") {
			c := Class{
				Model: rapid.Uint64Range(0, 2).Draw(t, "model"), Caller: rapid.Uint64Range(0, 2).Draw(t, "caller"),
				Session: rapid.Uint64Range(0, 2).Draw(t, "session"), Bound: rapid.Int64().Draw(t, "bound"),
			}
			tokens := rapid.Int64().Draw(t, "tokens")
			longest = max(longest, tokens)
			l.Learn(&c, tokens)
			got := l.Expected(&c)
			if !(got >= 1-1e-9 && got <= float64(longest)*(1+1e-9)) || c.Bound > 0 && got > float64(c.Bound) {
				t.Fatalf("%v tokens, the longest answer has %d, %+v", got, longest, c)
			}
		}
	})
}
