package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/perf/compare"
	"github.com/cognitora/dataplane/perf/disturb"
)

// disturbSection is the report's section in perf/REPORTS.md.
const disturbSection = "disturb"

func newDisturb(a *cli.App) *cobra.Command {
	cfg, usual := disturb.Config{Progress: a.Err}, disturb.Default()
	root, write := "", false
	c := &cobra.Command{
		Use: "disturb",
		Short: "Replay a trace with a CPU hog on one node and packet loss to another, with the kernel's signals and " +
			"without",
		Long: "Starts etcd, a router, and engines with their agents in network namespaces and control groups, " +
			"disturbs two of the nodes and replays\n" +
			"a trace, in each mode in turn. Needs root, and takes about a minute for each mode and round. Run it in " +
			"the repository, after make build;\n" +
			"make perf-signals does.",
		Args: cli.NoArguments,
		RunE: cli.Interruptible(func(ctx context.Context, _ *cobra.Command, _ []string) error {
			if err := cfg.Check(); err != nil {
				return err
			}
			if write && len(cfg.Modes) > 0 {
				return fmt.Errorf("--write with --modes would replace the whole table by a part of it")
			}
			cfg.Bin = filepath.Join(root, "bin")
			if _, err := os.Stat(filepath.Join(cfg.Bin, "cgn-router")); err != nil {
				return cli.WithHint(err, "run it in the repository after make build, or give its directory with --root")
			}
			report, err := disturb.Run(ctx, cfg)
			if report == nil || len(report.Results) == 0 {
				return err
			}
			text := report.Markdown(disturbCommand(&cfg))
			if showErr := a.Show(report, func(t *cli.Table) { t.Line(text) }); err == nil {
				err = showErr
			}
			if err != nil || !write {
				return err
			}
			return compare.WriteSection(filepath.Join(root, "perf", "REPORTS.md"), disturbSection, text)
		}),
	}
	f := c.Flags()
	f.StringVar(&root, "root", ".", "the repository, whose bin is measured")
	f.StringSliceVar(&cfg.Modes, "modes", nil, "only these: "+strings.Join(disturb.Modes(), ", "))
	f.IntVar(&cfg.Rounds, "rounds", usual.Rounds, "runs of each mode, in turn")
	f.StringVar(&cfg.Policy, "policy", usual.Policy, "policy document of the mode on")
	f.IntVar(&cfg.Nodes, "nodes", usual.Nodes, "nodes; the first has the hogs, the second the loss")
	f.IntVar(&cfg.Hogs, "hogs", usual.Hogs, "processes that never sleep, on the first node")
	f.Float64Var(&cfg.Loss, "loss", usual.Loss, "share of the packets that are lost at the second node, each way")
	f.StringVar(&cfg.Trace, "trace", "", "trace file in Mooncake's format; default: the project's own generator")
	f.IntVar(&cfg.Requests, "requests", usual.Requests, "requests of each run")
	f.Float64Var(&cfg.Speed, "speed", usual.Speed, "divides the time between requests")
	f.BoolVar(&write, "write", false, "write the result into perf/REPORTS.md")
	return c
}

// disturbCommand returns the command that makes the same report.
func disturbCommand(cfg *disturb.Config) string {
	command := fmt.Sprintf("cgn-ctl bench disturb --rounds %d --nodes %d --hogs %d --loss %g --requests %d --speed %g",
		cfg.Rounds, cfg.Nodes, cfg.Hogs, cfg.Loss, cfg.Requests, cfg.Speed)
	if cfg.Trace != "" {
		command += " --trace " + filepath.Base(cfg.Trace)
	}
	if cfg.Policy != disturb.DefaultPolicy {
		command += fmt.Sprintf(" --policy '%s'", cfg.Policy)
	}
	if len(cfg.Modes) > 0 {
		command += " --modes " + strings.Join(cfg.Modes, ",")
	}
	return command
}
