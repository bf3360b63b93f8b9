package where

import (
	"math"
	"testing"

	"github.com/cognitora/dataplane/router/holdings"
)

// reach is how far 100 blocks reach: 10 in the engine's memory, 30 more in the host's RAM, 20 more
// on its SSD and 40 more on other hosts.
var reach = holdings.Reach{Device: 10, Host: 40, Disk: 60, Shared: 100}

// TestUsageFalls checks that blocks that an engine computes although its host has them count less
// and less, and that they count again once the engine uses them.
func TestUsageFalls(t *testing.T) {
	var usage Usage
	if got := usage.Apply(reach); got != reach {
		t.Fatalf("%+v at first, want %+v", got, reach)
	}
	for range 10 {
		usage.Learn(reach, 10, 160, 16) // only what the engine had itself
	}
	if got, want := usage.Apply(reach), (holdings.Reach{Device: 10, Host: 12, Disk: 32, Shared: 72}); got != want {
		t.Errorf("without a connector %+v, want %+v: nothing is known of the other tiers", got, want)
	}
	for range 64 {
		usage.Learn(reach, 10, 1600-1, 16) // all but the last token
	}
	if got := usage.Apply(reach); got != reach {
		t.Errorf("%+v with a connector, want %+v", got, reach)
	}
	for range 64 {
		usage.Learn(reach, 10, 60*16, 16)
	}
	host, disk, shared := usage.Ratios()
	if host < 0.99 || disk < 0.99 || shared > 0.05 {
		t.Errorf("%.2f, %.2f and %.2f count of an engine that does not reach other hosts", host, disk, shared)
	}
}

// TestUsageWithinABlock checks that a count which the engine rounds to its own blocks is no loss.
func TestUsageWithinABlock(t *testing.T) {
	var usage Usage
	for range 64 {
		usage.Learn(holdings.Reach{Host: 33, Disk: 33, Shared: 33}, 0, 16*16, 256)
		usage.Learn(holdings.Reach{Host: 33, Disk: 33, Shared: 33}, 0, 32*16, 16)
	}
	if host, _, _ := usage.Ratios(); host != 1 {
		t.Errorf("a share of %g", host)
	}
}

// TestUsageSaysNothing checks answers that say nothing about the tiers.
func TestUsageSaysNothing(t *testing.T) {
	var usage Usage
	usage.Learn(holdings.Reach{Device: holdings.Unknown}, 0, 0, 0)
	usage.Learn(holdings.Reach{Device: 50, Host: 50, Disk: 50, Shared: 50}, 50, 0, 0) // nothing elsewhere
	usage.Learn(reach, 100, 0, 0)                                                     // the engine has lost its own
	usage.Learn(reach, 10, math.MaxInt64, 0)
	usage.Learn(reach, 10, 1600, -1)
	if a, b, c := usage.Ratios(); a != 1 || b != 1 || c != 1 {
		t.Errorf("%g %g %g", a, b, c)
	}
	behind := holdings.Reach{Device: 50, Host: 40, Disk: 60, Shared: 60}
	usage.Learn(behind, 50, 50*16, 16)
	if got := usage.Apply(behind); got.Host != 40 || got.Disk < 50 || got.Disk >= 60 {
		t.Errorf("%+v", got)
	}
}

func TestUsageDoesNotAllocate(t *testing.T) {
	var usage Usage
	if n := testing.AllocsPerRun(100, func() {
		usage.Learn(reach, 10, 320, 16)
		usage.Apply(reach)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
