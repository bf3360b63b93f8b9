package compare

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
)

// Figures are what one measurement gave, by name; the unit is in the name.
type Figures map[string]float64

// MarshalJSON writes what was not measured as null, and what never happened as "never".
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

// Spread is the median of repetitions and the interval that holds all of them.
type Spread struct {
	Median, Min, Max float64
	N                int
}

// SpreadOf values; those that are not numbers are left out.
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

// Ratios are the quotients of each pair of one repetition.
func Ratios(of, to []float64) Spread {
	var r []float64
	for i := range min(len(of), len(to)) {
		if to[i] != 0 {
			r = append(r, of[i]/to[i])
		}
	}
	return SpreadOf(r)
}

// addDelays adds to each row what its times are above those without a router in the same turn:
// added_p50_ms and so on.
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

// short is v with three significant digits.
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

// String is the median, and the interval if there is one.
func (s Spread) String() string {
	if s.N < 2 {
		return short(s.Median)
	}
	return short(s.Median) + " (" + short(s.Min) + "–" + short(s.Max) + ")"
}
