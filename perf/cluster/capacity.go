package cluster

import (
	"fmt"
	"slices"

	"github.com/cognitora/dataplane/router/policy"
)

// Capacity returns the rate, in requests per second, that round robin holds without a growing
// queue. Loads are shares of this rate. The prefill utilisation that Search looks for is no such
// measure where engines lack time for decoding, or KV memory.
//
// The capacity is found with one seed and a longer trace, so it is equal for all seeds. The nodes
// keep their speeds meanwhile.
func (t *Traffic) Capacity() (float64, error) {
	const (
		seed      = 0
		longer    = 3
		start     = 256.0 // requests per second, too many for every kind
		tries     = 24
		precision = 1.01
	)
	long := *t
	long.Requests *= longer
	var holds, grows float64
	rate := start
	for range tries {
		w, cfg, err := long.At(seed, rate)
		if err != nil {
			return 0, err
		}
		cfg.Mode, cfg.Slow = policy.RoundRobin.String(), nil
		r, err := Run(w, cfg)
		if err != nil {
			return 0, err
		}
		growth := r.growth()
		if growth <= mostGrowth {
			holds = rate
		} else {
			grows = rate
		}
		switch {
		case grows == 0:
			rate *= 2
		case holds == 0:
			rate *= max(1-growth, 0.1) // what was answered
		case grows < holds*precision:
			return holds, nil
		default:
			rate = (holds + grows) / 2
		}
	}
	if grows == 0 {
		return 0, fmt.Errorf("%s: %w to load the fleet", t.Name, ErrShort)
	}
	return 0, fmt.Errorf("%s: a rate without a growing queue %w; the last try was %.3g requests per second", t.Name,
		ErrBusy, rate)
}

// mostGrowth is the growth up to which the queue does not count as growing.
const mostGrowth = 0.03

// growth returns how many requests were underway in the end more than after a quarter of the
// arrivals, as a share of the arrivals between. Medians leave bursts out.
func (r *Result) growth() float64 {
	underway := r.singles.underway
	n := len(underway)
	if n < 16 {
		return 0
	}
	median := func(from, to int) int {
		part := slices.Clone(underway[n*from/16 : n*to/16])
		slices.Sort(part)
		return part[len(part)/2]
	}
	return float64(median(14, 16)-median(3, 5)) / (float64(n) * 11 / 16)
}
