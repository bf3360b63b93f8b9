package peers

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/markdown"
	"github.com/cognitora/dataplane/perf/process"
)

// Report is the result of a comparison.
type Report struct {
	Config   Config    `json:"-"`
	Entrants []Entrant `json:"contestants"`
	// Rates are the rates that round robin holds in each window. Probes are the search's steps.
	Rates       []float64     `json:"rates,omitempty"`
	Probes      []Probe       `json:"probes,omitempty"`
	Runs        []Run         `json:"runs"`
	Took        time.Duration `json:"took_ns"`
	Interrupted bool          `json:"interrupted"`
}

// Entrant is a contestant, and the reason if it did not take part.
type Entrant struct {
	Name    string `json:"name"`
	Note    string `json:"note"`
	Version string `json:"version"`
	Missing string `json:"missing,omitempty"`
}

// line returns a run in a line of progress.
func (r *Run) line() string {
	text := fmt.Sprintf("%s: %s: ", r.Place, r.Contestant)
	if q := r.Replay; q != nil {
		text += fmt.Sprintf("TTFT mean %.0f, p50 %.0f, p90 %.0f, p99 %.0f, E2E mean %.0f ms; ", 1e3*q.TTFT.Mean,
			1e3*q.TTFT.P50, 1e3*q.TTFT.P90, 1e3*q.TTFT.P99, 1e3*q.E2E.Mean)
		text += fmt.Sprintf("cached %.3f, busiest %.2f, %d of %d failed, CPU %.0f %% (own %.0f), late %.1f ms",
			q.HitRatio, r.Busiest, q.Failed(), q.Requests, 100*r.CPU, 100*r.Own, 1e3*q.LateP99)
		if q.Failed() > 0 {
			text += fmt.Sprintf("; failures %v, such as %.200s", q.Failures, q.Sample)
		}
	}
	if r.Void != "" {
		text += "; VOID: " + r.Void
	}
	return text
}

// columns of the table, each a mean over repeats.
var columns = []struct {
	title, format string
	value         func(r *Run) float64
}{
	{"requests/s", "%.1f", func(r *Run) float64 { return r.PerSecond }},
	{"TTFT mean ms", "%.0f", func(r *Run) float64 { return 1e3 * r.Replay.TTFT.Mean }},
	{"p50", "%.0f", func(r *Run) float64 { return 1e3 * r.Replay.TTFT.P50 }},
	{"p90", "%.0f", func(r *Run) float64 { return 1e3 * r.Replay.TTFT.P90 }},
	{"p99", "%.0f", func(r *Run) float64 { return 1e3 * r.Replay.TTFT.P99 }},
	{"E2E mean ms", "%.0f", func(r *Run) float64 { return 1e3 * r.Replay.E2E.Mean }},
	{"cached", "%.3f", func(r *Run) float64 { return r.Replay.HitRatio }},
	{"busiest ÷ mean", "%.2f", func(r *Run) float64 { return r.Busiest }},
	{"failed", "%.3g", func(r *Run) float64 { return float64(r.Replay.Failed()) }},
	{"host CPU %", "%.0f", func(r *Run) float64 { return 100 * r.CPU }},
	{"of it own %", "%.0f", func(r *Run) float64 { return 100 * r.Own }},
	{"late p99 ms", "%.1f", func(r *Run) float64 { return 1e3 * r.Replay.LateP99 }},
}

// compared are the figures of which "ahead" is said.
var compared = []struct {
	title string
	value func(r *Run) float64
}{
	{"TTFT mean", func(r *Run) float64 { return r.Replay.TTFT.Mean }},
	{"TTFT p90", func(r *Run) float64 { return r.Replay.TTFT.P90 }},
	{"E2E mean", func(r *Run) float64 { return r.Replay.E2E.Mean }},
}

// valid returns the run that counts at a place, if there is one.
func (r *Report) valid(p Place, contestant string) *Run {
	for i := range r.Runs {
		if run := &r.Runs[i]; run.Place == p && run.Contestant == contestant && run.Void == "" {
			return run
		}
	}
	return nil
}

// kinds returns the places without their repeats: all loads and windows, and the burst.
func (r *Report) kinds() (all []Place) {
	for _, load := range r.Config.Loads {
		for window := range r.Config.Windows {
			all = append(all, Place{Window: window + 1, Load: load})
		}
	}
	return append(all, Place{})
}

// repeats returns the runs of a contestant that count, at one kind of place.
func (r *Report) repeats(kind Place, contestant string) (runs []*Run) {
	for repeat := range max(r.Config.Repeats, r.Config.Bursts) {
		kind.Repeat = repeat + 1
		if run := r.valid(kind, contestant); run != nil {
			runs = append(runs, run)
		}
	}
	return runs
}

// Comparison is our router in its default mode beside another contestant, at one load.
type Comparison struct {
	Load    int      `json:"load_percent"` // 0: the burst
	Against string   `json:"against"`
	Figures []Paired `json:"figures"` // TTFT mean, TTFT p90, E2E mean: ours divided by theirs
	// Failed are the requests without a complete answer, of ours and of theirs.
	Failed [2]int `json:"failed"`
}

// Comparisons pairs the runs of ours and of each other contestant at the same place.
func (r *Report) Comparisons() (all []Comparison) {
	for _, load := range append(slices.Clone(r.Config.Loads), 0) {
		for _, e := range r.Entrants {
			if e.Name == ours || e.Missing != "" {
				continue
			}
			if c := r.comparison(load, e.Name); c.Figures[0].N > 0 {
				all = append(all, c)
			}
		}
	}
	return all
}

func (r *Report) comparison(load int, against string) Comparison {
	c := Comparison{Load: load, Against: against}
	var of, to []*Run
	for i := range r.Runs {
		our := &r.Runs[i]
		if our.Contestant != ours || our.Load != load || our.Void != "" {
			continue
		}
		if their := r.valid(our.Place, against); their != nil {
			of, to = append(of, our), append(to, their)
			c.Failed[0] += our.Replay.Failed()
			c.Failed[1] += their.Replay.Failed()
		}
	}
	for _, figure := range compared {
		c.Figures = append(c.Figures, quotient(values(of, figure.value), values(to, figure.value)))
	}
	return c
}

func values(runs []*Run, value func(r *Run) float64) (v []float64) {
	for _, run := range runs {
		v = append(v, value(run))
	}
	return v
}

// Markdown formats the report. command is the command that made it.
func (r *Report) Markdown(command string) string {
	var b strings.Builder
	r.writeIntroduction(&b, command)
	for _, e := range r.Entrants {
		what := e.Version
		if e.Missing != "" {
			what = "**missing**: " + e.Missing
		}
		fmt.Fprintf(&b, "- %s: %s; %s\n", e.Name, what, e.Note)
	}
	r.writeTable(&b)
	r.writeComparisons(&b)
	r.writeVoid(&b)
	return markdown.Wrap(b.String())
}

func (r *Report) writeIntroduction(b *strings.Builder, command string) {
	c := &r.Config
	fmt.Fprintf(b, "Measured %s, commit %s, %s, %s, in %.0f min.\n\n    %s\n\n", time.Now().UTC().Format("2006-01-02"),
		buildinfo.Commit(), process.Machine(runtime.NumCPU()), runtime.Version(), r.Took.Minutes(), command)
	e := &c.Engines
	fmt.Fprintf(b, "Engines: %d workers of dynamo.mocker, each with %d blocks of %d tokens, at %g of its speed. "+
		"Trace: %s, %d windows of %d requests, lengths divided by %d. ", e.Workers, e.Blocks, e.BlockTokens, e.Speedup,
		c.TraceName, c.Windows, c.Requests, c.Scale)
	fmt.Fprintf(b, "Burst: %d requests in %v with %d common tokens and %d of their own. ", burstRequests, burstTime,
		burstShared, burstOwn)
	fmt.Fprintf(b, "Each run has fresh workers and a fresh router. Times count from when a request was due. A figure is "+
		"the mean of up to %d repeats, of %d for the burst.\n\n", c.Repeats, c.Bursts)
	if len(r.Rates) > 0 {
		fmt.Fprintf(b, "Round robin holds %s requests/s in the windows, %s.\n\n", each("%.1f", r.Rates), r.foundBy())
	}
	if r.Interrupted {
		b.WriteString("**Interrupted**: what follows is not all.\n\n")
	}
}

// foundBy says where the rates are from.
func (r *Report) foundBy() string {
	if len(r.Probes) == 0 {
		return "by --rate"
	}
	var steps []string
	for _, p := range r.Probes {
		text := fmt.Sprintf("%d: %.1f", p.Window, p.PerSecond)
		if !p.Held {
			text += " is too much"
		}
		steps = append(steps, text)
	}
	return "by the search (" + strings.Join(steps, ", ") + ")"
}

// each formats values with commas between them.
func each(format string, values []float64) string {
	var texts []string
	for _, v := range values {
		texts = append(texts, fmt.Sprintf(format, v))
	}
	return strings.Join(texts, ", ")
}

func (r *Report) writeTable(b *strings.Builder) {
	if len(r.Runs) == 0 {
		return
	}
	b.WriteString("\n| load | window | | runs |")
	for _, col := range columns {
		b.WriteString(" " + col.title + " |")
	}
	b.WriteString("\n|---|---|---|---|" + strings.Repeat("---|", len(columns)) + "\n")
	for _, kind := range r.kinds() {
		for _, e := range r.Entrants {
			runs := r.repeats(kind, e.Name)
			if len(runs) == 0 {
				continue
			}
			window := fmt.Sprint(kind.Window)
			if kind.Window == 0 {
				window = ""
			}
			fmt.Fprintf(b, "| %s | %s | %s | %d |", loadName(kind.Load), window, e.Name, len(runs))
			for _, col := range columns {
				sum := 0.0
				for _, run := range runs {
					sum += col.value(run)
				}
				fmt.Fprintf(b, " "+col.format+" |", sum/float64(len(runs)))
			}
			b.WriteString("\n")
		}
	}
}

// loadName names a load, and the burst.
func loadName(percent int) string {
	if percent == 0 {
		return "burst"
	}
	return fmt.Sprintf("%d %%", percent)
}

func (r *Report) writeComparisons(b *strings.Builder) {
	all := r.Comparisons()
	if len(all) == 0 {
		return
	}
	b.WriteString("\nOurs in the default mode divided by each other contestant, in pairs of runs of one turn: the " +
		"geometric mean with its 95 % interval. \"Ahead\" and \"behind\" mean that the interval excludes equal.\n\n" +
		"| load | ours to | pairs |")
	for _, figure := range compared {
		b.WriteString(" " + figure.title + " |")
	}
	b.WriteString(" failed, ours and theirs |\n|---|---|---|" + strings.Repeat("---|", len(compared)+1) + "\n")
	for _, c := range all {
		fmt.Fprintf(b, "| %s | %s | %d |", loadName(c.Load), c.Against, c.Figures[0].N)
		for _, p := range c.Figures {
			fmt.Fprintf(b, " %.3f [%.3f, %.3f] %s |", p.Ratio, p.Low, p.High, p.Verdict())
		}
		fmt.Fprintf(b, " %d, %d |\n", c.Failed[0], c.Failed[1])
	}
}

// writeVoid lists the runs that do not count.
func (r *Report) writeVoid(b *strings.Builder) {
	first := true
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Void == "" {
			continue
		}
		if first {
			fmt.Fprintf(b, "\nVoid runs, each repeated once: above %.0f %% of the host's CPU, or with 1 %% of the requests "+
				"more than %v late, or failed.\n\n", 100*r.Config.MostCPU, r.Config.MostLate)
			first = false
		}
		text, _, _ := strings.Cut(run.line(), "\n")
		b.WriteString("- " + text + "\n")
	}
}
