package peers

import "math"

// Paired is the geometric mean of quotients with its 95 % confidence interval, by Student's
// distribution of their logarithms.
type Paired struct {
	Ratio float64 `json:"ratio"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	N     int     `json:"pairs"`
}

// student has the two-sided 95 % quantiles of Student's distribution, by degrees of freedom from 1
// on.
var student = [...]float64{12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
	2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048,
	2.045, 2.042}

// paired returns the interval of the quotients of pairs. A pair with a value that is not positive
// does not count. The bounds of fewer than two pairs say nothing.
func paired(of, to []float64) Paired {
	var logs []float64
	sum := 0.0
	for i := range of {
		if of[i] > 0 && to[i] > 0 {
			logs = append(logs, math.Log(of[i]/to[i]))
			sum += logs[len(logs)-1]
		}
	}
	n := len(logs)
	if n == 0 {
		return Paired{}
	}
	mean := sum / float64(n)
	p := Paired{Ratio: math.Exp(mean), Low: math.Exp(mean), High: math.Exp(mean), N: n}
	if n == 1 {
		return p
	}
	squares := 0.0
	for _, v := range logs {
		squares += (v - mean) * (v - mean)
	}
	// Beyond the table the last quantile is a little wide.
	half := student[min(n-1, len(student))-1] * math.Sqrt(squares/float64(n-1)/float64(n))
	p.Low, p.High = math.Exp(mean-half), math.Exp(mean+half)
	return p
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
