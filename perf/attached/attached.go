package attached

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/cognitora/dataplane/perf/compare"
	"github.com/cognitora/dataplane/perf/process"
)

// Config of Run.
type Config struct {
	Root     string        // root of the repository, whose bin is measured
	Pairs    int           // measurements with and without the programs
	Window   time.Duration // duration of each measurement
	Progress io.Writer     // gets a line for each pair
}

// Figures holds the CPU time per unit in µs, for each pair.
type Figures struct {
	Without []float64        `json:"without_us"`
	With    []float64        `json:"with_us"`
	Ratio   compare.Interval `json:"ratio"` // by pair
}

// MedianWithout returns the median of Without, in µs.
func (f *Figures) MedianWithout() float64 { return compare.IntervalOf(f.Without).Median }

// MedianWith returns the median of With, in µs.
func (f *Figures) MedianWith() float64 { return compare.IntervalOf(f.With).Median }

// Load is a workload of `bench compare`.
type Load struct {
	Scenario string  `json:"scenario"`
	Unit     string  `json:"unit"`
	Router   Figures `json:"router"`
	// All is the sum over router, engines and clients. The kernel charges the work for a packet to
	// the sender, and a context switch to the process that gets the CPU. Switches to an idle CPU
	// are charged to no process, but are in Programs.
	All Figures `json:"all"`
	// ProgramsUs is the programs' own run time on the whole host, per unit. ProgramsUs is measured
	// separately, and includes the cost of measuring.
	ProgramsUs float64 `json:"programs_us"`
}

// Report is the result of Run.
type Report struct {
	Machine  string    `json:"machine"`
	Window   float64   `json:"window_seconds"`
	Loads    []Load    `json:"loads"`
	Programs []Program `json:"programs"` // over all loads together
	// BusyHost is the share of a core that the programs would take, by their mean run times. The
	// assumed host makes 20,000 context switches a second, and its counted sockets have 10,000
	// packets a second.
	BusyHost float64 `json:"busy_host"`
}

// Program holds the kernel's figures of one BPF program, which include the cost of measuring.
type Program struct {
	Name string  `json:"name"`
	Runs uint64  `json:"runs"`
	Ns   float64 `json:"ns"` // ns of a run
}

// loads lists the scenarios, with the unit of their CPU time.
var loads = []struct{ scenario, unit string }{{"chat-2k", "request"}, {"tokens", "token"}}

// runner runs the measurements.
type runner struct {
	Config
	ctx    context.Context
	site   *compare.Site
	router *compare.Contestant
}

// Run measures all loads. Run needs the rights to load programs.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	r := &runner{Config: cfg, ctx: ctx, router: compare.ContestantNamed("ours")}
	var err error
	if r.site, err = compare.NewSite(cfg.Root); err != nil {
		return nil, err
	}
	defer r.site.Close()
	if why := r.site.Missing(r.router); why != "" {
		return nil, fmt.Errorf("the router: %s", why)
	}
	report := &Report{Machine: process.Machine(runtime.NumCPU()), Window: cfg.Window.Seconds()}
	measured := costs{}
	for _, l := range loads {
		load, own, err := r.load(compare.ScenarioNamed(l.scenario), l.unit)
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
			with := (pair+half)%2 == 0 // alternates, so that neither is always first
			f, _, err := r.half(s, with, false)
			if err != nil {
				return nil, nil, err
			}
			l.Router.add(with, f["cpu_us"])
			l.All.add(with, f["cpu_us"]+f["harness_us"])
		}
		fmt.Fprintf(r.Progress, "%s, pair %d of %d: CPU of the router per %s %.2f µs with the programs, "+
			"%.2f without; of all %.2f and %.2f\n", s.Name, pair+1, r.Pairs, unit,
			l.Router.With[pair], l.Router.Without[pair], l.All.With[pair], l.All.Without[pair])
	}
	l.Router.Ratio = compare.RatioInterval(l.Router.With, l.Router.Without)
	l.All.Ratio = compare.RatioInterval(l.All.With, l.All.Without)
	f, own, err := r.half(s, true, true)
	if err != nil {
		return nil, nil, err
	}
	l.ProgramsUs = own.total().Seconds() * 1e6 / (f["per_second"] * r.Window.Seconds())
	return l, own, nil
}

// half starts a router and measures it. The router is started after the programs are attached, so
// that they see all of its connections.
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
