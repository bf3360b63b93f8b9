package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/perf/cluster"
	"github.com/cognitora/dataplane/router/policy"
)

// warmFlags are the flags of bench warm.
type warmFlags struct {
	document           string
	loadRate, pullRate float64 // in GB per second
	t                  cluster.WarmTrial
}

func newWarm(a *cli.App) *cobra.Command {
	var f warmFlags
	cmd := &cobra.Command{
		Use:   "warm",
		Short: "Simulate what routers gain by knowing the blocks in the caches of hosts",
		Long: "Simulates 8 equal engines in virtual time, as bench cluster --workloads does. Requests come back to documents " +
			"of 8,000 tokens,\n" +
			"all equally likely, which together need --working-set times the memory of the engines. The contestants are\n" +
			"  no caches  engines have their own memory only\n" +
			"  device     every host has a cache, which its engine and the other hosts read; routers are told nothing\n" +
			"  host       routers are told the blocks of each node's own host\n" +
			"  fleet      routers are also told what hosts get from each other\n" +
			"  ahead      the picked node's host also begins to get it when the router picks (router.promote = fleet)\n\n" +
			"Engines load all that their host has or gets, and their batch waits meanwhile. The first half of the requests " +
			"fills the\n" +
			"caches and is not measured. A token takes 128 KiB. Equal flags give equal figures on every machine.",
		Example: "  cgn-ctl bench warm --seeds 5\n  cgn-ctl bench warm --pull-rate 0.5 --loads 0.6",
		Args:    cli.NoArguments,
		PreRunE: cli.Ranges(map[string][2]float64{
			"seeds": {2, 1000}, "first-seed": {0, cli.Most}, "requests": {0, cli.Most}, "routers": {1, 64}, "working-set": {0.01, 100},
			"host": {0.01, 1000}, "load-rate": {1e-3, 1e6}, "pull-rate": {0, 1e6},
		}),
		RunE: cli.Interruptible(func(ctx context.Context, _ *cobra.Command, _ []string) error {
			return judgeWarm(ctx, a, &f)
		}),
	}
	fl := cmd.Flags()
	fl.StringVar(&f.document, "policy", "{}", "policy document, whose mode is used")
	fl.Float64SliceVar(&f.t.Loads, "loads", []float64{0.6, 0.9}, "loads, as shares of the rate that round robin holds "+
		"without caches")
	fl.Float64Var(&f.t.WorkingSet, "working-set", 5, "size of all documents, in parts of the memory of all engines")
	fl.Float64Var(&f.t.Host, "host", 10, "memory of a host's cache, in parts of its engine's")
	fl.Float64Var(&f.loadRate, "load-rate", 20, "GB per second from the cache of a host to its engine")
	fl.Float64Var(&f.pullRate, "pull-rate", 3, "GB per second from another host to the cache of a host; 0: hosts "+
		"exchange no blocks")
	fl.IntVar(&f.t.Routers, "routers", 1, "routers that get the requests in turn")
	fl.IntVar(&f.t.Requests, "requests", 0, "requests of each simulation; 0: 12,000")
	fl.IntVar(&f.t.Seeds, "seeds", 3, "seeds")
	fl.Uint64Var(&f.t.FirstSeed, "first-seed", 1, "first of the seeds")
	return cmd
}

func judgeWarm(ctx context.Context, a *cli.App, f *warmFlags) error {
	p, err := policy.Parse([]byte(f.document))
	if err != nil {
		return cli.Misused(fmt.Errorf("--policy: %w", err))
	}
	for _, load := range f.t.Loads {
		if !(load > 0 && load <= 10) {
			err = errors.Join(err, fmt.Errorf("--loads %g: must be more than 0 and at most 10", load))
		}
	}
	if err != nil {
		return cli.Misused(err)
	}
	f.t.Mode, f.t.Policy, f.t.Progress = p.Mode.String(), p, progress(a)
	f.t.LoadRate, f.t.PullRate = f.loadRate*1e9, f.pullRate*1e9
	j, err := cluster.JudgeWarm(ctx, f.t)
	if err != nil {
		return wayOut(err)
	}
	return a.Show(j, func(t *cli.Table) { t.Line(strings.TrimSuffix(j.Markdown(), "\n")) })
}
