package telemetry

import (
	"time"

	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/load"
)

// Source has one reader for sockets and waits, and one for processes. The two readers are the same
// reader, unless the agent is in a PID namespace: the BPF programs do not know the process ids of a
// namespace.
type Source struct {
	Kernel, Processes bpf.Reader
}

func (s *Source) close() {
	_ = s.Kernel.Close() // closes only the agent's descriptors; the programs stay
	if s.Processes != s.Kernel {
		_ = s.Processes.Close()
	}
}

// removed returns an error that names the programs and maps of s that were removed; nil: none was.
func (s *Source) removed() error {
	if r, ok := s.Kernel.(interface{ Removed() error }); ok {
		return r.Removed()
	}
	return nil
}

// Open opens the source that Run reads, so that a failure shows before Run. Run opens the source
// itself if Open was not called. Open returns the error of Options.Open. Run closes the source when
// it ends.
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

// replace makes s the source, and closes the previous one.
func (t *Telemetry) replace(s *Source) {
	t.open.Lock()
	defer t.open.Unlock()
	if t.source != nil {
		t.source.close()
	}
	t.source = s
}

// renew checks every removedEvery whether the source was removed, and opens it anew. renew first
// forgets earlier counts, because counts that have stopped give no figures.
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

// Engines returns the CPU time and waits of a target's engine, by the target's index in
// Options.Targets. ok is false while they are unknown.
type Engines func(target int) (g bpf.Group, ok bool)

// With calls f with the source, and keeps the source open meanwhile. f must call no other method of
// t that reads, and must keep nothing. Without an open source, as before Run or Open, With does not
// call f and returns false.
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
