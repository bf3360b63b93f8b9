package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/perf/compare"
)

const defaultRepetitions = 3

func newCompare(a *cli.App) *cobra.Command {
	cfg := compare.Config{Progress: a.Err}
	write := false
	c := &cobra.Command{
		Use:   "compare",
		Short: "Measure this router beside haproxy, nginx and other routers that are installed",
		Long: "Sends the same requests through each router in turn to instant engines and prints CPU, latency and " +
			"memory side by side.\n" +
			"The quick form takes about two minutes with haproxy and nginx, the full form up to an hour. Run it " +
			"in the\n" +
			"repository, after make build; make perf does.",
		Args:    cli.NoArguments,
		PreRunE: cli.Ranges(map[string][2]float64{"repetitions": {1, cli.Most}, "longest": {0, cli.Most}}),
		RunE: cli.Interruptible(func(ctx context.Context, _ *cobra.Command, _ []string) error {
			return runCompare(ctx, a, cfg, write)
		}),
	}
	f := c.Flags()
	f.StringVar(&cfg.Root, "root", ".", "the repository, whose bin is measured")
	f.BoolVar(&cfg.Full, "full", false, "the full form")
	f.StringSliceVar(&cfg.Contestants, "contestants", nil, "only these; see perf/compare/contestants.toml")
	f.StringSliceVar(&cfg.Scenarios, "scenarios", nil, "only these; see perf/compare/scenarios.toml")
	f.IntVar(&cfg.Repetitions, "repetitions", defaultRepetitions, "how often each measurement is made")
	f.DurationVar(&cfg.Longest, "longest", 0, "no measurement's window is longer, to try a form out; 0: as "+
		"scenarios.toml has it")
	f.BoolVar(&write, "write", false, "write the result into perf/REPORTS.md and perf/plots")
	return c
}

// checkCompare refuses flags with which nothing can be compared.
func checkCompare(cfg *compare.Config, write bool) error {
	if _, err := os.Stat(filepath.Join(cfg.Root, "perf", "REPORTS.md")); err != nil {
		return cli.WithHint(fmt.Errorf("--root %s: is not the repository: %w", cfg.Root, err),
			"run it in the repository, or give its directory with --root")
	}
	contestants, scenarios := compare.Contestants(), compare.Scenarios()
	var names, entered []string
	for i := range scenarios {
		s := &scenarios[i]
		names = append(names, s.Name)
		if slices.Contains(cfg.Scenarios, s.Name) && s.Quick == 0 && !cfg.Full {
			return fmt.Errorf("--scenarios: %s is part of the full form: add --full", s.Name)
		}
	}
	for _, c := range contestants {
		entered = append(entered, c.Name)
	}
	if err := errors.Join(among("scenarios", cfg.Scenarios, names), among("contestants", cfg.Contestants,
		entered)); err != nil || !write {
		return err
	}
	return checkWrite(cfg)
}

// among returns an error if one of the flag's values is unknown.
func among(flag string, values, known []string) error {
	for _, v := range values {
		if !slices.Contains(known, v) {
			return fmt.Errorf("--%s %q: must be some of %s", flag, v, strings.Join(known, ", "))
		}
	}
	return nil
}

// checkWrite refuses to replace a whole table by a part of it.
func checkWrite(cfg *compare.Config) error {
	switch {
	case len(cfg.Scenarios) > 0:
		return errors.New("--write with --scenarios would replace the whole table by a part of it")
	case cfg.Longest > 0:
		return errors.New("--write with --longest would replace the whole table by one of a trial")
	case len(cfg.Contestants) == 0:
		return nil
	case !cfg.Full:
		return errors.New("--write with --contestants would replace the whole table by a part of it; it is for the " +
			"full form, --full")
	}
	for _, c := range []string{"direct", "ours", "haproxy", "nginx"} {
		if !slices.Contains(cfg.Contestants, c) {
			return fmt.Errorf("--write with --contestants would replace the whole table by one without %s: add it", c)
		}
	}
	return nil
}

// measured tells whether the report has any figure.
func measured(r *compare.Report) bool {
	for _, s := range r.Results {
		for _, p := range s.Points {
			for _, row := range p.Rows {
				if slices.ContainsFunc(row.Figures, func(f compare.Figures) bool { return len(f) > 0 }) {
					return true
				}
			}
		}
	}
	return false
}

func runCompare(ctx context.Context, a *cli.App, cfg compare.Config, write bool) error {
	if err := checkCompare(&cfg, write); err != nil {
		return err
	}
	report, err := compare.Run(ctx, cfg)
	switch {
	case report == nil:
		return err
	case report.Interrupted && !write:
		err = errors.New("interrupted")
	case err == nil && !measured(report):
		err = errors.New("nothing was measured: see above what is missing or failed")
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
	showErr := a.Show(report, func(t *cli.Table) { t.Line(text) })
	if err = errors.Join(err, showErr); err != nil || !write {
		return errors.Join(err, report.Err())
	}
	if err := compare.WriteSection(filepath.Join(cfg.Root, "perf", "REPORTS.md"), section, text); err != nil {
		return err
	}
	if _, err := report.Plots(filepath.Join(cfg.Root, "perf", "plots")); err != nil {
		return err
	}
	return report.Err()
}
