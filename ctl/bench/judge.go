package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/perf/cluster"
	"github.com/cognitora/dataplane/router/policy"
)

// judgeFlags are the flags of bench cluster that compare modes over several seeds.
type judgeFlags struct {
	workloads, windows []string
	loads              []float64
	seeds              int
	firstSeed          uint64
	variants           []string
	curves             string
	cacheBlocks        int
}

const judgeHelp = "With --workloads or --window it judges modes: it simulates every mode under each kind of traffic, " +
	"load and seed, on all\n" +
	"CPUs, and prints one table. A load is a share of the rate that round robin holds without a growing queue. " +
	"Each figure has its\n" +
	"paired difference to the best other mode with the 95 % interval over the seeds. A mode is ahead or behind " +
	"if the interval\n" +
	"excludes equality. The engines have costs that a router does not know: attention over long prompts, reading " +
	"of KV memory,\n" +
	"preemption, and load reports that are old. The kinds are chat, agents, documents, questions, bursts and " +
	"nodes (of different\n" +
	"speeds, one slower for a minute). Not among all are recovery (one of 3 nodes slower for 3 minutes), and the\n" +
	"kinds long and mixed of bench disagg.\n" +
	"--trace with --window makes parts of a trace a kind."

func (j *judgeFlags) add(fl *pflag.FlagSet) {
	fl.StringSliceVar(&j.workloads, "workloads", nil, "judge the modes under these kinds of traffic, or all")
	fl.StringSliceVar(&j.windows, "window", nil, "judge the modes under these parts of --trace, such as 0/3,1/3,2/3")
	fl.Float64SliceVar(&j.loads, "loads", []float64{0.6, 0.9}, "loads to judge at")
	fl.IntVar(&j.seeds, "seeds", 10, "seeds to judge with")
	fl.Uint64Var(&j.firstSeed, "first-seed", 1, "the first of them; the others follow")
	fl.StringArrayVar(&j.variants, "variant", nil, "judge one more mode, as NAME=DOCUMENT with a policy's document; may be "+
		"given several times")
	fl.StringVar(&j.curves, "curves", "", "write SVGs of TTFT, time per token and hit ratio against loads from 0.3 to "+
		"0.95 into this directory")
	fl.IntVar(&j.cacheBlocks, "cache-blocks", 780, "KV blocks of 512 tokens of one engine when modes are judged")
}

// curveLoads are the loads of the curves.
var curveLoads = []float64{0.3, 0.45, 0.6, 0.75, 0.9, 0.95}

// judged says whether the flags ask to judge modes, and refuses flags that do not belong together.
func (f *clusterFlags) judged(fl *pflag.FlagSet) (bool, error) {
	j := &f.judge
	judge := len(j.workloads) > 0 || len(j.windows) > 0
	misplaced, instead := []string{"loads", "seeds", "first-seed", "variant", "curves", "cache-blocks"},
		"needs --workloads or --window"
	if judge {
		misplaced = []string{"seed", "rate", "utilisation", "speed", "cache-share"}
		instead = "does not go with --workloads or --window, which have --loads and --first-seed"
	}
	for _, name := range misplaced {
		if fl.Changed(name) {
			return judge, fmt.Errorf("--%s %s", name, instead)
		}
	}
	for _, load := range j.loads {
		if err := cli.InRange("loads", strconv.FormatFloat(load, 'g', -1, 64), 0.01, 10); err != nil {
			return judge, err
		}
	}
	switch {
	case len(j.windows) > 0 && f.trace.file == "":
		return judge, errors.New("--window needs --trace, the file whose parts it names")
	case judge && f.trace.file != "" && len(j.windows) == 0:
		return judge, errors.New("--trace with --workloads needs --window: 0/1 is the whole trace")
	}
	_, err := cluster.TrafficsNamed(j.workloads)
	if err != nil {
		err = fmt.Errorf("--workloads %w", err)
	}
	return judge, err
}

// traffics returns the kinds that the flags name, with the engines of the flags.
func (f *clusterFlags) traffics(fl *pflag.FlagSet) ([]cluster.Traffic, error) {
	all, err := cluster.TrafficsNamed(f.judge.workloads)
	if err != nil {
		return nil, err
	}
	if len(f.judge.windows) > 0 {
		if !fl.Changed("requests") {
			f.requests = 0
		}
		w, err := f.load()
		if err != nil {
			return nil, err
		}
		for _, window := range f.judge.windows {
			part, err := windowOf(w, window)
			if err != nil {
				return nil, err
			}
			all = append(all, cluster.Recorded(filepath.Base(f.trace.file)+" "+window, part))
		}
	}
	for i := range all {
		f.fit(fl, &all[i])
	}
	return all, nil
}

// windowOf reads a window such as 0/3.
func windowOf(w *cluster.Workload, window string) (*cluster.Workload, error) {
	of, to, _ := strings.Cut(window, "/")
	i, err1 := strconv.Atoi(of)
	n, err2 := strconv.Atoi(to)
	if errors.Join(err1, err2) != nil {
		return nil, fmt.Errorf("--window %q: must be a part and the number of parts, such as 0/3", window)
	}
	part, err := w.Window(i, n)
	if err != nil {
		return nil, fmt.Errorf("--window %w", err)
	}
	return part, nil
}

// fit gives the traffic's fleet the values of the flags that were given.
func (f *clusterFlags) fit(fl *pflag.FlagSet, t *cluster.Traffic) {
	own, fleet := &f.c.Config, &t.Fleet
	for name, set := range map[string]func(){
		"nodes":               func() { fleet.Nodes = own.Nodes },
		"routers":             func() { fleet.Routers = own.Routers },
		"slots":               func() { fleet.Engine.MaxSeqs = own.Engine.MaxSeqs },
		"batch-tokens":        func() { fleet.Engine.MaxBatchTokens = own.Engine.MaxBatchTokens },
		"prefill-rate":        func() { fleet.Engine.PrefillTokensPerSecond = own.Engine.PrefillTokensPerSecond },
		"prefill-doubles-at":  func() { fleet.Engine.PrefillDoublesAt = own.Engine.PrefillDoublesAt },
		"decode-step":         func() { fleet.Engine.DecodeStep = own.Engine.DecodeStep },
		"decode-per-sequence": func() { fleet.Engine.DecodePerSequence = own.Engine.DecodePerSequence },
		"decode-per-block":    func() { fleet.Engine.DecodePerBlock = own.Engine.DecodePerBlock },
		"cache-blocks":        func() { fleet.Engine.CacheBlocks = f.judge.cacheBlocks },
		"heartbeat":           func() { fleet.Telemetry.Every = own.Telemetry.Every },
		"heartbeat-age":       func() { fleet.Telemetry.Age = own.Telemetry.Age },
		"index-blocks":        func() { fleet.IndexBlocks = own.IndexBlocks },
		"lifetime":            func() { fleet.Lifetime = own.Lifetime },
		"requests":            func() { t.Requests = f.requests },
	} {
		if fl.Changed(name) {
			set()
		}
	}
}

// contestants returns the modes, and the variants of --variant. score_exact is no router's mode, so
// it takes part only if --modes names it. An error is one of the flags.
func (f *clusterFlags) contestants(fl *pflag.FlagSet) ([]cluster.Contestant, error) {
	p, err := policy.Parse([]byte(f.document))
	if err != nil {
		return nil, cli.Misused(fmt.Errorf("--policy: %w", err))
	}
	var all []cluster.Contestant
	for _, mode := range f.c.Modes {
		if _, known := policy.ParseMode(mode); known == nil || fl.Changed("modes") {
			all = append(all, cluster.Contestant{Name: mode, Mode: mode, Policy: p})
		}
	}
	for _, v := range f.judge.variants {
		name, document, given := strings.Cut(v, "=")
		if !given || name == "" || slices.ContainsFunc(all, func(c cluster.Contestant) bool { return c.Name == name }) {
			return nil, cli.Misused(fmt.Errorf("--variant %q: must be NAME=DOCUMENT with a name of its own", v))
		}
		p, err := policy.Parse([]byte(document))
		if err != nil {
			return nil, cli.Misused(fmt.Errorf("--variant %s: %w", name, err))
		}
		all = append(all, cluster.Contestant{Name: name, Mode: p.Mode.String(), Policy: p})
	}
	return all, nil
}

func judgeCluster(ctx context.Context, a *cli.App, fl *pflag.FlagSet, f *clusterFlags) error {
	traffics, err := f.traffics(fl)
	if err != nil {
		return err
	}
	contestants, err := f.contestants(fl)
	if err != nil {
		return err
	}
	t := cluster.Trial{
		Traffics: traffics, Loads: f.judge.loads, Contestants: contestants, Seeds: f.judge.seeds,
		FirstSeed: f.judge.firstSeed,
		Progress:  progress(a),
	}
	if f.judge.curves != "" {
		t.CurveLoads = curveLoads
	}
	j, err := cluster.Judge(ctx, t)
	if err != nil {
		return wayOut(err)
	}
	if f.judge.curves != "" {
		if _, err := j.Draw(f.judge.curves); err != nil {
			return fmt.Errorf("--curves: %w", err)
		}
	}
	return a.Show(j, func(t *cli.Table) { t.Line(strings.TrimSuffix(j.Markdown(), "\n")) })
}
