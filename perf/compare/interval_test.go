package compare

import (
	"math"
	"slices"
	"testing"
)

// TestInterval: 20 values give the sixth smallest and the sixth largest as bounds, as in tables of
// the sign test.
func TestInterval(t *testing.T) {
	var v []float64
	for i := range 20 {
		v = append(v, float64(i+1))
	}
	slices.Reverse(v)
	for _, c := range []struct {
		n                 int
		median, low, high float64
		sure              float64
	}{
		{20, 10.5, 6, 15, 0.9586},
		{6, 17.5, 15, 20, 0.9688},
		{5, 18, 16, 20, 0.9375},
		{9, 16, 13, 19, 0.9609},
		{1, 20, 20, 20, 0},
	} {
		s := IntervalOf(v[:c.n])
		if s.Median != c.median || s.Low != c.low || s.High != c.high || math.Abs(s.Sure-c.sure) > 1e-4 {
			t.Errorf("%d values: %+v", c.n, s)
		}
	}
	if v[0] != 20 {
		t.Error("the values were sorted in place")
	}
	if s := IntervalOf(nil); !math.IsNaN(s.Median) {
		t.Errorf("of nothing: %+v", s)
	}
	if s := RatioInterval([]float64{100, 104}, []float64{102, 106}); s.Low != 100.0/102 || s.High != 104.0/106 {
		t.Errorf("of two pairs: %+v", s)
	}
}
