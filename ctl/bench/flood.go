package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/perf/compare"
	"github.com/cognitora/dataplane/perf/flood"
)

func newFlood(a *cli.App) *cobra.Command {
	cfg := flood.Config{Progress: a.Err}
	c := &cobra.Command{
		Use:   "flood",
		Short: "Measure good requests beside a flood of requests with wrong API keys",
		Long: "Sends 2 KB chats with a good API key to a router of this repository, alone and beside requests with " +
			"wrong keys in turn,\nand prints latency, CPU time and the router's memory. The keys are malformed, " +
			"damaged, unknown and revoked.\nEvery fifth request of the flood comes over a new connection. Memory is flat if MIB AT FIRST and AT " +
			"LAST,\nthe means of a window's first and last sixth, are about the same.",
		Args: cli.NoArguments,
		PreRunE: cli.Ranges(map[string][2]float64{"good": {1, 1e6}, "refused": {1, 1e6}, "rounds": {2, 1000},
			"window": {0.1, 600}, "new-every": {1, 1e9}}),
		RunE: cli.Interruptible(func(ctx context.Context, _ *cobra.Command, _ []string) error {
			return runFlood(ctx, a, cfg)
		}),
	}
	f := c.Flags()
	f.StringVar(&cfg.Root, "root", ".", "the repository, whose bin is measured")
	f.Float64Var(&cfg.Good, "good", 500, "good requests per second")
	f.Float64Var(&cfg.Refused, "refused", 5000, "requests per second with wrong keys")
	f.IntVar(&cfg.Rounds, "rounds", 6, "how often both are measured")
	f.IntVar(&cfg.NewEvery, "new-every", 5, "requests of the flood for each new connection; 1: none is used again")
	f.DurationVar(&cfg.Window, "window", 5*time.Second, "time of each measurement")
	return c
}

func runFlood(ctx context.Context, a *cli.App, cfg flood.Config) error {
	r, err := flood.Run(ctx, cfg)
	if err != nil {
		return err
	}
	return a.Show(r, func(t *cli.Table) {
		t.Line(fmt.Sprintf("%s; %d rounds of %v each, %.0f good requests/s, %.0f refused\n", r.Machine, cfg.Rounds,
			cfg.Window, cfg.Good, cfg.Refused))
		t.Row("", "P50 MS", "P99 MS", "REFUSED/S", "ROUTER CPUS", "MIB AT FIRST", "AT LAST", "HARNESS CPUS")
		for _, side := range []struct {
			name   string
			rounds []flood.Round
		}{{"alone", r.Alone}, {"flooded", r.Flooded}} {
			median := func(figure func(flood.Round) float64) float64 {
				var all []float64
				for _, r := range side.rounds {
					all = append(all, figure(r))
				}
				return compare.IntervalOf(all).Median
			}
			cell := func(format string, figure func(flood.Round) float64) string {
				return fmt.Sprintf(format, median(figure))
			}
			t.Row(side.name, cell("%.2f", func(r flood.Round) float64 { return r.P50 }),
				cell("%.2f", func(r flood.Round) float64 { return r.P99 }),
				cell("%.0f", func(r flood.Round) float64 { return r.Refused }),
				cell("%.2f", func(r flood.Round) float64 { return r.CPU }),
				cell("%.1f", func(r flood.Round) float64 { return r.First() }),
				cell("%.1f", func(r flood.Round) float64 { return r.Last() }),
				cell("%.2f", func(r flood.Round) float64 { return r.OwnCPU }))
		}
		most := slices.MaxFunc(r.Flooded, func(a, b flood.Round) int { return int(a.RSS - b.RSS) }).RSS
		t.Line(fmt.Sprintf("\np99 flooded/alone: %.2f (%.2f to %.2f, %.0f %%); p50: %.2f (%.2f to %.2f)", r.P99.Median,
			r.P99.Low, r.P99.High, 100*r.P99.Sure, r.P50.Median, r.P50.Low, r.P50.High))
		t.Line(fmt.Sprintf("live heap after the first flood: %.1f MiB; after the last one: %.1f; most resident: %.1f",
			r.Live[0], r.Live[1], most))
	})
}
