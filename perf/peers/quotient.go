package peers

import (
	"math"

	"github.com/cognitora/dataplane/perf/paired"
)

// Paired is the geometric mean of quotients with its 95 % confidence interval, by Student's
// distribution of their logarithms.
type Paired struct {
	Ratio float64 `json:"ratio"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	N     int     `json:"pairs"`
}

// quotient returns the interval of the quotients of pairs. A pair with a value that is not positive
// does not count. The bounds of fewer than two pairs say nothing.
func quotient(of, to []float64) Paired {
	var logs []float64
	for i := range of {
		if of[i] > 0 && to[i] > 0 {
			logs = append(logs, math.Log(of[i]/to[i]))
		}
	}
	if len(logs) == 0 {
		return Paired{}
	}
	mean, margin := paired.Mean(logs)
	if len(logs) < 2 {
		margin = 0
	}
	return Paired{Ratio: math.Exp(mean), Low: math.Exp(mean - margin), High: math.Exp(mean + margin), N: len(logs)}
}

// Verdict says whether the interval excludes equal, for figures of which less is better.
func (p Paired) Verdict() string {
	switch {
	case p.N < 2:
		return "too few pairs"
	case p.High < 1:
		return "ahead"
	case p.Low > 1:
		return "behind"
	}
	return "open"
}
