package bpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/procfs"
)

// Proc is a Reader that needs no rights. Proc reads /proc, sock_diag and cgroup files. Proc's
// counts lack the processes and connections that have begun and ended between two reads. Proc has
// no times of tokens.
type Proc struct {
	missing []Missing

	mu     sync.Mutex
	ports  []uint16
	groups []*procGroup
}

// procGroup keeps the usage of ended processes as last seen.
type procGroup struct {
	root   int
	seen   map[int]procTimes
	ended  procTimes
	cgroup string        // cgroup of the group's processes only; empty: there is none
	used   time.Duration // usage of the cgroup before the group was watched
}

type procTimes struct {
	cpu, delay time.Duration
	runs       uint64
}

func (t *procTimes) add(o procTimes) {
	t.cpu, t.delay, t.runs = t.cpu+o.cpu, t.delay+o.delay, t.runs+o.runs
}

var _ Reader = (*Proc)(nil)

// NewProc returns a reader without programs. why becomes the reason of all figures that only
// programs measure.
func NewProc(why error) *Proc {
	reason := "no programs are loaded"
	if why != nil {
		reason = why.Error()
	}
	p := &Proc{}
	for _, what := range []string{"distribution of run-queue delay", "time to first token and between tokens",
		"connections that have ended, and how", "stalls", "events of peers"} {
		p.missing = append(p.missing, Missing{What: what, Reason: reason})
	}
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		p.missing = append(p.missing, Missing{What: "run-queue delay of groups",
			Reason: "the kernel has no /proc/PID/schedstat: it needs CONFIG_SCHED_INFO"})
	}
	return p
}

// New returns the reader of the programs. If nothing can be loaded, New returns the reader of
// /proc, whose Missing gives the reason.
func New(o Options) Reader {
	s, err := Load(o)
	if err != nil {
		return NewProc(WithHint(err))
	}
	return s
}

// Source returns SourceProc.
func (p *Proc) Source() Source { return SourceProc }

// Missing lists the figures that only programs measure.
func (p *Proc) Missing() []Missing { return p.missing }

// Close does nothing.
func (p *Proc) Close() error { return nil }

// maxPorts and maxGroups equal the programs' limits.
const (
	maxPorts  = 64
	maxGroups = 63
)

// WatchPort adds a port to the result of Ports.
func (p *Proc) WatchPort(port uint16) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.Contains(p.ports, port) {
		return nil
	}
	if port == 0 || len(p.ports) == maxPorts {
		return fmt.Errorf("bpf: watch port %d: name the port that the engine listens on; at most %d can be watched",
			port, maxPorts)
	}
	p.ports = append(p.ports, port)
	return nil
}

// UnwatchPort ends WatchPort.
func (p *Proc) UnwatchPort(port uint16) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ports = slices.DeleteFunc(p.ports, func(q uint16) bool { return q == port })
	return nil
}

// WatchProcesses adds a process and its descendants to the result of Groups.
func (p *Proc) WatchProcesses(root int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.ContainsFunc(p.groups, func(g *procGroup) bool { return g.root == root }) {
		return nil
	}
	if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(root))); err != nil || root <= 0 {
		return fmt.Errorf("bpf: there is no process %d to watch", root)
	}
	if len(p.groups) == maxGroups {
		return fmt.Errorf("bpf: watch process %d: all %d groups are in use", root, maxGroups)
	}
	g := &procGroup{root: root}
	g.read()
	g.findCgroup()
	p.groups = append(p.groups, g)
	return nil
}

// UnwatchProcesses ends WatchProcesses.
func (p *Proc) UnwatchProcesses(root int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.groups = slices.DeleteFunc(p.groups, func(g *procGroup) bool { return g.root == root })
	return nil
}

var errNoDelay = fmt.Errorf("bpf: distribution of run-queue delay: %w", ErrUnknown)

// RunDelay fails without programs. /proc has only sums, which Groups returns.
func (p *Proc) RunDelay(*Histogram) error {
	return errNoDelay
}

// Groups adds up the threads of each group.
func (p *Proc) Groups() ([]Group, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Group
	for _, g := range p.groups {
		sum := g.read()
		all = append(all, Group{Root: g.root, CPU: sum.cpu, Delay: sum.delay, Runs: sum.runs})
	}
	return all, nil
}

// Group adds up the threads of one group.
func (p *Proc) Group(root int) (Group, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.groups {
		if g.root == root {
			sum := g.read()
			return Group{Root: root, CPU: sum.cpu, Delay: sum.delay, Runs: sum.runs}, nil
		}
	}
	return Group{}, notWatched("process", root)
}

// tree returns root and its descendants. tree uses the kernel's lists of children, whose cost
// depends on the size of the tree. On a kernel without these lists, tree walks through all of
// /proc.
func tree(root int) []int {
	all := []int{root}
	for i := 0; i < len(all) && len(all) < 1<<16; i++ {
		dir := filepath.Join("/proc", strconv.Itoa(all[i]), "task")
		threads, err := os.ReadDir(dir)
		if err != nil {
			continue // the process has ended
		}
		for _, thread := range threads {
			text, err := os.ReadFile(filepath.Join(dir, thread.Name(), "children"))
			if err != nil && i == 0 && thread.Name() == strconv.Itoa(root) {
				return append(all[:1], descendants(root)...)
			}
			for _, child := range strings.Fields(string(text)) {
				if pid, err := strconv.Atoi(child); err == nil {
					all = append(all, pid)
				}
			}
		}
	}
	return all
}

// read returns the usage of the running processes and of those that ended since the group was made.
func (g *procGroup) read() procTimes {
	now := map[int]procTimes{}
	for _, pid := range tree(g.root) {
		threads, _ := procfs.AllThreads(pid)
		for _, thread := range threads {
			if t, ok := timesOf(thread); ok {
				now[thread.PID] = t
			}
		}
	}
	sum := procTimes{}
	for tid, was := range g.seen {
		is, found := now[tid]
		if !found { // a list of children may miss one while another ends
			if thread, err := procfs.NewProc(tid); err == nil {
				is, found = timesOf(thread)
			}
		}
		if found && is.cpu >= was.cpu {
			now[tid] = is
		} else { // ended, or replaced by a process with the same id
			g.ended.add(was)
		}
	}
	g.seen = now
	for _, t := range now {
		sum.add(t)
	}
	sum.add(g.ended)
	if used, ok := cgroupCPU(g.cgroup); ok {
		sum.cpu = max(sum.cpu, used-g.used)
	}
	return sum
}

// timesOf returns the usage of a thread. ok is false if the thread has ended.
func timesOf(thread procfs.Proc) (t procTimes, ok bool) {
	s, err := thread.Schedstat()
	running, waiting := time.Duration(s.RunningNanoseconds), time.Duration(s.WaitingNanoseconds)
	return procTimes{running, waiting, s.RunTimeslices}, err == nil
}

// Ports returns the presently established connections to the watched ports.
func (p *Proc) Ports() ([]Port, error) {
	p.mu.Lock()
	watched := slices.Clone(p.ports)
	p.mu.Unlock()
	conns, err := established()
	if err != nil {
		return nil, err
	}
	var all []Port
	for _, port := range watched {
		var s Sockets
		for i := range conns {
			if conns[i].port == port {
				conns[i].addTo(&s)
			}
		}
		all = append(all, Port{Port: port, Sockets: s})
	}
	return all, nil
}

// Port returns the presently established connections to one watched port.
func (p *Proc) Port(port uint16) (Port, error) {
	all, err := p.Ports()
	for _, one := range all {
		if one.Port == port {
			return one, err
		}
	}
	return Port{}, errors.Join(err, notWatched("port", int(port)))
}

// Tokens fails without programs.
func (p *Proc) Tokens(uint16) (Tokens, error) {
	return Tokens{}, fmt.Errorf("bpf: times of tokens: %w", ErrUnknown)
}

// Drops returns zeros: no table can be full.
func (p *Proc) Drops() (Drops, error) { return Drops{}, nil }
