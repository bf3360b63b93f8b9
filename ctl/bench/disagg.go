package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/perf/cluster"
)

// disaggFlags are the flags of bench disagg.
type disaggFlags struct {
	workloads []string
	requests  int
	t         cluster.DisaggTrial
}

func newDisagg(a *cli.App) *cobra.Command {
	var f disaggFlags
	cmd := &cobra.Command{
		Use:   "disagg",
		Short: "Simulate fleets that compute a prompt on one node and answer on another",
		Long: "Simulates fleets of 8 equal nodes in virtual time, as bench cluster --workloads does, with the router's " +
			"own choice of both\n" +
			"nodes in mode predicted. The fleets are\n" +
			"  both, never      all nodes have role both, and no connector\n" +
			"  both, automatic  the same with connectors; the mode decides for each request\n" +
			"  P:D, always      P nodes of role prefill compute all prompts of 512 tokens and more, D nodes answer\n" +
			"  P:D, automatic   the same nodes; the mode decides for each request\n\n" +
			"The traffic long has independent prompts of 8,000 tokens and answers of 100. In mixed two fifths of the " +
			"requests are like those,\n" +
			"and the others have prompts of 1,000 tokens and answers of 400.\n\n" +
			"A token gap is the time between two tokens of an answer. The weighted time is what mode predicted makes " +
			"small: the time to the\n" +
			"first token by its weight of 12, and the rest of the answer. The second table compares the automatic " +
			"fleets with the better\n" +
			"one of P:D, always and of both, never. The better one of a figure may be the worse one of another.\n" +
			"Equal flags give equal figures on every machine.",
		Example: "  cgn-ctl bench disagg --seeds 10\n  cgn-ctl bench disagg --workloads long --loads 0.9 --prefill 6,7",
		Args:    cli.NoArguments,
		PreRunE: cli.Ranges(map[string][2]float64{
			"seeds": {2, 1000}, "first-seed": {0, cli.Most}, "requests": {0, cli.Most}, "transfer": {1e-9, 1},
		}),
		RunE: cli.Interruptible(func(ctx context.Context, _ *cobra.Command, _ []string) error {
			return judgeDisagg(ctx, a, &f)
		}),
	}
	fl := cmd.Flags()
	fl.StringSliceVar(&f.workloads, "workloads", []string{"long", "mixed"}, "kinds of traffic, as in bench cluster")
	fl.IntVar(&f.requests, "requests", 0, "requests of each simulation; 0: as many as the kind has")
	fl.Float64SliceVar(&f.t.Loads, "loads", []float64{0.6, 0.9}, "loads, as shares of the rate that round robin holds "+
		"with nodes of role both")
	fl.IntSliceVar(&f.t.Prefill, "prefill", []int{2, 4, 6}, "nodes of role prefill, for each of the fleets P:D")
	fl.DurationVar(&f.t.Transfer, "transfer", 5*time.Microsecond, "time in which the KV blocks of one token go to the "+
		"other node")
	fl.IntVar(&f.t.Seeds, "seeds", 5, "seeds")
	fl.Uint64Var(&f.t.FirstSeed, "first-seed", 1, "first of the seeds")
	return cmd
}

func judgeDisagg(ctx context.Context, a *cli.App, f *disaggFlags) error {
	var err error
	if f.t.Traffics, err = cluster.TrafficsNamed(f.workloads); err != nil {
		return cli.Misused(fmt.Errorf("--workloads %w", err))
	}
	nodes := f.t.Traffics[0].Fleet.Nodes
	for i := range f.t.Traffics {
		if t := &f.t.Traffics[i]; f.requests > 0 {
			t.Requests = f.requests
		}
		if f.t.Traffics[i].Fleet.Nodes != nodes {
			err = fmt.Errorf("--workloads %s: the fleets have different numbers of nodes",
				strings.Join(f.workloads, ","))
		}
	}
	for _, load := range f.t.Loads {
		if !(load > 0 && load <= 2) {
			err = errors.Join(err, fmt.Errorf("--loads %g: must be more than 0 and at most 2", load))
		}
	}
	for _, p := range f.t.Prefill {
		if p < 1 || p >= nodes {
			err = errors.Join(err, fmt.Errorf("--prefill %d: must be 1 to %d", p, nodes-1))
		}
	}
	if err != nil {
		return cli.Misused(err)
	}
	f.t.Progress = progress(a)
	j, err := cluster.JudgeDisagg(ctx, f.t)
	if err != nil {
		return wayOut(err)
	}
	return a.Show(j, func(t *cli.Table) { t.Line(strings.TrimSuffix(j.Markdown(), "\n")) })
}

// progress returns a function that reports every twentieth part of the simulations.
func progress(a *cli.App) func(done, of int) {
	return func(done, of int) {
		if done*20/of > (done-1)*20/of {
			fmt.Fprintf(a.Err, "%d of %d simulations\n", done, of)
		}
	}
}
