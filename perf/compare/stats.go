package compare

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// Figures are the results of one measurement, by name. A name contains its unit.
type Figures map[string]float64

// MarshalJSON writes a missing measurement as null, and an event that never happened as "never".
func (f Figures) MarshalJSON() ([]byte, error) {
	doc := make(map[string]any, len(f))
	for name, v := range f {
		switch {
		case math.IsNaN(v):
			doc[name] = nil
		case math.IsInf(v, 0):
			doc[name] = "never"
		default:
			doc[name] = v
		}
	}
	return json.Marshal(doc)
}

// Spread is the median of repetitions, with the smallest and the largest value.
type Spread struct {
	Median, Min, Max float64
	N                int
}

// SpreadOf returns the spread of values. SpreadOf ignores values that are not numbers.
func SpreadOf(values []float64) Spread {
	var v []float64
	for _, x := range values {
		if !math.IsNaN(x) {
			v = append(v, x)
		}
	}
	if len(v) == 0 {
		return Spread{Median: math.NaN(), Min: math.NaN(), Max: math.NaN()}
	}
	slices.Sort(v)
	s := Spread{Min: v[0], Max: v[len(v)-1], N: len(v), Median: v[len(v)/2]}
	if len(v)%2 == 0 {
		s.Median = (v[len(v)/2-1] + v[len(v)/2]) / 2
	}
	return s
}

// Ratios returns the spread of the quotients of two figures of the same repetition.
func Ratios(of, to []float64) Spread {
	var r []float64
	for i := range min(len(of), len(to)) {
		if to[i] != 0 {
			r = append(r, of[i]/to[i])
		}
	}
	return SpreadOf(r)
}

// addDelays adds to each row the differences of its times to those without a router in the same
// turn: added_p50_ms and so on.
func (p *Point) addDelays() {
	var direct *Row
	for i := range p.Rows {
		if p.Rows[i].Contestant == "direct" {
			direct = &p.Rows[i]
		}
	}
	if direct == nil {
		return
	}
	for i := range p.Rows {
		for rep, f := range p.Rows[i].Figures {
			for _, name := range []string{"p50_ms", "p99_ms", "ttft_p50_ms", "ttft_p99_ms"} {
				v, ok := f[name]
				if rep < len(direct.Figures) && ok {
					if base, ok := direct.Figures[rep][name]; ok {
						f["added_"+name] = v - base
					}
				}
			}
		}
	}
}

// short formats v with three significant digits.
func short(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case math.IsInf(v, 0):
		return "never"
	case math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f", v)
	case math.Abs(v) >= 10:
		return fmt.Sprintf("%.1f", v)
	case math.Abs(v) >= 0.01 || v == 0:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.2g", v)
}

// String formats the median, and the interval if there is one.
func (s Spread) String() string {
	if s.N < 2 {
		return short(s.Median)
	}
	return short(s.Median) + " (" + short(s.Min) + "–" + short(s.Max) + ")"
}
