//go:build !race

package gate

import (
	"context"
	"strings"
	"testing"
)

// The race detector keeps books on every byte, which these would count.
func TestIndexBytesPerBlock(t *testing.T) {
	limits, err := readThresholds(thresholdsTOML)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range limits.Gates {
		if !strings.HasSuffix(g.Name, "index_bytes_per_block") {
			continue
		}
		v, detail, err := gauges[g.Name](context.Background(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if v < g.Limit/4 || v > g.Limit*5/4 {
			t.Errorf("%s: %v (%s), limit %v", g.Name, v, detail, g.Limit)
		}
	}
}
