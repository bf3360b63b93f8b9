package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/perf/pairs"
)

func newPairs(a *app) *cobra.Command {
	cfg := pairs.Config{Progress: a.err}
	asJSON := false
	c := &cobra.Command{
		Use:   "pairs",
		Short: "Compare the CPU time of two builds of the router",
		Long: "Sends the requests and streams of bench compare through two builds of cgn-router in turn, started anew\n" +
			"for each pair, and prints CPU time per request or token, the median ratio of the pairs and its interval.\n" +
			"60 pairs take some 20 minutes. Nothing else should run on the host. make perf-pairs builds a commit to\n" +
			"compare with.",
		Example: "  cgn-ctl bench pairs --before /tmp/cgn-router --scenario tokens",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkPairs(&cfg); err != nil {
				return err
			}
			if asJSON {
				a.output = "json"
			}
			ctx, release := interruptible(c.Context())
			defer release()
			return a.pairs(ctx, cfg)
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Before, "before", "", "the program cgn-router of another commit")
	f.StringVar(&cfg.After, "after", "bin/cgn-router", "the program cgn-router that is compared with it")
	f.IntVar(&cfg.Pairs, "pairs", 60, "how often each scenario is measured with both")
	f.DurationVar(&cfg.Window, "window", 2*time.Second, "time of each measurement")
	f.StringSliceVar(&cfg.Scenarios, "scenario", []string{"chat-2k", "tokens", "long-seen"}, "of perf/compare/scenarios.toml")
	f.BoolVar(&asJSON, "json", false, "the same as --output json")
	return c
}

// checkPairs says which flag has a value that nothing can be measured with.
func checkPairs(cfg *pairs.Config) error {
	if cfg.Before == "" {
		return hinted{errors.New("--before is missing"), "for example: cgn-ctl bench pairs --before /tmp/cgn-router"}
	}
	names, err := pairs.Scenarios()
	if len(cfg.Scenarios) == 0 {
		err = errors.Join(err, errors.New("--scenario: no scenario is named"))
	}
	return errors.Join(err, among("scenario", cfg.Scenarios, names), inRange("pairs", float64(cfg.Pairs), 1, 1000),
		inRange("window", cfg.Window.Seconds(), 0.1, 600))
}

func (a *app) pairs(ctx context.Context, cfg pairs.Config) error {
	r, err := pairs.Run(ctx, cfg)
	if err != nil {
		return err
	}
	return a.show(r, func(t *table) {
		t.line(fmt.Sprintf("%s; %d pairs of %v each", r.Machine, cfg.Pairs, cfg.Window))
		t.line(fmt.Sprintf("before: %s, %s\nafter: %s, %s\n", r.Before.Version, r.Before.Path, r.After.Version, r.After.Path))
		t.row("SCENARIO", "CPU PER", "BEFORE", "AFTER", "AFTER/BEFORE", "INTERVAL", "FELL BEHIND")
		for i := range r.Scenarios {
			f := &r.Scenarios[i]
			t.row(f.Scenario, f.Unit, fmt.Sprintf("%.2f µs", f.MedianBefore()), fmt.Sprintf("%.2f µs", f.MedianAfter()),
				fmt.Sprintf("%.4f", f.Ratio.Median),
				fmt.Sprintf("%.4f to %.4f (%.0f %%)", f.Ratio.Low, f.Ratio.High, 100*f.Ratio.Sure), f.Behind)
		}
	})
}
