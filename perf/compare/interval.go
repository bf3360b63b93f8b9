package compare

import (
	"math"
	"slices"
)

// Interval is a median with its confidence interval: the bounds contain the true median in 95 of
// 100 runs. The bounds are two of the values, for any distribution. The values must be independent.
type Interval struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	// Sure is the interval's confidence. The confidence is below 0.95 with fewer than 6 values.
	Sure float64 `json:"sure"`
}

// IntervalOf returns the interval of values; NaN if there are none.
func IntervalOf(values []float64) Interval {
	v := slices.Clone(values)
	slices.Sort(v)
	n := len(v)
	if n == 0 {
		return Interval{Median: math.NaN(), Low: math.NaN(), High: math.NaN()}
	}
	// The k smallest and the k largest values are left out. The median is below the interval if at
	// most k values are below the median. The probability of that event is a binomial tail.
	tail, term := 0.0, math.Pow(0.5, float64(n)) // P(X = 0)
	left, outside := 0, term
	for k := range (n - 1) / 2 {
		tail += term
		term *= float64(n-k) / float64(k+1)
		if 2*(tail+term) > 0.05 {
			break
		}
		left, outside = k+1, tail+term
	}
	return Interval{Median: (v[(n-1)/2] + v[n/2]) / 2, Low: v[left], High: v[n-1-left], Sure: 1 - 2*outside}
}

// RatioInterval returns the interval of the quotients of pairs. Both sides must have the same
// number of values.
func RatioInterval(of, to []float64) Interval {
	ratios := make([]float64, len(of))
	for i := range ratios {
		ratios[i] = of[i] / to[i]
	}
	return IntervalOf(ratios)
}
