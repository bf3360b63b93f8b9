//go:build !race

package gate

import (
	"context"
	"strings"
	"testing"
)

// The race detector uses memory for every byte, which would count too.
func TestIndexBytesPerBlock(t *testing.T) {
	limits, err := readThresholds(thresholdsTOML)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range limits.Gates {
		if !strings.HasSuffix(g.Name, "index_bytes_per_block") {
			continue
		}
		var v float64
		var detail string
		// Memory of this process's other tests counts too. An index that is too large is too large
		// in each attempt.
		for range 5 {
			if v, detail, err = gauges[g.Name](context.Background(), nil); err != nil {
				t.Fatal(err)
			}
			if v >= g.Limit/4 && v <= g.Limit*5/4 {
				break
			}
		}
		if v < g.Limit/4 || v > g.Limit*5/4 {
			t.Errorf("%s: %v (%s), limit %v", g.Name, v, detail, g.Limit)
		}
	}
}
