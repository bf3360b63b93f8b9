package compare

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/markdown"
	"github.com/cognitora/dataplane/perf/process"
)

// headings are the headings of figures in tables.
var headings = map[string]string{
	"cpu_us": "CPU µs", "per_second": "per second", "p50_ms": "p50 ms", "p99_ms": "p99 ms", "max_ms": "max ms",
	"ttft_p50_ms": "TTFT p50 ms", "ttft_p99_ms": "TTFT p99 ms", "harness_us": "load + engines µs",
	"kib_each": "KiB each", "rested_kib_each": "KiB each, at the end", "rss_mib": "RSS MiB",
	"growth_mib": "growth MiB", "growth_without_mib": "without it, growth MiB", "growth_percent": "growth %",
	"others_p99_ms": "others' p99 ms", "alone_p99_ms": "without it, p99 ms", "slow_kib": "it has read KiB",
	"start_mib": "after warm-up MiB", "most_mib": "most MiB", "streams": "streams", "added_p50_ms": "added p50 ms",
	"added_p99_ms":      "added p99 ms",
	"added_ttft_p50_ms": "added p50 ms", "added_ttft_p99_ms": "added p99 ms", "allocations": "allocations",
	"alloc_bytes": "bytes allocated",
	"gc_per_100k": "collections per 100,000", "gc_percent": "allocating and collecting %", "lock_percent": "in locks %",
	"silent_stream_ms": "silent stream ms", "before_head_ms": "before the head ms", "no_stream_ms": "not a stream ms",
}

func heading(figure string) string { return cmp.Or(headings[figure], figure) }

// Markdown formats the report. command is the command that made it.
func (r *Report) Markdown(command string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured %s, commit %s, %s, %s, in %.0f s.\n\n    %s\n\n", time.Now().UTC().Format("2006-01-02"),
		buildinfo.Commit(),
		process.Machine(runtime.NumCPU()), runtime.Version(), r.Took.Seconds(), command)
	fmt.Fprintf(&b, "%d instant engines and the load share the machine with the router. \"CPU µs\" is the router's own "+
		"CPU time per request or token. Each figure is the median of %d repetitions, with the smallest and the "+
		"largest in brackets. The contestants take turns in each repetition, and a ratio is the median of the "+
		"ratios within a turn. A token's time counts from the engine's sending. Added time is the time beyond that "+
		"of direct in the same turn. \"2 of 3\" means that one of three repetitions failed. The flag --scenarios "+
		"measures one section alone, by the name behind its title.\n\n", engineCount, r.Repetitions)
	if r.Interrupted {
		b.WriteString("**Interrupted**: what follows is not all.\n\n")
	}
	for _, e := range r.Entrants {
		what := e.Version
		if e.Missing != "" {
			what = "**missing**: " + e.Missing
		}
		if e.Note != "" {
			what = strings.TrimPrefix(what+"; "+e.Note, "; ")
		}
		fmt.Fprintf(&b, "- %s: %s\n", e.Name, what)
	}
	for i := range r.Results {
		r.section(&b, &r.Results[i])
	}
	return markdown.Wrap(b.String())
}

func (r *Report) section(b *strings.Builder, s *Result) {
	reference := ""
	if s.Show[0] == "cpu_us" || s.Show[0] == "kib_each" { // figures of usage, not of events
		reference = r.reference(s)
	}
	fmt.Fprintf(b, "\n### %s (`%s`)\n\n", s.Title, s.Name)
	if s.Plot.Figure != "" {
		fmt.Fprintf(b, "![%s](plots/%s)\n\n", s.Plot.Y, s.plotName())
	}
	shown := s.shown()
	columns := []string{""}
	if s.Sweep != "" {
		columns = []string{s.Sweep, ""}
	}
	columns = append(columns, heading(s.Show[0]))
	if reference != "" {
		columns = append(columns, "÷ "+reference)
	}
	for _, f := range shown[1:] {
		columns = append(columns, heading(f))
	}
	fmt.Fprintf(b, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	var notes notes
	for i := range s.Points {
		p := &s.Points[i]
		for k := range p.Rows {
			row := &p.Rows[k]
			cells := s.cells(p, row, shown, reference)
			fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
			for _, n := range row.Notes {
				notes.add(row.Contestant, n)
			}
		}
	}
	for _, e := range r.Entrants {
		if e.Missing != "" && e.Group == s.Group && (len(s.Only) == 0 || slices.Contains(s.Only, e.Name)) {
			fmt.Fprintf(b, "| %s |%s\n", e.Name, strings.Repeat(" missing |", len(columns)-1))
		}
	}
	notes.write(b)
	s.writeTop(b)
}

// writeTop writes where the CPU time of profiled contestants was spent.
func (s *Result) writeTop(b *strings.Builder) {
	for i := range s.Points {
		for _, row := range s.Points[i].Rows {
			if len(row.Top) == 0 {
				continue
			}
			fmt.Fprintf(b, "\n| %s: function | itself %% | with what it calls %% |\n|---|---|---|\n", row.Contestant)
			for _, f := range row.Top {
				fmt.Fprintf(b, "| `%s` | %s | %s |\n", f.Name, short(f.Own), short(f.With))
			}
		}
	}
}

// notes are errors, each with the contestants that it concerns.
type notes struct {
	texts []string
	about map[string][]string
}

func (n *notes) add(contestant, text string) {
	text, _, _ = strings.Cut(text, "\n")
	if n.about == nil {
		n.about = map[string][]string{}
	}
	if n.about[text] == nil {
		n.texts = append(n.texts, text)
	}
	if !slices.Contains(n.about[text], contestant) {
		n.about[text] = append(n.about[text], contestant)
	}
}

func (n *notes) write(b *strings.Builder) {
	if len(n.texts) > 0 {
		b.WriteString("\n")
	}
	for _, text := range n.texts {
		fmt.Fprintf(b, "- %s: %s\n", strings.Join(n.about[text], ", "), text)
	}
}

// shown returns the columns. shown leaves out differences to direct if direct was not measured.
func (s *Result) shown() []string {
	direct := slices.ContainsFunc(s.Points, func(p Point) bool {
		return slices.ContainsFunc(p.Rows, func(r Row) bool { return r.Contestant == "direct" })
	})
	return slices.DeleteFunc(slices.Clone(s.Show), func(figure string) bool {
		return !direct && strings.HasPrefix(figure, "added_")
	})
}

func (s *Result) cells(p *Point, row *Row, shown []string, reference string) []string {
	cells := []string{row.Contestant}
	if s.Sweep != "" {
		cells = []string{tick(p.Value), row.Contestant}
	}
	first := SpreadOf(row.values(shown[0])).String()
	if row.Failed > 0 {
		first += fmt.Sprintf(", %d of %d", len(row.Figures)-row.Failed, len(row.Figures))
	}
	cells = append(cells, first)
	if reference != "" {
		cells = append(cells, p.ratio(row, reference, shown[0]).String())
	}
	for _, f := range shown[1:] {
		cells = append(cells, short(SpreadOf(row.values(f)).Median))
	}
	return cells
}

// ratio returns the ratio of a figure to the reference's, by pairs.
func (p *Point) ratio(row *Row, reference, figure string) Spread {
	for i := range p.Rows {
		if p.Rows[i].Contestant == reference {
			return Ratios(row.values(figure), p.Rows[i].values(figure))
		}
	}
	return Spread{Median: math.NaN()}
}

// reference returns the contestant in s that the others are compared with.
func (r *Report) reference(s *Result) string {
	for _, e := range r.Entrants {
		if e.Group == s.Group && e.Reference && e.Missing == "" &&
			(len(s.Only) == 0 || slices.Contains(s.Only, e.Name)) {
			return e.Name
		}
	}
	return ""
}

// WriteSection replaces the text between the marks of a name in a Markdown file: <!-- NAME: begin
// --> and <!-- NAME: end -->.
func WriteSection(path, name, text string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := "<!-- "+name+": begin -->", "<!-- "+name+": end -->"
	before, rest, ok := strings.Cut(string(old), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		return fmt.Errorf("%s has no section %q to write to", path, begin)
	}
	return os.WriteFile(path, []byte(before+begin+"\n\n"+strings.TrimSpace(text)+"\n\n"+end+after), 0o644)
}
