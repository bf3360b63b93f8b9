//go:build !race

package gate

import (
	"context"
	"testing"
)

// The race detector keeps books on every byte, which this would count.
func TestIndexBytesPerBlock(t *testing.T) {
	limits, err := readThresholds(thresholdsTOML)
	if err != nil {
		t.Fatal(err)
	}
	v, detail, err := indexBytesPerBlock(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range limits.Gates {
		if g.Name == "index_bytes_per_block" && (v < g.Limit/4 || v > g.Limit*5/4) {
			t.Errorf("%v (%s), limit %v", v, detail, g.Limit)
		}
	}
}
