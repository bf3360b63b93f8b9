// Package pairs compares two builds of the router by CPU time per request and per token, measured
// in turn with the same instant engines.
//
// Every pair starts both builds anew. So no single memory layout decides, and the pairs are
// independent, as the interval of the median requires. One start serves all scenarios of a pair.
// Both builds get the same command line, from the row "ours" of contestants.toml, the same
// requests, and the same routing mode. If the builds score nodes differently, their figures say
// little about their code, because tokens from one node cost the kernel less than tokens from four
// nodes.
package pairs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/cognitora/dataplane/perf/compare"
	"github.com/cognitora/dataplane/perf/process"
)

// Config of Run.
type Config struct {
	Before, After string   // paths of two cgn-router programs
	Keys          bool     // the program After takes requests with an API key only
	Mode          string   // routing mode of both builds; round_robin distributes alike in every build
	Scenarios     []string // names from Scenarios
	Pairs         int
	Window        time.Duration // duration of each measurement
	Progress      io.Writer     // gets a line for each pair of measurements
}

// Build is a measured program.
type Build struct {
	Path    string `json:"path"`
	Version string `json:"version"`
}

// Figures holds one scenario's CPU time in µs per unit, for each pair.
type Figures struct {
	Scenario string           `json:"scenario"`
	Unit     string           `json:"unit"` // request or token
	Before   []float64        `json:"before_us"`
	After    []float64        `json:"after_us"`
	Ratio    compare.Interval `json:"ratio"` // after divided by before
	// Behind counts measurements whose streams were late. The tokens of late streams come in fewer,
	// larger pieces.
	Behind int `json:"behind"`
}

// Report is the result of Run.
type Report struct {
	Machine   string    `json:"machine"`
	Before    Build     `json:"before"`
	After     Build     `json:"after"`
	Mode      string    `json:"mode"`
	Window    float64   `json:"window_seconds"`
	Scenarios []Figures `json:"scenarios"`
}

// units are the units of CPU time, by kind of scenario.
var units = map[string]string{"closed": "request", "open": "request", "streams": "token"}

// Scenarios returns the names of scenarios that can be measured in pairs.
func Scenarios() (names []string) {
	for _, s := range compare.Scenarios() {
		if units[s.Kind] != "" && s.Group == "" && s.Sweep == "" {
			names = append(names, s.Name)
		}
	}
	return names
}

// runner runs the measurements.
type runner struct {
	Config
	ctx       context.Context
	site      *compare.Site
	builds    [2]*compare.Contestant // before, after
	scenarios []*compare.Scenario
	figures   []Figures // one for each scenario
}

// Run measures all pairs. Run fails with the first measurement that fails.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	r := &runner{Config: cfg, ctx: ctx}
	for _, name := range cfg.Scenarios {
		s := compare.ScenarioNamed(name)
		r.scenarios = append(r.scenarios, s)
		r.figures = append(r.figures, Figures{Scenario: name, Unit: units[s.Kind]})
	}
	var err error
	if r.site, err = compare.NewSite("."); err != nil {
		return nil, err
	}
	defer r.site.Close()
	var builds [2]Build
	rows := [2]string{"ours", "ours"}
	if cfg.Keys {
		rows[1] = "ours, with keys"
	}
	for i, file := range []string{cfg.Before, cfg.After} {
		if r.builds[i], builds[i], err = r.build([]string{"before", "after"}[i], rows[i], file); err != nil {
			return nil, err
		}
	}
	for pair := range cfg.Pairs {
		if err := r.pair(pair); err != nil {
			return nil, err
		}
	}
	return &Report{Machine: process.Machine(runtime.NumCPU()), Before: builds[0], After: builds[1],
		Mode: cfg.Mode, Window: cfg.Window.Seconds(), Scenarios: r.figures}, nil
}

// build returns a router of contestants.toml with another program.
func (r *runner) build(name, row, file string) (*compare.Contestant, Build, error) {
	path, err := filepath.Abs(file)
	if err != nil {
		return nil, Build{}, err
	}
	c := compare.ContestantNamed(row)
	adapt(c, path, r.Mode)
	c.Name, c.Install = name, path
	if why := r.site.Missing(c); why != "" {
		return nil, Build{}, fmt.Errorf("--%s: %s", name, why)
	}
	version, err := r.site.Version(c)
	return c, Build{Path: path, Version: version}, err
}

// limit is set for each engine, since a router without it may have a small limit of its own.
const limit = ",max_concurrent=8192"

// adapt replaces the router of bin in c by path, sets the mode, and sets the limit.
func adapt(c *compare.Contestant, path, mode string) {
	of := func(text string) string { return strings.ReplaceAll(text, "{{.Bin}}/cgn-router", path) }
	c.Program = of(c.Program)
	for i := range c.Version {
		c.Version[i] = of(c.Version[i])
	}
	for i := range c.Processes {
		each := c.Processes[i].Each
		for k := range each {
			if strings.HasPrefix(each[k], "http://") {
				each[k] += limit
			}
		}
		command := c.Processes[i].Command
		for k := range command {
			if command[k] = of(command[k]); k > 0 && command[k-1] == "--mode" {
				command[k] = mode
			}
		}
	}
}

// pair starts both builds and measures all scenarios. The builds alternate in being first.
func (r *runner) pair(pair int) error {
	order := [2]int{pair % 2, 1 - pair%2}
	var on [2]*compare.Running
	for _, i := range order {
		var err error
		if on[i], err = r.site.Start(r.ctx, r.builds[i]); err != nil {
			return err
		}
		defer on[i].Stop()
	}
	for k, s := range r.scenarios {
		f := &r.figures[k]
		for _, i := range order {
			m, err := compare.Measure(s, on[i], r.Window, r.ctx.Done())
			if err = errors.Join(err, r.ctx.Err()); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
			into := []*[]float64{&f.Before, &f.After}[i]
			*into = append(*into, m["cpu_us"])
			f.Behind += int(m["behind"])
		}
		f.Ratio = compare.RatioInterval(f.After, f.Before)
		fmt.Fprintf(r.Progress, "%s, pair %d of %d: CPU per %s %.2f µs before, %.2f after\n",
			s.Name, pair+1, r.Pairs, f.Unit, f.Before[pair], f.After[pair])
	}
	return nil
}
