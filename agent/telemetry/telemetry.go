// Package telemetry asks the kernel, many times a second and for little, how busy the host and its engines are and how their sockets do: through the BPF
// programs of package bpf where the agent may load them, else through /proc and sock_diag. Nothing is asked of the engine.
package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/cluster"
)

// Options of a Telemetry.
type Options struct {
	// Open returns where the numbers come from; nil: nowhere, nothing is known.
	Open func() (Source, error)
	// Interval is the time between two looks, if they cost less than CostShare. 0: 50 ms.
	Interval time.Duration
	// Targets are the engines of the host; at least one.
	Targets []Target
	// Tick is called each Interval, after a look if there was one, by the goroutine of Run; it must not block. Nil: nobody is told.
	Tick func()
	Log  *slog.Logger

	share time.Duration // tests: instead of costShare
}

// byChoice is the reason for what is not told because nobody wants programs in the kernel.
const byChoice = "telemetry.kernel is proc"

// Target is an engine with its front.
type Target struct {
	Name string // for what cannot be told of it, where there are several
	// FrontPort and EnginePort are local ports whose connections are counted; 0: none.
	FrontPort, EnginePort uint16
	// EngineProcess finds the root of the engine's processes; nil: none is known, and why is for the caller to say.
	EngineProcess func() (pid int, err error)
}

// watched is a target with what is known of it.
type watched struct {
	Target
	of      string // what a problem with it ends with
	latest  atomic.Pointer[Sample]
	process atomic.Int64 // root of the engine's processes; 0: not known

	// Of Run's goroutine.
	past   past
	findAt time.Time
}

// Source is a reader of sockets and waits, and one of processes: the same one, unless the agent is in a PID namespace, whose numbers programs in the kernel do not know.
type Source struct {
	Kernel, Processes bpf.Reader
}

func (s *Source) close() {
	_ = s.Kernel.Close() // only ours; the programs stay
	if s.Processes != s.Kernel {
		_ = s.Processes.Close()
	}
}

// Sample is what a look found: waits and CPU over the last second, sockets over the last ten. What is not known is unknown.
type Sample struct {
	At         time.Time // zero: nobody has looked yet
	CPUPct     cluster.Gauge
	RunqUsP99  cluster.Gauge
	SRTTUsP50  cluster.Gauge
	RetransPPM cluster.Gauge
}

// Bounds of looking.
const (
	DefaultInterval = 50 * time.Millisecond
	MinInterval     = 10 * time.Millisecond
	costShare       = 500             // a look is followed by a pause of at least this many times its CPU time: 0.2 % of a core
	longestPause    = 5 * time.Second // however dear a look is
	window          = time.Second     // over which rates and percentiles are taken
	findEvery       = 5 * time.Second // the engine's processes are looked for, while they are not known
)

// Telemetry looks. Make it with New and Run it once.
type Telemetry struct {
	o       Options
	source  atomic.Pointer[Source] // nil: nothing is open
	targets []*watched
	looks   atomic.Uint64
	cost    atomic.Int64 // ns of CPU, of all looks

	mu       sync.Mutex
	problems map[string]string // what cannot be told, and why

	// Of Run's goroutine.
	searched bool // some engine's processes were looked for
}

// New makes a Telemetry that has not looked yet.
func New(o Options) *Telemetry {
	if o.Interval <= 0 {
		o.Interval = DefaultInterval
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.share <= 0 {
		o.share = costShare
	}
	t := &Telemetry{o: o, problems: map[string]string{}}
	for _, target := range o.Targets {
		w := &watched{Target: target}
		if len(o.Targets) > 1 {
			w.of = " of " + target.Name
		}
		w.latest.Store(&Sample{})
		t.targets = append(t.targets, w)
	}
	return t
}

// Latest is the last sample of a target, by its place in Options.Targets.
func (t *Telemetry) Latest(target int) Sample { return *t.targets[target].latest.Load() }

// Cost is how many looks there were, and the CPU time that they took together.
func (t *Telemetry) Cost() (looks uint64, cpu time.Duration) {
	return t.looks.Load(), time.Duration(t.cost.Load())
}

// Reader is where sockets and waits are read; nil before Run has opened it, and where nothing could be.
func (t *Telemetry) Reader() bpf.Reader {
	if s := t.source.Load(); s != nil {
		return s.Kernel
	}
	return nil
}

// Ports are the ports of a target that are counted, by which side of the agent they are on; 0: none.
func (t *Telemetry) Ports(target int) (front, engine uint16) {
	return t.targets[target].FrontPort, t.targets[target].EnginePort
}

// Engine is what the processes of a target's engine have used. ok is false while it is not known.
func (t *Telemetry) Engine(target int) (g bpf.Group, ok bool) {
	s, pid := t.source.Load(), int(t.targets[target].process.Load())
	if s == nil || pid == 0 {
		return g, false
	}
	g, err := s.Processes.Group(pid)
	return g, err == nil
}

// Run looks until ctx ends. What it has had counted stays counted, for the next agent.
func (t *Telemetry) Run(ctx context.Context) error {
	if t.o.Open == nil {
		return nil
	}
	s, err := t.o.Open()
	if err != nil {
		return err
	}
	defer s.close()
	t.say(ctx, s.Kernel)
	t.watchPorts(&s)
	t.source.Store(&s)
	defer t.source.Store(nil)
	tick := time.NewTicker(t.o.Interval)
	defer tick.Stop()
	var next time.Time
	for {
		if now := time.Now(); !now.Before(next) {
			t.searched = false
			cpu := t.measured(func() { t.look(&s, now) })
			if t.searched {
				cpu = 0 // dear, but findEvery sees to how often
			}
			next = now.Add(pause(t.o.Interval, t.o.share*cpu) - t.o.Interval/2)
		}
		if t.o.Tick != nil {
			t.o.Tick()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// pause is the time from a look to the next one, which should be as much for the sake of the CPU.
func pause(interval, cost time.Duration) time.Duration {
	return max(interval, min(cost, longestPause))
}

// measured returns the CPU time that f takes: the wall clock would count what others did meanwhile.
func (t *Telemetry) measured(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	f()
	cpu := threadTime() - before
	t.looks.Add(1)
	t.cost.Add(int64(cpu))
	return cpu
}

// say logs once where the numbers come from and what cannot be told: a warning, unless that is as configured.
func (t *Telemetry) say(ctx context.Context, r bpf.Reader) {
	t.o.Log.Info("telemetry", "source", string(r.Source()))
	reasons := map[string][]string{}
	for _, m := range r.Missing() {
		reasons[m.Reason] = append(reasons[m.Reason], m.What)
	}
	for reason, what := range reasons {
		level := slog.LevelWarn
		if reason == byChoice {
			level = slog.LevelInfo
		}
		t.o.Log.Log(ctx, level, "telemetry does without some of what programs in the kernel tell", "why", reason, "missing", what)
	}
}

// watchPorts has both ports of each target counted.
func (t *Telemetry) watchPorts(s *Source) {
	for _, w := range t.targets {
		for what, port := range map[string]uint16{"connections to the front": w.FrontPort, "connections to the engine": w.EnginePort} {
			if port != 0 {
				t.problem(what+w.of, watchPort(s.Kernel, port))
			}
		}
	}
}

// watchPort makes room by forgetting ports that nobody listens on any more, as those are of engines that were given a free one.
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
	t.mu.Lock()
	was := t.problems[what]
	is := ""
	if err != nil {
		is = err.Error()
	}
	if is == "" {
		delete(t.problems, what)
	} else {
		t.problems[what] = is
	}
	t.mu.Unlock()
	if is != "" && is != was {
		t.o.Log.Warn("telemetry cannot tell something", "what", what, "why", is)
	}
}

// Missing lists what cannot be told now, and why.
func (t *Telemetry) Missing() []bpf.Missing {
	var all []bpf.Missing
	if r := t.Reader(); r != nil {
		all = append(all, r.Missing()...)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for what, reason := range t.problems {
		all = append(all, bpf.Missing{What: what, Reason: reason})
	}
	return all
}
