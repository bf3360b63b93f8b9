package peers

import (
	"context"
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/perf/replay"
)

const (
	// firstRate is where the search begins, in requests per second.
	firstRate = 40
	// firstStep and furtherStep bracket the rate: wide in the first window, and narrower in
	// others, whose search begins at the rate of the window before.
	firstStep, furtherStep = 1.25, 1.12
	// closeEnough is the quotient of the bounds at which the search ends.
	closeEnough = 1.07
	// growth is the share of the requests of a third of a run by which the number in flight may
	// grow from the middle third to the last.
	growth = 0.05
	// maxProbes bounds the search in one window.
	maxProbes = 16
)

// Probe is a step of the search for the rate that round robin holds.
type Probe struct {
	Window    int        `json:"window"`
	PerSecond float64    `json:"requests_per_second"`
	InFlight  [3]float64 `json:"in_flight_thirds"`
	Held      bool       `json:"held"`
}

// findRates returns the rate that round robin holds in each window.
func (b *bench) findRates(ctx context.Context) ([]float64, error) {
	rr := contestants(nil, false)
	c := &rr[len(rr)-1]
	start, step := float64(firstRate), firstStep
	var rates []float64
	for i, w := range b.windows {
		rate, err := search(start, step, func(rate float64) (bool, error) {
			return b.probe(ctx, c, i+1, w, rate)
		})
		if err != nil {
			return rates, fmt.Errorf("the rate that round robin holds in window %d: %w", i+1, err)
		}
		fmt.Fprintf(b.Progress, "round robin holds %.1f requests/s in window %d\n", rate, i+1)
		rates = append(rates, rate)
		start, step = rate, furtherStep
	}
	return rates, nil
}

// search returns the highest rate that is held, within closeEnough. search brackets the rate by
// steps from start, and then halves the bracket.
func search(start, step float64, held func(rate float64) (bool, error)) (float64, error) {
	low, high := 0.0, 0.0 // a rate that is held, and one that is not; 0: unknown
	next := start
	for range maxProbes {
		ok, err := held(next)
		if err != nil {
			return 0, err
		}
		if ok {
			low = next
		} else {
			high = next
		}
		switch {
		case high == 0:
			next = low * step
		case low == 0:
			next = high / step
		case high/low <= closeEnough:
			return low, nil
		default:
			next = (low + high) / 2
		}
	}
	return 0, errors.New("no end after many steps: give it with --rate")
}

// probe reports whether round robin holds the rate.
func (b *bench) probe(ctx context.Context, c *contestant, window int, w *Workload, rate float64) (bool, error) {
	var r *Run
	var err error
	for range 2 {
		if r, err = b.play(ctx, c, w, rate); ctx.Err() != nil {
			return false, ctx.Err()
		}
		if err == nil && r.Void == "" {
			break
		}
	}
	if err != nil {
		return false, err
	}
	if r.Void != "" {
		return false, fmt.Errorf("two runs at %.1f requests/s are void: %s: leave the host alone, or lower --speedup",
			rate, r.Void)
	}
	p := Probe{Window: window, PerSecond: rate, InFlight: r.Replay.InFlight, Held: holds(r.Replay)}
	b.report.Probes = append(b.report.Probes, p)
	fmt.Fprintf(b.Progress, "search: round robin in window %d at %.1f requests/s: %.0f, %.0f, %.0f in flight, held: %t, "+
		"%.0f %% of the host's CPU\n", window, rate, p.InFlight[0], p.InFlight[1], p.InFlight[2], p.Held, 100*r.CPU)
	if !p.Held && r.Replay.E2E.P50 > float64(r.Replay.Requests)/rate/3 {
		fmt.Fprintf(b.Progress, "most answers took longer than a third of the run; if this repeats at lower rates, raise "+
			"--requests\n")
	}
	return p.Held, nil
}

// holds reports whether every request was answered and no queue grew.
func holds(r *replay.Result) bool {
	third := float64(r.Requests) / float64(len(r.InFlight))
	return r.Failed() == 0 && r.InFlight[2]-r.InFlight[1] <= growth*third
}
