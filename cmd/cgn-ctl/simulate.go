package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/perf/cluster"
	"github.com/cognitora/dataplane/router/policy"
)

func newBenchCluster(a *app) *cobra.Command {
	var f traceFlags
	var c cluster.Comparison
	var requests int
	var spread bool
	var document string
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Simulate a fleet with the router's own policy and compare routing modes",
		Long: "Simulates engines with block-level LRU caches in virtual time, and the router's own choice of nodes before them: policy,\n" +
			"prefix index and feedback are the real ones, only bytes and sockets are left out. An hour of traffic takes seconds, and\n" +
			"equal flags give equal figures on every machine. Times are in simulated milliseconds.\n\n" +
			"Arrivals keep the trace's spacing, divided by the speed at which round robin keeps prefill busy for --utilisation of the\n" +
			"time, or by --speed. The mode score_exact is score that is told what the caches hold instead of predicting it; reusable is\n" +
			"what one cache without a bound would find, which no policy can exceed.",
		Example: "  cgn-ctl bench cluster --requests 6000\n  cgn-ctl bench cluster --trace conversation_trace.jsonl --requests 0 --modes score,round_robin",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			e := &c.Config.Engine
			switch {
			case c.Config.Nodes < 1 || requests < 0 || e.MaxSeqs < 1 || e.MaxBatchTokens < 1 || c.Config.IndexBlocks < 0:
				return errors.New("--nodes, --slots and --batch-tokens must be above 0, --requests and --index-blocks not negative")
			case !(c.CacheShare > 0) || !(c.Target > 0 && c.Target < 1) || !(c.Config.Speed >= 0) || !(e.PrefillTokensPerSecond > 0) || f.gen.PerSecond < 0:
				return errors.New("--cache-share and --prefill-rate must be above 0, --utilisation between 0 and 1, --speed and --rate not negative")
			case e.DecodeStep <= 0 || e.DecodePerSequence <= 0:
				return errors.New("--decode-step and --decode-per-sequence must be above 0")
			}
			var err error
			if c.Config.Policy, err = policy.Parse([]byte(document)); err != nil {
				return fmt.Errorf("--policy: %w", err)
			}
			w, err := loadWorkload(&f, requests, spread)
			if err != nil {
				return err
			}
			c.Config.Seed = f.gen.Seed
			return a.benchCluster(w, c)
		},
	}
	f.add(cmd)
	fl := cmd.Flags()
	fl.IntVar(&requests, "requests", 2000, "requests of the trace; 0: all of a file")
	fl.BoolVar(&spread, "spread", false, "let requests that share only the first block share nothing")
	fl.IntVar(&c.Config.Nodes, "nodes", 8, "engines")
	fl.Float64Var(&c.CacheShare, "cache-share", 0.2, "size of all caches together, as a share of the trace's distinct blocks")
	fl.Float64Var(&c.Target, "utilisation", 0.9, "prefill utilisation of round robin that the arrival rate is searched for")
	fl.Float64Var(&c.Config.Speed, "speed", 0, "divides the time between arrivals; 0: searched for --utilisation")
	fl.StringVar(&document, "policy", "{}", "the policy's weights, as in its document: {\"kv\":0.4,\"load\":0.4}; its mode is not used")
	fl.StringSliceVar(&c.Modes, "modes", cluster.Modes(), "routing modes to compare")
	fl.IntVar(&c.Config.Engine.MaxSeqs, "slots", 64, "requests that an engine works on at once")
	fl.IntVar(&c.Config.Engine.MaxBatchTokens, "batch-tokens", 2048, "tokens of one engine step")
	fl.Float64Var(&c.Config.Engine.PrefillTokensPerSecond, "prefill-rate", 5000, "prompt tokens per second of one engine")
	fl.DurationVar(&c.Config.Engine.DecodeStep, "decode-step", 15*time.Millisecond, "time of one decode step")
	fl.DurationVar(&c.Config.Engine.DecodePerSequence, "decode-per-sequence", 200*time.Microsecond, "more of it for each sequence in the batch")
	fl.IntVar(&c.Config.IndexBlocks, "index-blocks", 0, "the router's prefix.max_blocks; 0: its default")
	fl.DurationVar(&c.Config.Lifetime, "lifetime", 0, "the router's prefix.lifetime; 0: its default")
	return cmd
}

func loadWorkload(f *traceFlags, requests int, spread bool) (*cluster.Workload, error) {
	source, closeTrace, err := f.open(requests)
	if err != nil {
		return nil, err
	}
	defer closeTrace()
	return cluster.Load(limited(source, requests), spread)
}

func (a *app) benchCluster(w *cluster.Workload, c cluster.Comparison) error {
	report, err := cluster.Compare(w, c)
	if err != nil {
		return err
	}
	return a.show(report, func(t *table) {
		t.line(fmt.Sprintf("%d requests with %d distinct blocks of 512 tokens in %.0f s (speed x%.4g, seed %d); %d engines that cache %d blocks each;\n"+
			"one cache without a bound would find %.3f of the prompt tokens.\n",
			report.Requests, report.Distinct, report.Seconds, report.Speed, report.Seed, report.Nodes, report.CacheBlocks, report.Reusable))
		text := cluster.MarkdownHeader()
		for i := range report.Results {
			text += report.Results[i].MarkdownRow()
		}
		t.line(text[:len(text)-1])
	})
}
