package telemetry

import (
	"time"

	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/load"
)

// Source is a reader of sockets and waits, and one of processes: the same one, unless the agent is
// in a PID namespace, whose numbers programs in the kernel do not know.
type Source struct {
	Kernel, Processes bpf.Reader
}

func (s *Source) close() {
	_ = s.Kernel.Close() // only ours; the programs stay
	if s.Processes != s.Kernel {
		_ = s.Processes.Close()
	}
}

// removed says which of the programs and maps of s were taken away; nil: none.
func (s *Source) removed() error {
	if r, ok := s.Kernel.(interface{ Removed() error }); ok {
		return r.Removed()
	}
	return nil
}

// Open opens the source that Run looks at, and tells before Run whether it can be opened. Without
// it Run opens the source itself. An error is that of Options.Open. The source is closed when Run
// ends.
func (t *Telemetry) Open() error {
	if t.source != nil || t.o.Open == nil {
		return nil
	}
	s, err := t.o.Open()
	if err != nil {
		return err
	}
	t.say(s.Kernel)
	t.watchPorts(&s)
	t.replace(&s)
	return nil
}

// replace has s read from now on, and closes the source before it.
func (t *Telemetry) replace(s *Source) {
	t.open.Lock()
	defer t.open.Unlock()
	if t.source != nil {
		t.source.close()
	}
	t.source = s
}

// renew sees, once in removedEvery, whether the source was removed, and opens it anew. Earlier
// counts are forgotten first: counts that stand still are no figures.
func (t *Telemetry) renew(now time.Time) error {
	if now.Sub(t.there) < removedEvery {
		return nil
	}
	t.there = now
	why := t.source.removed()
	if why == nil {
		return nil
	}
	t.o.Logger.Warn("programs in the kernel, or what they have counted, were taken away; loading them anew", "why", why)
	t.replace(nil)
	t.mu.Lock()
	for _, w := range t.targets {
		w.past, w.latest, w.findAt = past{}, load.Kernel{}, time.Time{}
		w.process.Store(0)
	}
	t.mu.Unlock()
	return t.Open()
}

// Engines is the CPU time and waits of a target's engine, by the target's place in Options.Targets.
// ok is false while it is not known.
type Engines func(target int) (g bpf.Group, ok bool)

// With has f read the source, which stays open meanwhile. f must call no other method of t that
// reads, and keep nothing. Without an open source, as before Run or Open, f is not called and With
// returns false.
func (t *Telemetry) With(f func(r bpf.Reader, engines Engines)) bool {
	t.open.RLock()
	defer t.open.RUnlock()
	s := t.source
	if s == nil {
		return false
	}
	f(s.Kernel, func(target int) (g bpf.Group, ok bool) {
		pid := int(t.targets[target].process.Load())
		if pid == 0 {
			return g, false
		}
		g, err := s.Processes.Group(pid)
		return g, err == nil
	})
	return true
}
