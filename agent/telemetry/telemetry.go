// Package telemetry reads from the kernel the load of the host and its engines, and the state of
// their sockets. It does so many times a second, at little cost. The package uses the BPF programs
// of package bpf if the agent may load them, and otherwise /proc and sock_diag. The package asks
// the engine nothing.
package telemetry

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/load"
)

// Options of a Telemetry.
type Options struct {
	// Open opens the source of the figures; nil: there is no source, and nothing is known. Open is
	// called again when somebody has removed the source. An error of that call ends Run.
	Open func() (Source, error)
	// Interval is the time between two looks while something moves, if a look costs less than
	// costShare allows. The interval is 1.4 times as long while nothing moves. 0: 50 ms.
	Interval time.Duration
	// Targets are the engines of the host, at least one.
	Targets []Target
	// Opened is called once, after Open and the first look. All looks after Opened are alike.
	// Opened may be nil.
	Opened func()
	// Tick is called each Interval by the goroutine of Run, after the look if there was one. Tick
	// returns whether something has moved, and must not block. A nil Tick counts as one that always
	// returns true.
	Tick   func() (moved bool)
	Logger *slog.Logger

	share time.Duration // replaces costShare in tests
}

// ErrUnseen means that this process has no right to see the other process.
var ErrUnseen = errors.New("cannot be found")

// byChoice is the reason for figures that are missing because the configuration asks for no
// programs.
const byChoice = "telemetry.kernel is proc"

// Target is an engine and its front.
type Target struct {
	Name string // used in messages if there are several targets
	// FrontPort and EnginePort are the local ports whose connections are counted; 0: none.
	FrontPort, EnginePort uint16
	// EngineProcess finds the root of the engine's processes. With nil no process is known, and the
	// caller reports the reason.
	EngineProcess func() (pid int, err error)
}

// watched is a target and its state.
type watched struct {
	Target
	what    struct{ cpu, front, engine string } // keys of problems for its CPU, front and engine
	latest  load.Kernel                         // guarded by Telemetry.mu
	process atomic.Int64                        // root of the engine's processes; 0: unknown

	// Run's goroutine owns the fields below.
	past    past
	findAt  time.Time
	aliveAt time.Time // when the engine's process was last seen alive
}

// Bounds of looks.
const (
	DefaultInterval = 50 * time.Millisecond
	MinInterval     = 10 * time.Millisecond
	costShare       = 500             // minimum distance of looks, as a multiple of their CPU time: 0.2 % of a core
	meanOf          = 16              // looks in the mean of that CPU time; a single look may be interrupted
	longestPause    = 5 * time.Second // maximum distance of looks
	window          = time.Second     // time over which rates and percentiles are taken
	stillTicks      = 20              // ticks without a move after which looks become fewer
	aliveEvery      = time.Second     // how often the engine's process is checked to exist
	removedEvery    = time.Second     // how often the programs are checked to exist
	findEvery       = 5 * time.Second // how often unknown engine processes are searched for
)

// Telemetry reads the kernel's figures periodically. New makes a Telemetry, and Run may be called
// once.
type Telemetry struct {
	o       Options
	open    sync.RWMutex // held to read source and to close it
	source  *Source      // nil: no source is open
	targets []*watched
	looks   atomic.Uint64
	cost    atomic.Int64 // CPU time of all looks, in ns

	mu       sync.Mutex
	problems map[string]string // reason of each missing figure, by the figure's name

	// Run's goroutine owns the fields below.
	now      at            // the present look's counts
	mean     time.Duration // recent mean of a look's CPU time
	there    time.Time     // when the programs were last seen to exist
	searched bool          // processes of some engine were searched for in this look
}

// New makes a Telemetry without any sample.
func New(o Options) *Telemetry {
	o.Interval, o.Logger = cmp.Or(o.Interval, DefaultInterval), cmp.Or(o.Logger, slog.Default())
	o.share = cmp.Or(o.share, costShare)
	t := &Telemetry{o: o, problems: map[string]string{}}
	for _, target := range o.Targets {
		w := &watched{Target: target}
		of := ""
		if len(o.Targets) > 1 {
			of = " of " + target.Name
		}
		w.what.cpu = "CPU time of the engine" + of
		w.what.front, w.what.engine = "connections to the front"+of, "connections to the engine"+of
		t.targets = append(t.targets, w)
	}
	return t
}

// Latest returns the last sample of a target, by its index in Options.Targets. CPU time and waits
// cover the last second, sockets the last ten.
func (t *Telemetry) Latest(target int) load.Kernel {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.targets[target].latest
}

// Cost returns the number of looks, and their CPU time together.
func (t *Telemetry) Cost() (looks uint64, cpu time.Duration) {
	return t.looks.Load(), time.Duration(t.cost.Load())
}

// Ports returns the counted ports of a target: the front's and the engine's; 0: none.
func (t *Telemetry) Ports(target int) (front, engine uint16) {
	return t.targets[target].FrontPort, t.targets[target].EnginePort
}

// Run looks until ctx ends. Without a source of kernel figures, Run only ticks. The programs go on
// counting for the next agent.
func (t *Telemetry) Run(ctx context.Context) error {
	if err := t.Open(); err != nil {
		return err
	}
	defer t.replace(nil)
	ticks, err := newTicks(t.o.Interval)
	if err != nil {
		return err
	}
	defer ticks.close()
	defer ticks.stopWith(ctx)()
	return t.follow(ctx, ticks)
}

// follow looks and ticks until ctx ends.
func (t *Telemetry) follow(ctx context.Context, ticks *ticks) error {
	var next time.Time
	if t.source != nil {
		next = t.lookAt(t.source, time.Now())
	}
	if t.o.Opened != nil {
		t.o.Opened()
	}
	for still := 0; ; {
		if now := time.Now(); t.source != nil && !now.Before(next) {
			if err := t.renew(now); err != nil {
				return err
			}
			next = t.lookAt(t.source, now)
		}
		switch {
		case t.o.Tick == nil || t.o.Tick():
			if still >= stillTicks {
				ticks.set(t.o.Interval)
			}
			still = 0
		case still < stillTicks:
			if still++; still == stillTicks {
				ticks.set(stillInterval(t.o.Interval))
			}
		}
		if !ticks.next(ctx) {
			return nil
		}
	}
}

// stillInterval returns the time between looks while nothing moves. Routers should know of a first
// move within 100 ms; with DefaultInterval 30 ms of the 100 ms are left.
func stillInterval(interval time.Duration) time.Duration { return interval * 7 / 5 }

// lookAt looks, and returns the time of the next look.
func (t *Telemetry) lookAt(s *Source, now time.Time) (next time.Time) {
	t.searched = false
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	t.look(s, now)
	cpu := threadTime() - before // wall-clock time would include other threads
	t.looks.Add(1)
	t.cost.Add(int64(cpu))
	if !t.searched { // a search is expensive, but findEvery makes it rare
		t.mean += (cpu - t.mean) / meanOf
	}
	return now.Add(pause(t.o.Interval, t.o.share*t.mean) - t.o.Interval/2)
}

// pause returns the time between two looks that keeps their CPU time within costShare.
func pause(interval, cost time.Duration) time.Duration {
	return max(interval, min(cost, longestPause))
}

// say logs the source and the missing figures. The log entry is a warning unless the configuration
// asks for this source.
func (t *Telemetry) say(r bpf.Reader) {
	t.o.Logger.Info("telemetry", "source", string(r.Source()))
	reasons := map[string][]string{}
	for _, m := range r.Missing() {
		reasons[m.Reason] = append(reasons[m.Reason], m.What)
	}
	for reason, what := range reasons {
		level := slog.LevelWarn
		if reason == byChoice {
			level = slog.LevelInfo
		}
		t.o.Logger.Log(context.Background(), level, "telemetry does without some of what programs in the kernel tell",
			"why", reason, "missing", strings.Join(what, "; "))
	}
}

// watchPorts makes the kernel count both ports of each target.
func (t *Telemetry) watchPorts(s *Source) {
	for _, w := range t.targets {
		for what, port := range map[string]uint16{w.what.front: w.FrontPort, w.what.engine: w.EnginePort} {
			if port != 0 {
				t.problem(what, watchPort(s.Kernel, port))
			}
		}
	}
}

// watchPort starts counting a port. watchPort makes room by forgetting ports without a listener,
// such as the former ports of restarted engines.
func watchPort(r bpf.Reader, port uint16) error {
	err := r.WatchPort(port)
	if err == nil {
		return nil
	}
	watched, err2 := r.Ports()
	if err2 != nil {
		return errors.Join(err, err2)
	}
	for _, p := range watched {
		if !listening(p.Port) {
			_ = r.UnwatchPort(p.Port)
		}
	}
	return r.WatchPort(port)
}

// problem notes why a figure is missing, and logs a new reason; nil: the figure is known.
func (t *Telemetry) problem(what string, err error) {
	is := ""
	if err != nil {
		is = err.Error()
	}
	t.mu.Lock()
	was := t.problems[what]
	switch {
	case is != "":
		t.problems[what] = is
	case was != "":
		delete(t.problems, what)
	}
	t.mu.Unlock()
	if is != "" && is != was {
		t.o.Logger.Warn("telemetry cannot tell something", "what", what, "why", is)
	}
}

// Missing lists the figures that are missing now, and the reasons.
func (t *Telemetry) Missing() []bpf.Missing {
	var all []bpf.Missing
	t.With(func(r bpf.Reader, _ Engines) { all = append(all, r.Missing()...) })
	t.mu.Lock()
	defer t.mu.Unlock()
	for what, reason := range t.problems {
		all = append(all, bpf.Missing{What: what, Reason: reason})
	}
	return all
}
