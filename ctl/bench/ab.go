package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/perf/ab"
	"github.com/cognitora/dataplane/perf/compare"
	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/router/policy"
)

// abFlags are the flags of bench ab.
type abFlags struct {
	trace             traceFlags
	own               ab.Own
	routers, modes    []string
	requests, longest int
	reset             string
	cfg               ab.Config
}

const abHelp = "" +
	"Plays a trace on your engines in two routing modes in turn, with empty caches each time, and prints TTFT, ITL\n" +
	"and hit ratio of both with intervals. A router of its own is started in this process for each run, so that it\n" +
	"remembers nothing of the run before; or --router names two running routers. The engines should have no other\n" +
	"work. Times are the client's and count from when a request was due. An interval has the true median in 95 of\n" +
	"100 comparisons from 6 rounds on; one around 1 shows no difference. A mode compared with itself\n" +
	"(--modes score,score) shows what the engines' noise is. docs/ab.md has more."

func newAB(a *cli.App) *cobra.Command {
	var f abFlags
	c := &cobra.Command{
		Use:   "ab",
		Short: "Compare two routing modes on your own engines",
		Long:  abHelp,
		Example: "  cgn-ctl bench ab --backend http://127.0.0.1:8001 --backend http://127.0.0.1:8002 --modes score,cost\n" +
			"  cgn-ctl bench ab --config router.toml --trace conversation_trace.jsonl --spread --longest 16000 --speed 2\n" +
			"  cgn-ctl bench ab --router ours=http://127.0.0.1:8080 --router theirs=http://127.0.0.1:8090",
		Args: cli.NoArguments,
		RunE: cli.Interruptible(func(ctx context.Context, c *cobra.Command, _ []string) error {
			f.cfg.Progress, f.cfg.Replay.APIKey = a.Err, a.Getenv("OPENAI_API_KEY")
			if err := errors.Join(cli.InRanges(c.Flags(), abRanges), f.check(c.Flags().Changed)); err != nil {
				return cli.Misused(err)
			}
			return f.run(ctx, a)
		}),
	}
	f.trace.add(c)
	fl := c.Flags()
	fl.StringArrayVar(&f.own.Backends, "backend", nil, "engine, once for each: URL[,id=,model=,max_concurrent=,"+
		"api_key_file=,ca=,kv-events=,…], as for cgn-router")
	fl.StringVar(&f.own.Config, "config", "", "configuration file of cgn-router for the routers that are started; its "+
		"addresses, mode, certificate and access log do not count")
	fl.StringArrayVar(&f.routers, "router", nil, "NAME=URL of a running router, given twice: compares two routers in "+
		"place of two modes")
	fl.StringSliceVar(&f.modes, "modes", []string{"score", "cost"}, "the two routing modes")
	fl.IntVar(&f.cfg.Rounds, "rounds", 6, "rounds, each with one run of both; the order alternates")
	fl.IntVar(&f.requests, "requests", 300, "requests of a run; 0: all of a file")
	fl.IntVar(&f.cfg.Warmup, "warmup", 20, "requests before the first round that do not count, with each of both")
	fl.IntVar(&f.longest, "longest", 0, "leave out requests with a longer prompt, in the trace's tokens; 0: none")
	fl.BoolVar(&f.cfg.Replay.Text.Spread, "spread", false, "let requests that share only the first block share "+
		"nothing; for the public conversation trace")
	fl.StringVar(&f.reset, "reset", string(ab.ByText), "how a run finds no blocks of earlier runs: text (every run has "+
		"another text), cache_salt (another cache_salt, for vLLM), vllm (POST /reset_prefix_cache), sglang "+
		"(POST /flush_cache), none")
	fl.StringVar(&f.cfg.Replay.Model, "model", "", "model to ask for; default: the first that the router lists")
	fl.Float64Var(&f.cfg.Replay.Speed, "speed", 1, "divides the time between requests")
	fl.IntVar(&f.cfg.Replay.MaxOutputTokens, "max-output-tokens", 0, "cap on the answers; 0: as long as in the trace")
	fl.BoolVar(&f.cfg.Replay.IgnoreEOS, "ignore-eos", true, "ask for answers of the trace's length (ignore_eos), so "+
		"that both modes do the same work; false for engines that refuse it")
	fl.DurationVar(&f.cfg.Replay.Timeout, "timeout", 10*time.Minute, "time one request has")
	return c
}

// abRanges are the allowed values of the flags.
var abRanges = map[string][2]float64{
	"rounds": {1, 1000}, "requests": {0, cli.Most}, "warmup": {0, cli.Most}, "longest": {0, cli.Most},
	"speed": {1e-6, 1e6}, "max-output-tokens": {0, cli.Most}, "timeout": {0.001, cli.Most}, "rate": rates,
}

// check refuses flags with which nothing can be compared, and fills in the sides.
func (f *abFlags) check(given func(flag string) bool) error {
	if err := among("reset", []string{f.reset}, ab.Resets()); err != nil {
		return err
	}
	f.cfg.Reset = ab.Reset(f.reset)
	if len(f.routers) == 0 {
		return f.checkOwn()
	}
	for _, flag := range []string{"backend", "config", "modes"} {
		if given(flag) {
			return fmt.Errorf("--%s and --router are both given; --router names routers that run already, each with its "+
				"own engines and mode", flag)
		}
	}
	if len(f.routers) != 2 {
		return cli.WithHint(fmt.Errorf("--router is given %d times; it must be two routers", len(f.routers)),
			"for two modes, start one router for each: cgn-router --mode cost --listen 127.0.0.1:8090 ...; "+
				"or leave --router out and name the engines with --backend")
	}
	if f.cfg.Reset.AsksEngines() {
		return fmt.Errorf("--reset %s: running routers would go on believing in the blocks; use text or cache_salt",
			f.reset)
	}
	first := ""
	for i, text := range f.routers {
		name, at, found := strings.Cut(text, "=")
		at, err := cli.Endpoint("router", at)
		if !found || name == "" || err != nil {
			return fmt.Errorf("--router %q: must be NAME=http://HOST:PORT", address.Redact(text))
		}
		if at == first {
			return cli.WithHint(fmt.Errorf("--router %q and %q are the same router; compare two", f.routers[0], text),
				"for what the engines' noise is: --backend for each engine, and --modes score,score")
		}
		if i > 0 && f.cfg.Sides[0].Name == name {
			return fmt.Errorf("--router %q and %q have the same name; give each its own", f.routers[0], text)
		}
		first = at
		f.cfg.Sides[i] = ab.Side{Name: name, Start: func(context.Context) (*ab.Site, error) {
			return ab.Running(at), nil
		}}
	}
	return nil
}

// checkOwn fills in two sides with routers that are started here.
func (f *abFlags) checkOwn() error {
	if len(f.own.Backends) == 0 && f.own.Config == "" {
		return cli.WithHint(errors.New("--backend is missing: on which engines?"),
			"for example: cgn-ctl bench ab --backend http://127.0.0.1:8001 --backend http://127.0.0.1:8002")
	}
	if len(f.modes) != 2 {
		return fmt.Errorf("--modes %s: must be two modes", strings.Join(f.modes, ","))
	}
	f.own.Key = f.cfg.Replay.APIKey != ""
	f.own.Progress = f.cfg.Progress
	f.own.Logger = slog.New(slog.NewTextHandler(f.cfg.Progress, &slog.HandlerOptions{Level: slog.LevelWarn}))
	for i, name := range f.modes {
		mode, err := policy.ParseMode(name)
		if err != nil {
			return fmt.Errorf("--modes: %w", err)
		}
		if mode == policy.Direct {
			return errors.New("--modes: direct needs a node in each request, and the trace names none")
		}
		if err := f.own.Check(mode.String()); err != nil {
			return err
		}
		f.cfg.Sides[i] = ab.Side{Name: mode.String(), Start: func(ctx context.Context) (*ab.Site, error) {
			return f.own.Start(ctx, mode.String())
		}}
	}
	if s := &f.cfg.Sides; s[0].Name == s[1].Name {
		s[0].Name, s[1].Name = s[0].Name+" a", s[1].Name+" b"
	}
	return nil
}

func (f *abFlags) run(ctx context.Context, a *cli.App) error {
	if err := f.load(); err != nil {
		return err
	}
	f.cfg.Salt = rand.Uint64() | 1
	report, err := ab.Run(ctx, f.cfg)
	if report == nil {
		return err
	}
	showErr := a.Show(report, func(t *cli.Table) { writeAB(t, report) })
	return errors.Join(err, showErr)
}

// load reads the trace.
func (f *abFlags) load() error {
	most := f.requests
	if f.longest > 0 {
		most *= 20 // of the generator, whose long prompts are left out
	}
	source, closeTrace, err := f.trace.open(most)
	if err != nil {
		return err
	}
	defer closeTrace()
	leftOut, shortest := 0, 0
	for q, err := range trace.All(source) {
		switch {
		case err != nil && f.trace.file != "":
			return fmt.Errorf("--trace %s: %w", f.trace.file, err)
		case err != nil:
			return err
		case f.longest > 0 && q.InputLength > f.longest:
			if leftOut++; leftOut == 1 || q.InputLength < shortest {
				shortest = q.InputLength
			}
			continue
		}
		if f.cfg.Requests = append(f.cfg.Requests, q); len(f.cfg.Requests) == f.requests {
			break
		}
	}
	switch {
	case len(f.cfg.Requests) == 0 && leftOut > 0:
		return fmt.Errorf("--longest %d leaves out all %s; the shortest prompt has %d tokens", f.longest,
			ab.Count(leftOut, "request"), shortest)
	case leftOut > 0:
		fmt.Fprintf(f.cfg.Progress, "left out: %s with more than %d tokens\n", ab.Count(leftOut, "request"), f.longest)
	}
	if len(f.cfg.Requests) == 0 {
		return errors.New("the trace has no requests to play; look at --trace")
	}
	return nil
}

// writeAB writes a comparison for people.
func writeAB(t *cli.Table, r *ab.Report) {
	t.Line(fmt.Sprintf("model %s, %s of %s in %.0f s (speed x%.4g), reset by %s;\n"+
		"one cache without a bound would find %.3f of the trace's prompt tokens.", r.Model, ab.Count(r.Rounds, "round"),
		ab.Count(r.Requests, "request"), r.Span, r.Speed, r.Reset, r.Reusable))
	if r.Scale > 0 {
		t.Line(fmt.Sprintf("The engines count %.2f prompt tokens for each of the trace's.", r.Scale))
	}
	t.Line("")
	a, b := r.Sides[0], r.Sides[1]
	ratio := func(v float64) string { return fmt.Sprintf("%.3f", v) }
	t.Row("", strings.ToUpper(a), strings.ToUpper(b), strings.ToUpper(strings.ReplaceAll(b+"/"+a, " ", "")))
	for i := range r.Metrics {
		m := &r.Metrics[i]
		cells := []any{m.Title, "-", "-", "-"}
		if m.Sides != nil {
			format := ratio
			if strings.HasSuffix(m.Name, "_ms") {
				format = significant
			}
			cells[1], cells[2] = bounded(&m.Sides[0], format), bounded(&m.Sides[1], format)
		}
		if m.Ratio != nil {
			cells[3] = bounded(m.Ratio, ratio)
		}
		t.Row(cells...)
	}
	t.Row("refused requests", r.Refused[0], r.Refused[1])
	t.Row("failed requests", r.Failed[0], r.Failed[1])
	t.Line("\n" + abNotes(r))
}

// abNotes says how far the figures can be trusted.
func abNotes(r *ab.Report) string {
	sure := compare.IntervalOf(make([]float64, r.Rounds)).Sure
	text := fmt.Sprintf("Medians of %d rounds, with the interval that has the true median with %.0f %% confidence.",
		r.Rounds, 100*sure)
	if sure == 0 {
		text = "One round has no interval."
	}
	if sure < 0.95 {
		text += " 6 rounds or more give 95 %."
	}
	if r.Refused != [2]int{} || r.Failed != [2]int{} {
		text += fmt.Sprintf("\nOf %d requests of each side some had no answer, and have no times.", r.Rounds*r.Requests)
	}
	if r.LateTooMuch() {
		text += fmt.Sprintf("\nThis machine sent a request %.2f s late: it was busy, or --speed is too high for it.", r.Late)
	}
	return text
}

// bounded formats a median with its interval. One value has no interval.
func bounded(i *compare.Interval, format func(float64) string) string {
	if i.Sure == 0 {
		return format(i.Median)
	}
	return format(i.Median) + " (" + format(i.Low) + " to " + format(i.High) + ")"
}

// significant formats v with three significant digits.
func significant(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
