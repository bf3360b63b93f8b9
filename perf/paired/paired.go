// Package paired has the confidence interval of a mean. Comparisons take the mean of the
// differences, or of the logarithms of the quotients, of pairs that were measured together.
package paired

import "math"

// Mean returns the mean of values, and half the width of the interval that contains the true mean
// with a probability of 95 %, by Student's t. The margin of fewer than two values is infinite.
func Mean(values []float64) (mean, margin float64) {
	n := float64(len(values))
	for _, v := range values {
		mean += v
	}
	mean /= n
	if len(values) < 2 {
		return mean, math.Inf(1)
	}
	squares := 0.0
	for _, v := range values {
		squares += (v - mean) * (v - mean)
	}
	return mean, student(len(values)-1) * math.Sqrt(squares/(n-1)/n)
}

// students are the 97.5 % quantiles of Student's t by degrees of freedom, from 1.
var students = [...]float64{
	12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
	2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
	2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
}

// student returns the 97.5 % quantile of Student's t.
func student(degrees int) float64 {
	if degrees <= len(students) {
		return students[degrees-1]
	}
	return 1.96 + 2.4/float64(degrees) // to 0.003
}
