//go:build !race

package gate

import (
	"context"
	"testing"
)

// TestPickGates: a pick allocates nothing, and its CPU time is a ratio that can be told. The race
// detector empties pools at random.
func TestPickGates(t *testing.T) {
	if n, _, err := allocationsPerPick(context.Background(), nil); err != nil || n > 0.5 {
		t.Errorf("%v allocations for a pick, %v", n, err)
	}
	for _, nodes := range []int{8, 512} {
		ratio, detail, err := pickCPU(nodes)(context.Background(), nil)
		if err != nil || ratio < 0.1 || ratio > 100 {
			t.Errorf("%d nodes: %v, %s, %v", nodes, ratio, detail, err)
		}
	}
}

// TestTakingTheTimeIsNoWork: reading the clock does nothing else, so an interval holds picks only.
func TestTakingTheTimeIsNoWork(t *testing.T) {
	if n := testing.AllocsPerRun(10, func() { _, _ = cpuOf(func() error { return nil }) }); n > 4 {
		t.Errorf("%v allocations to take the CPU time of nothing", n)
	}
}
