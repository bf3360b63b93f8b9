package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/perf/attached"
)

func newAttached(a *cli.App) *cobra.Command {
	cfg := attached.Config{Progress: a.Err}
	c := &cobra.Command{
		Use:   "attached",
		Short: "Measure what the BPF programs cost a router, its engines and its clients",
		Long: "Sends the requests and streams of bench compare through a router, with all BPF programs attached to " +
			"this host and its ports, processes and peers watched, and\n" +
			"without, in pairs, and prints CPU time per request and per token and the programs' own run times. Each " +
			"pair takes some 15 seconds. Nothing else should run on the host;\n" +
			"programs of an agent that runs here are in both figures. Run it as root in the repository, after make " +
			"build; make perf-attached does.",
		Args:    cli.NoArguments,
		PreRunE: cli.Ranges(map[string][2]float64{"pairs": {1, 1000}, "window": {0.1, 600}}),
		RunE: cli.Interruptible(func(ctx context.Context, _ *cobra.Command, _ []string) error {
			return runAttached(ctx, a, cfg)
		}),
	}
	f := c.Flags()
	f.StringVar(&cfg.Root, "root", ".", "the repository, whose bin is measured")
	f.IntVar(&cfg.Pairs, "pairs", 20, "how often each workload is measured with and without")
	f.DurationVar(&cfg.Window, "window", 3*time.Second, "time of each measurement")
	return c
}

func runAttached(ctx context.Context, a *cli.App, cfg attached.Config) error {
	r, err := attached.Run(ctx, cfg)
	if err != nil {
		return err
	}
	return a.Show(r, func(t *cli.Table) {
		t.Line(fmt.Sprintf("%s; %d pairs of %v each\n", r.Machine, cfg.Pairs, cfg.Window))
		t.Row("CPU OF", "PER", "WITHOUT", "WITH", "WITH/WITHOUT", "INTERVAL", "PROGRAMS")
		for i := range r.Loads {
			l := &r.Loads[i]
			attachedRow(t, "router", l, &l.Router)
			attachedRow(t, "router, engines, clients", l, &l.All)
		}
		t.Line("")
		t.Row("PROGRAM", "RUNS", "A RUN")
		for _, p := range r.Programs {
			t.Row(p.Name, p.Runs, fmt.Sprintf("%.0f ns", p.Ns))
		}
		t.Line(fmt.Sprintf("\n20,000 context switches and 10,000 packets a second would take %.2f %% of a core. Run "+
			"times have in them what measuring takes, some 50 ns.", 100*r.BusyHost))
	})
}

func attachedRow(t *cli.Table, of string, l *attached.Load, f *attached.Figures) {
	t.Row(of, l.Unit, fmt.Sprintf("%.2f µs", f.MedianWithout()), fmt.Sprintf("%.2f µs", f.MedianWith()),
		fmt.Sprintf("%.4f", f.Ratio.Median),
		fmt.Sprintf("%.4f to %.4f (%.0f %%)", f.Ratio.Low, f.Ratio.High, 100*f.Ratio.Sure), fmt.Sprintf("%.2f µs",
			l.ProgramsUs))
}
