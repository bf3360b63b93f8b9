package gate

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/perf/picks"
)

const (
	pickRounds   = 15
	picksInRound = 1000
)

// pickCPU returns a gauge of the CPU time of a pick in the default mode among this number of nodes,
// divided by that of a pick in mode score among 8 nodes. The sides take turns in this process.
// Other work can only add to the cost, so the least value of all rounds counts on either side.
func pickCPU(nodes int) gauge {
	return func(context.Context, *site) (float64, string, error) {
		ours, err := picks.New(nodes, "")
		if err != nil {
			return 0, "", err
		}
		reference, err := picks.New(8, "score")
		if err != nil {
			return 0, "", err
		}
		sides := [...]*picks.Fleet{ours, reference}
		var least [len(sides)]time.Duration
		for round := range pickRounds {
			for i, f := range sides {
				took, err := cpuOf(func() error { return f.Pick(picksInRound) })
				if err != nil {
					return 0, "", err
				}
				if round == 1 || took < least[i] { // round 0 warms
					least[i] = took
				}
			}
		}
		us := func(i int) float64 { return least[i].Seconds() * 1e6 / picksInRound }
		return us(0) / us(1), fmt.Sprintf("%.2f µs to %.2f µs", us(0), us(1)), nil
	}
}

// cpuOf returns the CPU time of this process while f runs.
func cpuOf(f func() error) (time.Duration, error) {
	before, err := ownCPU()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", errUnmeasured, err)
	}
	err = f()
	after, readErr := ownCPU()
	return after - before, errors.Join(err, readErr)
}

// ownCPU returns the CPU time of this process so far. Its only cost is a system call, which is
// nothing beside the picks of a round.
func ownCPU() (time.Duration, error) {
	var u unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}

// allocationsPerPick is a gauge of the objects that a pick in the default mode allocates, in a
// small and in a large fleet. Something else in this process may allocate too, so the least of some
// rounds counts.
func allocationsPerPick(context.Context, *site) (float64, string, error) {
	var worst float64
	for _, nodes := range []int{8, 512} {
		f, err := picks.New(nodes, "")
		if err != nil {
			return 0, "", err
		}
		if err := f.Pick(picksInRound); err != nil {
			return 0, "", err
		}
		var least float64
		for round := range pickRounds {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			if err := f.Pick(picksInRound); err != nil {
				return 0, "", err
			}
			runtime.ReadMemStats(&after)
			if n := float64(after.Mallocs-before.Mallocs) / picksInRound; round == 0 || n < least {
				least = n
			}
		}
		worst = max(worst, least)
	}
	return worst, "go test ./router/leg -run PickOfALargeFleet -memprofile finds the sites", nil
}
