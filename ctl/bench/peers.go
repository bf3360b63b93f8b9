package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/perf/compare"
	"github.com/cognitora/dataplane/perf/peers"
	"github.com/cognitora/dataplane/router/policy"
)

// peersSection is the report's section in perf/REPORTS.md.
const peersSection = "peers routing"

func newPeersRouting(a *cli.App) *cobra.Command {
	cfg, usual := peers.Default(), peers.Default()
	cfg.Progress = a.Err
	var f traceFlags
	write := false
	c := &cobra.Command{
		Use:   "peers-routing",
		Short: "Compare routing quality with KV-aware routers of others, on engines that others simulate",
		Long: "Plays windows of a trace and bursts through each router in turn, to fresh workers of NVIDIA Dynamo's " +
			"mocker, and prints\n" +
			"times, cache hits and paired intervals. The rate that round robin holds is searched for first, unless " +
			"--rate gives it.\n" +
			"Nothing else should run on the host. Run it in the repository, after make build; make perf-peers-routing " +
			"does.",
		Example: "  cgn-ctl bench peers-routing --trace conversation_trace.jsonl --rate-only\n" +
			"  cgn-ctl bench peers-routing --trace conversation_trace.jsonl --rate 42,44,45 --modes cost",
		Args: cli.NoArguments,
		PreRunE: cli.Ranges(map[string][2]float64{"windows": {0, 100},
			"requests": {10, cli.Most}, "repeats": {0, 100}, "bursts": {0, 100}, "workers": {1, 64}, "blocks": {64, cli.Most},
			"speedup": {0.001, 1000}, "most-cpu": {0.01, 1}, "most-late": {0.001, 10}}),
		RunE: cli.Interruptible(func(ctx context.Context, c *cobra.Command, _ []string) error {
			if err := checkPeers(&cfg, &usual, write); err != nil {
				return cli.Misused(err)
			}
			source, closeTrace, err := f.open(cfg.Windows * cfg.Requests)
			if err != nil {
				return err
			}
			defer closeTrace()
			cfg.Trace, cfg.TraceName = source, "the project's generator"
			if f.file != "" {
				cfg.TraceName = filepath.Base(f.file)
			}
			return runPeers(ctx, a, cfg, peersCommand(c.LocalFlags()), write)
		}),
	}
	fl := c.Flags()
	fl.StringVar(&f.file, "trace", "", "trace file in Mooncake's format; default: the project's own generator")
	fl.StringVar(&cfg.Root, "root", usual.Root, "the repository, whose bin is measured")
	fl.StringSliceVar(&cfg.Contestants, "contestants", nil, "only these: "+strings.Join(peers.Contestants(), ", "))
	fl.StringSliceVar(&cfg.Modes, "modes", nil, "further routing modes in which ours takes part")
	fl.BoolVar(&cfg.Events, "kv-events", false, "ours takes part with KV events too")
	fl.IntVar(&cfg.Windows, "windows", usual.Windows, "disjoint windows of the trace")
	fl.IntVar(&cfg.Requests, "requests", usual.Requests, "requests of each window")
	fl.IntVar(&cfg.Scale, "scale", usual.Scale, "divides the lengths of prompts and answers")
	fl.IntSliceVar(&cfg.Loads, "loads", usual.Loads, "shares, in percent, of the rate that round robin holds")
	fl.Float64SliceVar(&cfg.Rates, "rate", nil, "rate that round robin holds, in requests/s, for all windows or for "+
		"each; default: searched for")
	fl.BoolVar(&cfg.RateOnly, "rate-only", false, "search for the rate, and measure nothing")
	fl.IntVar(&cfg.Repeats, "repeats", usual.Repeats, "runs of each contestant at each window and load")
	fl.IntVar(&cfg.Bursts, "bursts", usual.Bursts, "runs of each contestant with the burst")
	fl.IntVar(&cfg.Engines.Workers, "workers", usual.Engines.Workers, "simulated engines")
	fl.IntVar(&cfg.Engines.Blocks, "blocks", usual.Engines.Blocks, "KV blocks of an engine, of 16 tokens each")
	fl.Float64Var(&cfg.Engines.Speedup, "speedup", usual.Engines.Speedup, "divides an engine's times")
	fl.Float64Var(&cfg.MostCPU, "most-cpu", usual.MostCPU, "share of the host's CPU above which a run is void")
	fl.DurationVar(&cfg.MostLate, "most-late", usual.MostLate, "a run is void if 1 % of the requests were sent later "+
		"than this")
	fl.BoolVar(&write, "write", false, "write the result into perf/REPORTS.md")
	return c
}

// checkPeers refuses flags with which nothing can be compared.
func checkPeers(cfg, usual *peers.Config, write bool) error {
	if _, err := os.Stat(filepath.Join(cfg.Root, "bin", "cgn-router")); err != nil {
		return cli.WithHint(err, "run it in the repository after make build, or give its directory with --root")
	}
	if err := errors.Join(cfg.Check(), among("modes", cfg.Modes, policy.ModeNames())); err != nil || !write {
		return err
	}
	if len(cfg.Contestants) > 0 || cfg.RateOnly || cfg.Windows < usual.Windows || cfg.Bursts == 0 || cfg.Repeats == 0 {
		return errors.New("--write with --contestants, --rate-only or fewer windows, repeats or bursts would replace " +
			"the whole table by a part of it")
	}
	return nil
}

func runPeers(ctx context.Context, a *cli.App, cfg peers.Config, command string, write bool) error {
	report, err := peers.Compare(ctx, cfg)
	if report == nil {
		return err
	}
	text := report.Markdown(command)
	if showErr := a.Show(report, func(t *cli.Table) { t.Line(text) }); err == nil {
		err = showErr
	}
	if err != nil || !write {
		return err
	}
	return compare.WriteSection(filepath.Join(cfg.Root, "perf", "REPORTS.md"), peersSection, text)
}

// peersCommand returns the command that makes the same report, with the flags that were given.
func peersCommand(fl *pflag.FlagSet) string {
	command := "cgn-ctl bench peers-routing"
	fl.VisitAll(func(f *pflag.Flag) {
		if !f.Changed || f.Name == "root" || f.Name == "write" {
			return
		}
		value := strings.Trim(f.Value.String(), "[]")
		if f.Name == "trace" {
			value = filepath.Base(value)
		} else if rates, err := fl.GetFloat64Slice(f.Name); err == nil { // String has six decimals
			value = strings.ReplaceAll(strings.Trim(fmt.Sprint(rates), "[]"), " ", ",")
		}
		if strings.ContainsAny(value, " ()") {
			value = "'" + value + "'"
		}
		command += " --" + f.Name
		if f.NoOptDefVal == "" || value != f.NoOptDefVal {
			command += "=" + value
		}
	})
	return command
}
