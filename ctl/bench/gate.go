package bench

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/perf/gate"
)

func newGate(a *cli.App) *cobra.Command {
	cfg := gate.Config{Progress: a.Err}
	c := &cobra.Command{
		Use:   "gate",
		Short: "Fail if the router costs more or routes worse than perf/gate/thresholds.toml allows",
		Long: "Counts allocations and system calls of a running router per request and per token, and compares its " +
			"CPU time with that\n" +
			"of haproxy and of a bare Go server in the same run. Routing quality is taken from simulated fleets. " +
			"What is over its limit is measured again before it fails.",
		Args: cli.NoArguments,
		RunE: cli.Interruptible(func(ctx context.Context, _ *cobra.Command, _ []string) error {
			return runGate(ctx, a, cfg)
		}),
	}
	f := c.Flags()
	f.StringVar(&cfg.Root, "root", ".", "the repository, whose bin is measured")
	f.StringSliceVar(&cfg.Only, "only", nil, "only these gates")
	f.BoolVar(&cfg.Strict, "strict", false, "what cannot be measured here fails too")
	return c
}

func runGate(ctx context.Context, a *cli.App, cfg gate.Config) error {
	report, err := gate.Run(ctx, cfg)
	if err != nil {
		return err
	}
	if err := a.Show(report, func(t *cli.Table) { t.Line(report.String()) }); err != nil {
		return err
	}
	return report.Err()
}
