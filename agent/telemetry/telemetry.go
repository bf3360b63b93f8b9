// Package telemetry asks the kernel, many times a second and for little, how busy the host and its
// engines are and how their sockets do: through the BPF programs of package bpf where the agent may
// load them, else through /proc and sock_diag. Nothing is asked of the engine.
package telemetry

import (
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
	// Open returns where the numbers come from; nil: nowhere, nothing is known. It is called again
	// when others have removed the source, and then its error ends Run.
	Open func() (Source, error)
	// Interval is the time between two looks, if they cost less than costShare, while something
	// moves; while nothing does it is 1.4 times as long. 0: 50 ms.
	Interval time.Duration
	// Targets are the engines of the host; at least one.
	Targets []Target
	// Opened is called once, when Open has been called and the first look is done: from here on
	// each look is as the one before. Nil: nobody is told.
	Opened func()
	// Tick is called each Interval, after a look if there was one, by the goroutine of Run, and
	// tells whether something has moved; it must not block. Nil: nobody is told, and something
	// always moves.
	Tick   func() (moved bool)
	Logger *slog.Logger

	share time.Duration // tests: instead of costShare
}

// ErrUnseen is a process that this one has no right to see.
var ErrUnseen = errors.New("cannot be found")

// byChoice is the reason for figures that are missing because nobody wants programs in the kernel.
const byChoice = "telemetry.kernel is proc"

// Target is an engine with its front.
type Target struct {
	Name string // in messages, where there are several
	// FrontPort and EnginePort are local ports whose connections are counted; 0: none.
	FrontPort, EnginePort uint16
	// EngineProcess finds the root of the engine's processes; nil: none is known, and why is for
	// the caller to say.
	EngineProcess func() (pid int, err error)
}

// watched is a target and its state.
type watched struct {
	Target
	what    struct{ cpu, front, engine string } // that may not be told of it, as problems name it
	latest  load.Kernel                         // guarded by Telemetry.mu
	process atomic.Int64                        // root of the engine's processes; 0: not known

	// Of Run's goroutine.
	past    past
	findAt  time.Time
	aliveAt time.Time // when the engine's process was seen to be there
}

// Bounds of looking.
const (
	DefaultInterval = 50 * time.Millisecond
	MinInterval     = 10 * time.Millisecond
	costShare       = 500             // looks are apart by this many times their CPU time at least: 0.2 % of a core
	meanOf          = 16              // looks over which that is about the mean: a single one has been interrupted
	longestPause    = 5 * time.Second // however dear a look is
	window          = time.Second     // over which rates and percentiles are taken
	stillTicks      = 20              // without a move, after which looks are fewer
	aliveEvery      = time.Second     // the engine's process is looked at for whether it is there
	removedEvery    = time.Second     // the programs in the kernel are looked at for whether they are there
	findEvery       = 5 * time.Second // the engine's processes are looked for, while they are not known
)

// Telemetry looks. Make it with New and Run it once.
type Telemetry struct {
	o       Options
	open    sync.RWMutex // held to read source, and to close it
	source  *Source      // nil: nothing is open
	targets []*watched
	looks   atomic.Uint64
	cost    atomic.Int64 // ns of CPU, of all looks

	mu       sync.Mutex
	problems map[string]string // why a figure is missing, by its name

	// Of Run's goroutine.
	now      at            // of a look
	mean     time.Duration // CPU time of a look, of late
	there    time.Time     // when the programs were seen to be there
	searched bool          // some engine's processes were looked for
}

// New makes a Telemetry that has not looked yet.
func New(o Options) *Telemetry {
	if o.Interval <= 0 {
		o.Interval = DefaultInterval
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.share <= 0 {
		o.share = costShare
	}
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

// Latest is the last sample of a target, by its place in Options.Targets: CPU time and waits over
// the last second, sockets over the last ten.
func (t *Telemetry) Latest(target int) load.Kernel {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.targets[target].latest
}

// Cost is how many looks there were, and the CPU time that they took together.
func (t *Telemetry) Cost() (looks uint64, cpu time.Duration) {
	return t.looks.Load(), time.Duration(t.cost.Load())
}

// Ports are the ports of a target that are counted, by which side of the agent they are on; 0:
// none.
func (t *Telemetry) Ports(target int) (front, engine uint16) {
	return t.targets[target].FrontPort, t.targets[target].EnginePort
}

// Run looks until ctx ends, or, without anything to look at, just ticks. Programs go on counting
// for the next agent.
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

// stillInterval is the time between looks while nothing moves. With DefaultInterval a first move
// has 30 ms left of the 100 in which routers should know.
func stillInterval(interval time.Duration) time.Duration { return interval * 7 / 5 }

// lookAt looks, and returns when to look again.
func (t *Telemetry) lookAt(s *Source, now time.Time) (next time.Time) {
	t.searched = false
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	t.look(s, now)
	cpu := threadTime() - before // the wall clock would count what others did meanwhile
	t.looks.Add(1)
	t.cost.Add(int64(cpu))
	if !t.searched { // that is dear, but findEvery sees to how often
		t.mean += (cpu - t.mean) / meanOf
	}
	return now.Add(pause(t.o.Interval, t.o.share*t.mean) - t.o.Interval/2)
}

// pause is the time from a look to the next one, which should be as much for the sake of the CPU.
func pause(interval, cost time.Duration) time.Duration {
	return max(interval, min(cost, longestPause))
}

// say logs the source and the missing figures: a warning, unless that is as configured.
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

// watchPorts has both ports of each target counted.
func (t *Telemetry) watchPorts(s *Source) {
	for _, w := range t.targets {
		for what, port := range map[string]uint16{w.what.front: w.FrontPort, w.what.engine: w.EnginePort} {
			if port != 0 {
				t.problem(what, watchPort(s.Kernel, port))
			}
		}
	}
}

// watchPort makes room by forgetting ports that nobody listens on any more, as those are of engines
// that were given a free one.
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

// problem notes why something cannot be told, and logs it when it is new; nil: it can.
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

// Missing lists the figures that cannot be told now, and why.
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
