package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/perf/compare"
	"github.com/cognitora/dataplane/perf/pairs"
	"github.com/cognitora/dataplane/router/policy"
)

func newPairs(a *cli.App) *cobra.Command {
	cfg := pairs.Config{Progress: a.Err}
	c := &cobra.Command{
		Use:   "pairs",
		Short: "Compare the CPU time of two builds of the router",
		Long: "Sends the requests and streams of bench compare through two builds of cgn-router in turn,\n" +
			"started anew for each pair, and prints CPU time per request or token, the median ratio of the\n" +
			"pairs and its interval. 60 pairs take some 20 minutes. Nothing else should run on the host.\n" +
			"make perf-pairs builds a commit to compare with. --keys measures what API keys cost.",
		Args: cli.NoArguments,
		RunE: cli.Interruptible(func(ctx context.Context, c *cobra.Command, _ []string) error {
			if cfg.Keys && cfg.Before == "" {
				cfg.Before = cfg.After
			}
			if err := errors.Join(checkPairs(&cfg), cli.InRanges(c.Flags(), map[string][2]float64{"pairs": {1, 1000},
				"window": {0.1, 600}})); err != nil {
				return cli.Misused(err)
			}
			return runPairs(ctx, a, cfg)
		}),
	}
	f := c.Flags()
	f.StringVar(&cfg.Before, "before", "", "the program cgn-router of another commit")
	f.StringVar(&cfg.After, "after", "bin/cgn-router", "the program cgn-router that is compared with it")
	f.BoolVar(&cfg.Keys, "keys", false, "the second build takes requests with an API key only; --before is the same "+
		"program, unless it is given")
	f.IntVar(&cfg.Pairs, "pairs", 60, "how often each scenario is measured with both")
	f.DurationVar(&cfg.Window, "window", 2*time.Second, "time of each measurement")
	f.StringVar(&cfg.Mode, "mode", policy.RoundRobin.String(),
		"routing mode of both builds; in another they may spread requests differently, which costs differently")
	usual := []string{"chat-2k", "tokens", "long-seen"}
	f.StringSliceVar(&cfg.Scenarios, "scenario", usual, "rows of perf/compare/scenarios.toml")
	return c
}

// checkPairs refuses flags with which nothing can be measured.
func checkPairs(cfg *pairs.Config) error {
	if cfg.Before == "" {
		return cli.WithHint(errors.New("--before is missing"),
			"for example: cgn-ctl bench pairs --before /tmp/cgn-router")
	}
	return errors.Join(among("scenario", cfg.Scenarios, pairs.Scenarios()),
		among("mode", []string{cfg.Mode}, policy.ModeNames()))
}

func runPairs(ctx context.Context, a *cli.App, cfg pairs.Config) error {
	r, err := pairs.Run(ctx, cfg)
	if err != nil {
		return err
	}
	return a.Show(r, func(t *cli.Table) {
		t.Line(fmt.Sprintf("%s; %d pairs of %v each, mode %s", r.Machine, cfg.Pairs, cfg.Window, r.Mode))
		t.Line(fmt.Sprintf("before: %s, %s", r.Before.Version, r.Before.Path))
		t.Line(fmt.Sprintf("after: %s, %s\n", r.After.Version, r.After.Path))
		t.Row("SCENARIO", "CPU PER", "BEFORE", "AFTER", "AFTER/BEFORE", "INTERVAL", "FELL BEHIND")
		for i := range r.Scenarios {
			f := &r.Scenarios[i]
			median := func(us []float64) string { return fmt.Sprintf("%.2f µs", compare.IntervalOf(us).Median) }
			t.Row(f.Scenario, f.Unit, median(f.Before), median(f.After), fmt.Sprintf("%.4f", f.Ratio.Median),
				fmt.Sprintf("%.4f to %.4f (%.0f %%)", f.Ratio.Low, f.Ratio.High, 100*f.Ratio.Sure), f.Behind)
		}
	})
}
