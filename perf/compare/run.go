package compare

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"time"
)

// Config chooses the contestants and the scenarios.
type Config struct {
	Root string // root of the repository, with bin and .cache
	Full bool   // the full form; otherwise the quick form
	// Contestants and Scenarios are names; empty: all.
	Contestants, Scenarios []string
	Repetitions            int           // default 3
	Longest                time.Duration // longest window of a measurement; 0: no limit
	Progress               io.Writer     // gets a line for each measurement
}

// Report is the result of a comparison.
type Report struct {
	Full        bool
	Repetitions int
	Took        time.Duration
	Interrupted bool // only measurements before the interruption are there
	Entrants    []Entrant
	Results     []Result
}

// Entrant is a contestant, and the reason if it was not measured.
type Entrant struct {
	Contestant
	Version string
	Missing string
}

// Result holds a scenario's figures.
type Result struct {
	Scenario
	Points []Point
}

// Point holds the figures of one value of a sweep, or all figures without a sweep.
type Point struct {
	Value float64 // value of the sweep
	Rows  []Row   // in order of the contestants
}

// Row holds a contestant's figures of each repetition.
type Row struct {
	Contestant string
	Figures    []Figures
	Failed     int        // repetitions without figures
	Notes      []string   // errors, each once
	Top        []Function `json:",omitempty"` // profile of the last repetition, in scenarios that profile
}

// values returns the values of one figure, by repetition; NaN if it is missing.
func (r *Row) values(figure string) []float64 {
	var v []float64
	for _, f := range r.Figures {
		x, ok := f[figure]
		if !ok {
			x = math.NaN()
		}
		v = append(v, x)
	}
	return v
}

// comparison is a running comparison.
type comparison struct {
	Config
	site    *Site
	all     []Contestant
	missing map[string]string
	running map[string]*Running
	done    int
	total   int
	begun   time.Time
}

// Run compares until it has finished or ctx ends, and returns the results so far. A failed
// contestant is reported with the reason, and the others go on.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	return run(ctx, cfg, Contestants(), Scenarios())
}

func run(ctx context.Context, cfg Config, all []Contestant, scenarios []Scenario) (*Report, error) {
	cfg.Repetitions = max(cfg.Repetitions, 1)
	site, err := NewSite(cfg.Root)
	if err != nil {
		return nil, err
	}
	defer site.Close()
	c := &comparison{Config: cfg, site: site, all: all, missing: map[string]string{}, running: map[string]*Running{},
		begun: time.Now()}
	defer c.stopAll()
	report := &Report{Full: cfg.Full, Repetitions: cfg.Repetitions}
	scenarios = slices.DeleteFunc(scenarios, func(s Scenario) bool {
		return s.seconds(cfg.Full) == 0 || len(cfg.Scenarios) > 0 && !slices.Contains(cfg.Scenarios, s.Name)
	})
	report.Entrants = c.entrants(scenarios)
	for i := range scenarios {
		c.total += c.measurements(&scenarios[i])
	}
	group := ""
	for i := range scenarios {
		s := &scenarios[i]
		if s.Group != group {
			c.stopAll()
			group = s.Group
		}
		report.Results = append(report.Results, *c.scenario(ctx, s))
		if ctx.Err() != nil {
			report.Interrupted = true
			break
		}
	}
	report.Took = time.Since(c.begun)
	if report.Interrupted {
		return report, fmt.Errorf("interrupted, nothing is written: %w", ctx.Err())
	}
	return report, nil
}

// Err names the contestants with a failed measurement. A contestant that is not installed has not
// failed.
func (r *Report) Err() error {
	var failed []string
	for i := range r.Results {
		s := &r.Results[i]
		for k := range s.Points {
			for _, row := range s.Points[k].Rows {
				if what := row.Contestant + " in " + s.Name; row.Failed > 0 && !slices.Contains(failed, what) {
					failed = append(failed, what)
				}
			}
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return fmt.Errorf("measurements failed: %s", strings.Join(failed, ", "))
}

// entrants returns the contestants of the scenarios, with the reason if one is missing.
func (c *comparison) entrants(scenarios []Scenario) []Entrant {
	var entrants []Entrant
	for i := range c.all {
		contestant := &c.all[i]
		if !slices.ContainsFunc(scenarios, func(s Scenario) bool { return c.takesPart(contestant, &s) }) {
			continue
		}
		e := Entrant{Contestant: *contestant, Missing: c.site.Missing(contestant)}
		if e.Missing == "" {
			e.Version, _ = c.site.Version(contestant) // Missing has tried the command already
		} else {
			c.missing[contestant.Name] = e.Missing
			fmt.Fprintf(c.Progress, "MISSING: %s (%s)\n", contestant.Name, e.Missing)
		}
		entrants = append(entrants, e)
	}
	return entrants
}

func (c *comparison) takesPart(contestant *Contestant, s *Scenario) bool {
	chosen := func(names []string) bool { return len(names) == 0 || slices.Contains(names, contestant.Name) }
	k := kinds[s.Kind]
	able := !(k.program && contestant.Program == "" || k.admin && contestant.Admin == "")
	return contestant.Group == s.Group && able && chosen(s.Only) && chosen(c.Contestants)
}

// field returns the installed contestants of a scenario.
func (c *comparison) field(s *Scenario) (field []*Contestant) {
	for i := range c.all {
		if c.takesPart(&c.all[i], s) && c.missing[c.all[i].Name] == "" {
			field = append(field, &c.all[i])
		}
	}
	return field
}

func (c *comparison) repetitions(s *Scenario) int { return cmp.Or(s.Repetitions, c.Repetitions) }

func (c *comparison) measurements(s *Scenario) int {
	return len(c.field(s)) * len(s.points()) * c.repetitions(s)
}

// scenario measures all points of s, or those before ctx ends. The contestants take turns within
// each point.
func (c *comparison) scenario(ctx context.Context, s *Scenario) *Result {
	result := &Result{Scenario: *s}
	for i, at := range s.points() {
		point := Point{}
		if s.Sweep != "" {
			point.Value = s.Values[i]
		}
		field := c.field(s)
		point.Rows = make([]Row, len(field))
		for rep := range c.repetitions(s) {
			for turn := range field {
				k := (turn + rep) % len(field) // rotated, so that no contestant is always first
				row := &point.Rows[k]
				row.Contestant = field[k].Name
				if ctx.Err() == nil {
					c.measure(ctx, &at, field[k], row, rep)
				}
			}
		}
		point.addDelays()
		result.Points = append(result.Points, point)
		if ctx.Err() != nil {
			break
		}
	}
	return result
}

// measure fills in one repetition of a row. The repetition is dropped if ctx ends meanwhile.
func (c *comparison) measure(ctx context.Context, s *Scenario, contestant *Contestant, row *Row, rep int) {
	begun := time.Now()
	m := &measurement{Scenario: *s, seconds: s.seconds(c.Full), stop: ctx.Done()}
	if c.Longest > 0 {
		m.seconds = min(m.seconds, c.Longest)
	}
	if n := c.site.room(kinds[s.Kind].idle); max(m.Clients, m.Streams) > n {
		m.Clients, m.Streams = min(m.Clients, n), min(m.Streams, n)
		m.note("only %d connections: the limit of open files is %d for each process", n, c.site.files)
	}
	figures, err := c.once(ctx, m, contestant)
	c.done++
	switch {
	case ctx.Err() != nil:
		return
	case err != nil:
		m.note("failed: %v", err)
		row.Failed++
		figures = Figures{}
	}
	for _, n := range m.notes {
		row.note(n)
	}
	row.Figures, row.Top = append(row.Figures, figures), m.top
	left := time.Since(c.begun) / time.Duration(c.done) * time.Duration(c.total-c.done)
	value, ok := figures[s.Show[0]]
	text := "failed"
	if ok {
		text = s.Show[0] + " " + short(value)
	}
	fmt.Fprintf(c.Progress, "[%d/%d] %s: %s, %d of %d: %s (%.1f s; about %.0f s left)\n", c.done, c.total, s.label(),
		contestant.Name,
		rep+1, c.repetitions(s), text, time.Since(begun).Seconds(), left.Seconds())
	for _, n := range m.notes {
		fmt.Fprintf(c.Progress, "    %s\n", n)
	}
}

func (s *Scenario) label() string {
	if s.Sweep == "" {
		return s.Name
	}
	return fmt.Sprintf("%s %.0f", s.Name, map[string]float64{"streams": float64(s.Streams), "rate": s.Rate}[s.Sweep])
}

// maxNotes is the largest number of notes of a row.
const maxNotes = 3

func (r *Row) note(text string) {
	if len(r.Notes) < maxNotes && !slices.Contains(r.Notes, text) {
		r.Notes = append(r.Notes, text)
	}
}

// once starts the contestant if needed, and measures it.
func (c *comparison) once(ctx context.Context, m *measurement, contestant *Contestant) (Figures, error) {
	k := kinds[m.Kind]
	if k.fresh {
		c.stopAll() // the other contestants' connections and CPU time must not count
		defer c.stopAll()
	}
	m.on = c.running[contestant.Name]
	if m.on == nil {
		var err error
		if m.on, err = c.site.Start(ctx, contestant); err != nil {
			return nil, err
		}
		c.running[contestant.Name] = m.on
	}
	figures, err := k.measure(m)
	// explains a failed measurement if the contestant has ended; a contestant that has ended is
	// started again next time
	if _, gone := m.on.Usage(); gone != nil {
		err = gone
		m.on.Stop()
		delete(c.running, contestant.Name)
	}
	return figures, err
}

func (c *comparison) stopAll() {
	var all sync.WaitGroup // stopping a contestant may take a while
	for _, r := range c.running {
		all.Go(r.Stop)
	}
	all.Wait()
	clear(c.running)
}
