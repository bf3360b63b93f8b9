package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/perf/compare"
)

const defaultRepetitions = 3

func newCompare(a *app) *cobra.Command {
	cfg := compare.Config{Progress: a.err}
	write := false
	c := &cobra.Command{
		Use:   "compare",
		Short: "Measure this router beside haproxy, nginx and other routers that are installed",
		Long: "Sends the same requests through each router in turn to instant engines and prints CPU, latency and memory side by side.\n" +
			"The quick form takes about two minutes with haproxy and nginx, the full form up to an hour. Run it in the\n" +
			"repository, after make build; make perf does.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, release := interruptible(c.Context())
			defer release()
			return a.compare(ctx, cfg, write)
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Root, "root", ".", "the repository, whose bin is measured")
	f.BoolVar(&cfg.Full, "full", false, "the full form")
	f.StringSliceVar(&cfg.Contestants, "contestants", nil, "only these; see perf/compare/contestants.toml")
	f.StringSliceVar(&cfg.Scenarios, "scenarios", nil, "only these; see perf/compare/scenarios.toml")
	f.IntVar(&cfg.Repetitions, "repetitions", defaultRepetitions, "how often each measurement is made")
	f.DurationVar(&cfg.Longest, "longest", 0, "no measurement's window is longer, to try a form out; 0: as scenarios.toml has it")
	f.BoolVar(&write, "write", false, "write the result into perf/RESULTS.md and perf/plots")
	return c
}

func (a *app) compare(ctx context.Context, cfg compare.Config, write bool) error {
	report, err := compare.Run(ctx, cfg)
	if report == nil {
		return err
	}
	command, section := "cgn-ctl bench compare", "compare quick"
	if cfg.Full {
		command, section = command+" --full", "compare full"
	}
	for _, f := range []struct {
		flag   string
		values []string
	}{{"contestants", cfg.Contestants}, {"scenarios", cfg.Scenarios}} {
		if len(f.values) > 0 {
			command += fmt.Sprintf(" --%s %q", f.flag, strings.Join(f.values, ","))
		}
	}
	if cfg.Repetitions != defaultRepetitions {
		command += fmt.Sprintf(" --repetitions %d", cfg.Repetitions)
	}
	if cfg.Longest > 0 {
		command += fmt.Sprintf(" --longest %v", cfg.Longest)
	}
	text := report.Markdown(command)
	showErr := a.show(report, func(t *table) { t.line(text) })
	if err = errors.Join(err, showErr); err != nil || !write {
		return errors.Join(err, report.Err())
	}
	if err := compare.WriteSection(filepath.Join(cfg.Root, "perf", "RESULTS.md"), section, text); err != nil {
		return err
	}
	if _, err := report.Plots(filepath.Join(cfg.Root, "perf", "plots")); err != nil {
		return err
	}
	return report.Err()
}
