package attached

import (
	"math"
	"slices"
	"testing"
	"time"
)

// TestSpread: the interval of 20 pairs is the sixth smallest and the sixth largest, as tables of the sign test have it.
func TestSpread(t *testing.T) {
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
		s := spreadOf(v[:c.n])
		if s.Median != c.median || s.Low != c.low || s.High != c.high || math.Abs(s.Sure-c.sure) > 1e-4 {
			t.Errorf("%d values: %+v", c.n, s)
		}
	}
	if v[0] != 20 {
		t.Error("the values were sorted in place")
	}
	if s := spreadOf(nil); !math.IsNaN(s.Median) {
		t.Errorf("of nothing: %+v", s)
	}
}

func TestFigures(t *testing.T) {
	var f Figures
	for i := range 4 {
		f.add(i%2 == 0, float64(100+2*i))
	}
	f.compare()
	if len(f.With) != 2 || len(f.Without) != 2 || f.Ratio.Low != 100.0/102 || f.Ratio.High != 104.0/106 {
		t.Errorf("%+v", f)
	}
}

func TestBusyHost(t *testing.T) {
	c := costs{"cgn_switch": {10, 10 * 100}, "cgn_skb_in": {1, 100}, "cgn_skb_out": {3, 900}}
	c = costs{}.plus(c).plus(c)
	if got := c.busyHost(); math.Abs(got-(20_000*100e-9+10_000*250e-9)) > 1e-12 || c.total() != 4*time.Microsecond {
		t.Errorf("%v of a core, %v", got, c.total())
	}
	if all := c.programs(); len(all) != 3 || all[0] != (Program{"cgn_skb_in", 2, 100}) {
		t.Errorf("%+v", all)
	}
}
