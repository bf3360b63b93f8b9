package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/perf/cluster"
	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/router/policy"
)

// clusterFlags are the flags of bench cluster.
type clusterFlags struct {
	trace    traceFlags
	c        cluster.Comparison
	requests int
	spread   bool
	document string
	share    bool // --cache-share was given
	judge    judgeFlags
}

const clusterHelp = "Simulates engines with block-level LRU caches in virtual time, and the router's own choice of nodes " +
	"before them: policy,\n" +
	"prefix index and feedback are the real ones, only bytes and sockets are left out. An hour of traffic " +
	"takes seconds, and\n" +
	"equal flags give equal figures on every machine. Times are in simulated milliseconds.\n\n" +
	"Arrivals keep the trace's spacing, divided by the speed at which round robin keeps prefill busy for " +
	"--utilisation of the\n" +
	"time, or by --speed. The mode score_exact is score that is told what the caches hold instead of " +
	"predicting it; reusable is\n" +
	"what one cache without a bound would find, which no policy can exceed.\n\n" +
	"--modes takes the spellings of a policy document, such as kv for cost and round-robin for round_robin. " +
	"The mode direct\n" +
	"cannot be simulated, because simulated requests name no node. device_aware is simulated only if " +
	"--modes names it:\n" +
	"all simulated engines are accelerators, so it chooses as least_loaded does.\n\n" +
	"Decoding takes the rest of the engines' time, so that short traces, small caches and few slots leave a " +
	"high --utilisation\n" +
	"out of reach; near it requests are refused for want of slots.\n\n" +
	judgeHelp

func newCluster(a *cli.App) *cobra.Command {
	var f clusterFlags
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Simulate a fleet with the router's own policy and compare routing modes",
		Long:  clusterHelp,
		Example: "  cgn-ctl bench cluster --requests 6000\n" +
			"  cgn-ctl bench trace --requests 3000 >trace.jsonl && cgn-ctl bench cluster --trace trace.jsonl " +
			"--requests 0 --modes score,round_robin\n" +
			"  cgn-ctl bench cluster --workloads all --seeds 10 --loads 0.6,0.9\n" +
			"  cgn-ctl bench cluster --trace conversation_trace.jsonl --window 0/3,1/3,2/3 --loads 0.6,0.9",
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.share = cmd.Flags().Changed("cache-share")
			judge, err := f.judged(cmd.Flags())
			if err := errors.Join(cli.InRanges(cmd.Flags(), clusterRanges), f.nameModes(), err); err != nil {
				return cli.Misused(err)
			}
			if judge {
				return cli.Interruptible(func(ctx context.Context, cmd *cobra.Command, _ []string) error {
					return judgeCluster(ctx, a, cmd.Flags(), &f)
				})(cmd, nil)
			}
			return simulateCluster(a, &f)
		},
	}
	f.trace.add(cmd)
	fl := cmd.Flags()
	fl.IntVar(&f.requests, "requests", 2000, "requests of the trace; 0: all of a file")
	fl.BoolVar(&f.spread, "spread", false, "let requests that share only the first block share nothing")
	fl.IntVar(&f.c.Config.Nodes, "nodes", 8, "engines")
	fl.IntVar(&f.c.Config.Routers, "routers", 1, "routers that get the requests in turn; --heartbeat tells each of the "+
		"others' requests")
	fl.Float64Var(&f.c.CacheShare, "cache-share", 1, "size of all caches together, as a share of the trace's "+
		"distinct blocks; unless given, more where a short trace's longest request takes it")
	fl.Float64Var(&f.c.Target, "utilisation", 0.6, "prefill utilisation of round robin that the arrival rate is "+
		"searched for")
	fl.Float64Var(&f.c.Config.Speed, "speed", 0, "divides the time between arrivals; 0: searched for --utilisation")
	fl.StringVar(&f.document, "policy", "{}", "policy document, such as "+
		`{"mode":"score","score":{"weights":{"kv":0.4,"load":0.4}}}; its mode is not used`)
	fl.StringSliceVar(&f.c.Modes, "modes", cluster.Modes(), "routing modes to compare")
	e := &f.c.Config.Engine
	fl.IntVar(&e.MaxSeqs, "slots", 64, "requests that an engine works on at once")
	fl.IntVar(&e.MaxBatchTokens, "batch-tokens", 2048, "tokens of one engine step")
	fl.Float64Var(&e.PrefillTokensPerSecond, "prefill-rate", 5000, "prompt tokens per second of one engine")
	fl.DurationVar(&e.DecodeStep, "decode-step", 15*time.Millisecond, "time of one decode step")
	fl.DurationVar(&e.DecodePerSequence, "decode-per-sequence", 200*time.Microsecond,
		"more of it for each sequence in the batch")
	fl.DurationVar(&e.DecodePerBlock, "decode-per-block", 0, "more of it for each 512 tokens that these sequences read")
	fl.IntVar(&e.PrefillDoublesAt, "prefill-doubles-at", 0, "tokens before a prompt token at which it takes twice as "+
		"long as the first one; 0: never")
	t := &f.c.Config.Telemetry
	fl.DurationVar(&t.Every, "heartbeat", 0, "time between two reports of a node's load to the router; 0: none")
	fl.DurationVar(&t.Age, "heartbeat-age", 0, "age of a report when it comes")
	fl.IntVar(&f.c.Config.IndexBlocks, "index-blocks", 0, "the router's prefix.max_blocks; 0: its default")
	fl.DurationVar(&f.c.Config.Lifetime, "lifetime", 0, "the router's prefix.ttl; 0: its default")
	f.judge.add(fl)
	return cmd
}

// clusterRanges are the allowed values of the flags.
var clusterRanges = map[string][2]float64{
	"nodes": {1, 4096}, "routers": {1, 64}, "requests": {0, cli.Most}, "slots": {1, cli.Most},
	"batch-tokens": {1, cli.Most},
	"index-blocks": {0, cli.Most}, "cache-share": {1e-6, 100}, "utilisation": {0.01, 0.99},
	"prefill-rate": {1, 1e9}, "speed": {0, 1e6}, "lifetime": {0, cli.Most}, "decode-step": {1e-6, cli.Most},
	"decode-per-sequence": {1e-9, cli.Most}, "rate": rates, "decode-per-block": {0, cli.Most},
	"prefill-doubles-at": {0, cli.Most}, "heartbeat": {0, cli.Most}, "heartbeat-age": {0, cli.Most},
	"seeds": {2, 1000}, "first-seed": {0, cli.Most}, "cache-blocks": {1, cli.Most},
}

// nameModes brings the names of the modes into one spelling.
func (f *clusterFlags) nameModes() error {
	for i, given := range f.c.Modes {
		name, err := cluster.ModeName(given)
		if err != nil {
			return fmt.Errorf("--modes %w", err)
		}
		if slices.Contains(f.c.Modes[:i], name) {
			return fmt.Errorf("--modes %s is given twice", name)
		}
		f.c.Modes[i] = name
	}
	return nil
}

// load reads the trace. load makes caches large enough for the longest requests if --cache-share is
// missing.
func (f *clusterFlags) load() (*cluster.Workload, error) {
	source, closeTrace, err := f.trace.open(f.requests)
	if err != nil {
		return nil, err
	}
	defer closeTrace()
	w, err := cluster.Load(trace.Limit(source, f.requests), f.spread)
	switch {
	case err != nil && f.trace.file != "":
		return nil, fmt.Errorf("--trace %s: %w", f.trace.file, err)
	case err != nil:
		return nil, err
	}
	if least := (float64(2*w.Longest()) + 0.5) * float64(f.c.Config.Nodes) / float64(max(w.Distinct(), 1)); !f.share {
		f.c.CacheShare = max(f.c.CacheShare, least)
	}
	return w, nil
}

// wayOut adds flags that help to an error of the simulation.
func wayOut(err error) error {
	for _, e := range []struct {
		is   error
		hint string
	}{
		{cluster.ErrCache, "give more with --cache-share, or fewer --nodes, or a longer trace (--requests)"},
		{cluster.ErrShort, "give more --requests, fewer --routers, or larger parts with --window"},
		{cluster.ErrSpan, "give a higher --speed or --rate, or fewer --requests"},
		{cluster.ErrBusy, "decoding takes the rest of the engines' time, or caches and slots have too little room: " +
			"lower --utilisation, --prefill-rate or --decode-step,\n" +
			"  raise --cache-share or --slots, take more --requests, or give the --speed yourself; --rate changes " +
			"little, the search makes up for it"},
	} {
		if errors.Is(err, e.is) {
			return cli.WithHint(err, e.hint)
		}
	}
	return err
}

func simulateCluster(a *cli.App, f *clusterFlags) error {
	var err error
	if f.c.Config.Policy, err = policy.Parse([]byte(f.document)); err != nil {
		return cli.Misused(fmt.Errorf("--policy: %w", err))
	}
	w, err := f.load()
	if err != nil {
		return err
	}
	f.c.Config.Seed = f.trace.gen.Seed
	report, err := cluster.Compare(w, f.c)
	if err != nil {
		return wayOut(err)
	}
	return a.Show(report, func(t *cli.Table) {
		routers := ""
		if report.Routers > 1 {
			routers = fmt.Sprintf("%d routers, ", report.Routers)
		}
		t.Line(fmt.Sprintf("%d requests with %d distinct blocks of 512 tokens in %.0f s (speed x%.4g, seed %d); %s%d "+
			"engines that cache %d blocks each;\n"+
			"one cache without a bound would find %.3f of the prompt tokens.\n",
			report.Requests, report.Distinct, report.Seconds, report.Speed, report.Seed, routers, report.Nodes,
			report.CacheBlocks, report.Reusable))
		text := cluster.MarkdownHeader()
		for i := range report.Results {
			text += report.Results[i].MarkdownRow()
		}
		t.Line(text[:len(text)-1])
	})
}
