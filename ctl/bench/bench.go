// Package bench has the commands that load a fleet and measure it.
package bench

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/rights"
	"github.com/cognitora/dataplane/perf/replay"
	"github.com/cognitora/dataplane/perf/trace"
)

// traceFlags select a trace: a file, or the generator's.
type traceFlags struct {
	file string
	gen  trace.Generator
}

func (f *traceFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.file, "trace", "", "trace file in Mooncake's format; default: the project's own generator")
	f.addGenerator(c)
}

func (f *traceFlags) addGenerator(c *cobra.Command) {
	c.Flags().Uint64Var(&f.gen.Seed, "seed", 1, "seed of the generator")
	c.Flags().Float64Var(&f.gen.PerSecond, "rate", 3.4, "requests per second of the generator")
}

// rates are the allowed values of the generator's flag.
var rates = [2]float64{0.001, 1e6}

// open returns the trace, and a function that closes it.
func (f *traceFlags) open(requests int) (trace.Source, func() error, error) {
	if f.file == "" {
		f.gen.Requests = requests
		return f.gen.Source(), func() error { return nil }, nil
	}
	file, err := rights.Open(f.file)
	if err != nil {
		return nil, nil, fmt.Errorf("--trace: %w", err)
	}
	return trace.NewReader(file), file.Close, nil
}

// Command is cgn-ctl bench.
func Command(a *cli.App) *cobra.Command {
	return cli.Group("bench", "Load a fleet and measure it", newReplay(a), newTrace(a), newLoad(a), newEngine(a),
		newCompare(a), newAB(a), newCluster(a), newDisturb(a), newGate(a), newAttached(a), newPairs(a),
		newPeersRouting(a), newDisagg(a), newWarm(a), newFlood(a))
}

func newReplay(a *cli.App) *cobra.Command {
	var f traceFlags
	cfg := replay.Config{}
	c := &cobra.Command{
		Use:   "replay",
		Short: "Play a trace against an OpenAI endpoint and report latency and cache hits",
		Long: "Plays a trace at its own spacing, divided by --speed, as streaming chat requests. Times count from " +
			"when a request\n" +
			"was due, so a system that stalls cannot hide it.",
		Example: "  cgn-ctl bench replay --turns 500 --speed 20\n  cgn-ctl bench replay --trace " +
			"conversation_trace.jsonl --spread --speed 10",
		Args: cli.NoArguments,
		PreRunE: cli.Ranges(map[string][2]float64{"speed": {1e-6, 1e6}, "turns": {0, cli.Most},
			"max-output-tokens": {0, cli.Most}, "timeout": {0.001, cli.Most}, "rate": rates}),
		RunE: func(c *cobra.Command, _ []string) error {
			source, closeTrace, err := f.open(cfg.Turns)
			if err != nil {
				return err
			}
			defer closeTrace()
			if cfg.URL, err = cli.Endpoint("url", cfg.URL); err != nil {
				return err
			}
			cfg.Source, cfg.APIKey = source, os.Getenv("OPENAI_API_KEY")
			ctx, stop := signal.NotifyContext(c.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return runReplay(ctx, a, cfg)
		},
	}
	f.add(c)
	fl := c.Flags()
	fl.StringVar(&cfg.URL, "url", "http://127.0.0.1:8080",
		"endpoint, with /v1 or without; its key is taken from OPENAI_API_KEY")
	fl.StringVar(&cfg.Model, "model", "sim", "model to ask for")
	fl.IntVar(&cfg.Turns, "turns", 2000, "requests to send; 0: the whole trace")
	fl.Float64Var(&cfg.Speed, "speed", 1, "divides the time between requests")
	fl.IntVar(&cfg.MaxOutputTokens, "max-output-tokens", 0, "cap on the answers; 0: as long as in the trace")
	fl.DurationVar(&cfg.Timeout, "timeout", 10*time.Minute, "time one request has")
	fl.BoolVar(&cfg.Text.Spread, "spread", false, "let requests that share only the first block share nothing; for "+
		"the public conversation trace")
	return c
}

func runReplay(ctx context.Context, a *cli.App, cfg replay.Config) error {
	result, err := replay.Run(ctx, cfg)
	if result == nil {
		return err
	}
	if showErr := a.Show(result, func(t *cli.Table) {
		t.Line(replay.MarkdownHeader() + result.MarkdownRow(cfg.URL) + "\n" + result.Details())
	}); showErr != nil {
		return showErr
	}
	return err
}

func newTrace(a *cli.App) *cobra.Command {
	var f traceFlags
	c := &cobra.Command{
		Use: "trace", Short: "Write a generated trace as JSON lines", Args: cli.NoArguments,
		PreRunE: cli.Ranges(map[string][2]float64{"rate": rates, "requests": {1, cli.Most}}),
		RunE:    func(*cobra.Command, []string) error { return trace.Write(a.Out, f.gen.Source()) },
	}
	f.addGenerator(c)
	c.Flags().IntVar(&f.gen.Requests, "requests", 2000, "number of requests")
	return c
}
