package paired

import (
	"math"
	"testing"
)

func TestMean(t *testing.T) {
	// By hand: the mean is -10, its standard error 2/sqrt(3), t of 2 degrees 4.303.
	if mean, margin := Mean([]float64{-10, -12, -8}); mean != -10 || math.Abs(margin-4.303*2/math.Sqrt(3)) > 1e-9 {
		t.Errorf("%v ± %v", mean, margin)
	}
	if mean, margin := Mean([]float64{3, 3, 3, 3}); mean != 3 || margin != 0 {
		t.Errorf("%v ± %v of equal values", mean, margin)
	}
	if mean, margin := Mean([]float64{7}); mean != 7 || !math.IsInf(margin, 1) {
		t.Errorf("%v ± %v of one value", mean, margin)
	}
}

// TestStudent compares the table, and the formula beyond it, with published quantiles.
func TestStudent(t *testing.T) {
	for degrees, want := range map[int]float64{1: 12.706, 9: 2.262, 30: 2.042, 31: 2.040, 60: 2.000, 120: 1.980} {
		if got := student(degrees); math.Abs(got-want) > 0.003 {
			t.Errorf("t of %d degrees is %v, want %v", degrees, got, want)
		}
	}
}
