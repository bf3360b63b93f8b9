package attached

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"time"

	"github.com/cognitora/dataplane/perf/compare"
	"github.com/cognitora/dataplane/perf/process"
)

// Config says what is measured.
type Config struct {
	Root     string        // of the repository, whose bin is measured
	Pairs    int           // with and without
	Window   time.Duration // of each measurement
	Progress io.Writer     // a line for each pair
}

// Figures are CPU µs per unit, one for each pair.
type Figures struct {
	Without []float64 `json:"without_us"`
	With    []float64 `json:"with_us"`
	Ratio   Spread    `json:"ratio"` // of each pair
}

// MedianWithout is the median of Without, in µs.
func (f *Figures) MedianWithout() float64 { return spreadOf(f.Without).Median }

// MedianWith is the median of With, in µs.
func (f *Figures) MedianWith() float64 { return spreadOf(f.With).Median }

// Load is a workload of `bench compare`.
type Load struct {
	Scenario string  `json:"scenario"`
	Unit     string  `json:"unit"`
	Router   Figures `json:"router"`
	// All are router, engines and clients. What the kernel does for packets is charged to who sends them, and a context switch to who gets the CPU; switches to an
	// idle CPU are charged to nobody, but are in Programs.
	All Figures `json:"all"`
	// ProgramsUs is the programs' own run time on the whole host, per unit, with what measuring takes: measured apart.
	ProgramsUs float64 `json:"programs_us"`
}

// Report is the outcome of Run.
type Report struct {
	Machine  string    `json:"machine"`
	Window   float64   `json:"window_seconds"`
	Loads    []Load    `json:"loads"`
	Programs []Program `json:"programs"` // in all loads together
	// BusyHost is the share of a core that the programs take at 20,000 context switches and 10,000 packets of counted sockets a second, from their mean run times.
	BusyHost float64 `json:"busy_host"`
}

// Program is what the kernel measured of one, with what measuring takes.
type Program struct {
	Name string  `json:"name"`
	Runs uint64  `json:"runs"`
	Ns   float64 `json:"ns"` // of a run
}

const ours = "ours"

// loads are the scenarios, by the unit that their CPU time is for.
var loads = []struct{ scenario, unit string }{{"chat-2k", "request"}, {"tokens", "token"}}

// runner measures.
type runner struct {
	Config
	ctx    context.Context
	site   *compare.Site
	router *compare.Contestant
}

// Run measures all loads. It needs what loading programs needs.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	r := &runner{Config: cfg, ctx: ctx}
	contestants, err1 := compare.Contestants()
	scenarios, err2 := compare.Scenarios()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	router := slices.IndexFunc(contestants, func(c compare.Contestant) bool { return c.Name == ours })
	if router < 0 {
		return nil, fmt.Errorf("contestants.toml has no %q", ours)
	}
	r.router = &contestants[router]
	var err error
	if r.site, err = compare.NewSite(cfg.Root); err != nil {
		return nil, err
	}
	defer r.site.Close()
	if why := r.site.Missing(r.router); why != "" {
		return nil, fmt.Errorf("the router: %s", why)
	}
	report := &Report{Machine: process.Machine(runtime.NumCPU()), Window: cfg.Window.Seconds()}
	var measured costs
	for _, l := range loads {
		i := slices.IndexFunc(scenarios, func(s compare.Scenario) bool { return s.Name == l.scenario })
		if i < 0 {
			return nil, fmt.Errorf("scenarios.toml has no %q", l.scenario)
		}
		load, own, err := r.load(&scenarios[i], l.unit)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.scenario, err)
		}
		report.Loads = append(report.Loads, *load)
		measured = measured.plus(own)
	}
	report.Programs, report.BusyHost = measured.programs(), measured.busyHost()
	return report, nil
}

// load measures the pairs of one workload, and then the programs' own run times in it.
func (r *runner) load(s *compare.Scenario, unit string) (*Load, costs, error) {
	l := &Load{Scenario: s.Name, Unit: unit}
	for pair := range r.Pairs {
		for half := range 2 {
			with := (pair+half)%2 == 0 // neither is always first
			f, _, err := r.half(s, with, false)
			if err != nil {
				return nil, nil, err
			}
			l.Router.add(with, f["cpu_us"])
			l.All.add(with, f["cpu_us"]+f["harness_us"])
		}
		fmt.Fprintf(r.Progress, "%s, pair %d of %d: CPU of the router per %s %.2f µs with the programs, %.2f without; of all %.2f and %.2f\n", s.Name, pair+1, r.Pairs, unit,
			l.Router.With[pair], l.Router.Without[pair], l.All.With[pair], l.All.Without[pair])
	}
	l.Router.compare()
	l.All.compare()
	f, own, err := r.half(s, true, true)
	if err != nil {
		return nil, nil, err
	}
	l.ProgramsUs = own.total().Seconds() * 1e6 / (f["per_second"] * r.Window.Seconds())
	return l, own, nil
}

// half starts a router, so that all its connections are made after the programs are there, and measures it.
func (r *runner) half(s *compare.Scenario, with, timed bool) (f compare.Figures, own costs, err error) {
	if err := r.ctx.Err(); err != nil {
		return nil, nil, err
	}
	var p *programs
	if with {
		if p, err = attach(); err != nil {
			return nil, nil, err
		}
		defer func() { err = errors.Join(err, p.remove()) }()
		if err := p.watchPorts(r.site.Engines()...); err != nil {
			return nil, nil, err
		}
	}
	on, err := r.site.Start(r.ctx, r.router)
	if err != nil {
		return nil, nil, err
	}
	defer on.Stop()
	if with {
		if err := errors.Join(p.watchPorts(on.Addr()), p.watchProcess(on.PID())); err != nil {
			return nil, nil, err
		}
	}
	if !timed {
		f, err = compare.Measure(s, on, r.Window, r.ctx.Done())
		return f, nil, err
	}
	stop, err := p.time()
	if err != nil {
		return nil, nil, err
	}
	defer stop()
	var at []costs
	var unread error
	f, err = compare.MeasureBetween(s, on, r.Window, r.ctx.Done(), func() {
		c, err := p.costs()
		at, unread = append(at, c), errors.Join(unread, err)
	})
	if err = errors.Join(err, unread); err != nil {
		return nil, nil, err
	}
	return f, at[1].minus(at[0]), nil
}

func (f *Figures) add(with bool, us float64) {
	if with {
		f.With = append(f.With, us)
	} else {
		f.Without = append(f.Without, us)
	}
}

func (f *Figures) compare() {
	ratios := make([]float64, len(f.With))
	for i := range ratios {
		ratios[i] = f.With[i] / f.Without[i]
	}
	f.Ratio = spreadOf(ratios)
}

// Spread is the median of pairs with the interval that holds the true one in 95 of 100 runs: two of the values themselves, whatever their distribution is.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
	// Sure is how sure the interval is; with fewer than 6 values the smallest and the largest are less sure than 0.95.
	Sure float64 `json:"sure"`
}

func spreadOf(values []float64) Spread {
	v := slices.Clone(values)
	slices.Sort(v)
	n := len(v)
	if n == 0 {
		return Spread{Median: math.NaN(), Low: math.NaN(), High: math.NaN()}
	}
	// The k smallest and the k largest are left out. The median is among those below the interval if fewer than k+1 values are below it: a binomial tail.
	tail, term := 0.0, math.Pow(0.5, float64(n)) // P(X = 0)
	left, outside := 0, term
	for k := range (n - 1) / 2 {
		tail += term
		term *= float64(n-k) / float64(k+1)
		if 2*(tail+term) > 0.05 {
			break
		}
		left, outside = k+1, tail+term
	}
	return Spread{Median: (v[(n-1)/2] + v[n/2]) / 2, Low: v[left], High: v[n-1-left], Sure: 1 - 2*outside}
}
