package attached

import (
	"math"
	"testing"
	"time"
)

func TestFigures(t *testing.T) {
	var f Figures
	for i := range 4 {
		f.add(i%2 == 0, float64(100+2*i))
	}
	if f.MedianWith() != 102 || f.MedianWithout() != 104 {
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
