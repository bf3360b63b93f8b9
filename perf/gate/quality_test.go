//go:build !race

package gate

import (
	"context"
	"slices"
	"strings"
	"testing"
)

// TestRoutingQuality checks the simulated gates, whose values are the same on every machine. The
// race detector would make them slow, and other tests run simulations under it.
func TestRoutingQuality(t *testing.T) {
	th, err := readThresholds(thresholdsTOML)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{}
	for _, g := range th.Gates {
		simulated := func(prefix string) bool { return strings.HasPrefix(g.Name, prefix) }
		if !slices.ContainsFunc([]string{"missed_reuse", "ttft_to", "cold_burst"}, simulated) {
			continue
		}
		v, detail, err := gauges[g.Name](context.Background(), s)
		if err != nil {
			t.Fatalf("%s: %v", g.Name, err)
		}
		t.Logf("%s: %.4f, limit %g: %s", g.Name, v, g.Limit, detail)
		if v > g.Limit {
			t.Errorf("%s: %.4f, limit %g: %s\n%s", g.Name, v, g.Limit, detail, g.Reason)
		}
	}
}
