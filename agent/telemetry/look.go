package telemetry

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/load"
)

// at holds the counts of one moment.
type at struct {
	time  time.Time
	pid   int // root of the processes that cpu counts; 0: unknown
	cpu   time.Duration
	delay time.Duration // ended waits of these processes for a CPU
	front bpf.Sockets
	known bool // true if front is known
	waits bpf.Histogram
	rtt   time.Duration // mean round trip since the previous moment; 0: none was seen
}

// past holds the counts of the last window, and fewer counts of the time before.
type past struct {
	moments []at // those in the window, oldest first, and the last one before the window
	slow    []at // the same for the socket window, one for each second
	trips   []trip
	waiting waiting

	spare  []bpf.Histogram // histograms of forgotten moments, for reuse
	recent bpf.Histogram   // waits of the window; memory that sample reuses
	sorted []time.Duration // memory that sample reuses
}

// histogram returns memory for the waits of the next moment.
func (p *past) histogram() (h bpf.Histogram) {
	if n := len(p.spare); n > 0 {
		h, p.spare = p.spare[n-1], p.spare[:n-1]
	}
	return h
}

// waiting is the share of time that the threads of a group wait for a CPU. Earlier waits fade.
type waiting struct {
	pid int
	pct float64 // 100 means that one thread always waits
	at  time.Time
}

// waitMemory is the time in which an earlier wait fades by half.
const waitMemory = 10 * time.Second

// trip is a mean round trip between two looks.
type trip struct {
	time time.Time
	mean time.Duration
}

// socketWindow is longer than window, because socket events are rarer than thread events.
const socketWindow = 10 * time.Second

// Bounds of the numbers of moments and trips in past.
const (
	mostMoments = int(window/MinInterval) + 1
	mostSlow    = int(socketWindow/time.Second) + 1
	mostTrips   = 64
)

// add appends a moment and forgets moments that no window needs.
func (p *past) add(now at) {
	drop := outside(p.moments, now.time, window, mostMoments)
	for i := range drop {
		p.spare = append(p.spare, p.moments[i].waits)
	}
	p.moments = append(slices.Delete(p.moments, 0, drop), now)
	if n := len(p.slow); n == 0 || now.time.Sub(p.slow[n-1].time) >= time.Second {
		drop := outside(p.slow, now.time, socketWindow, mostSlow)
		p.slow = append(slices.Delete(p.slow, 0, drop), at{time: now.time, front: now.front, known: now.known})
	}
	if now.rtt > 0 {
		p.trips = append(slices.Delete(p.trips, 0, max(0, len(p.trips)+1-mostTrips)), trip{now.time, now.rtt})
	}
	p.trips = slices.DeleteFunc(p.trips, func(t trip) bool { return now.time.Sub(t.time) > socketWindow })
}

// outside returns how many of the oldest moments to forget when one more comes. outside keeps the
// last of the moments that are older than the window.
func outside(moments []at, now time.Time, window time.Duration, most int) (drop int) {
	drop = max(0, len(moments)+1-most)
	for drop+1 < len(moments) && now.Sub(moments[drop+1].time) >= window {
		drop++
	}
	return drop
}

// look reads all sources and publishes a sample of each target. look reads the waits for a CPU
// once, because they are the host's.
func (t *Telemetry) look(s *Source, now time.Time) {
	for i, w := range t.targets {
		t.now = at{time: now, waits: w.past.histogram()}
		t.readEngine(s, w, &t.now)
		t.readFront(s, w, &t.now)
		if i == 0 {
			if err := s.Kernel.RunDelay(&t.now.waits); !errors.Is(err, bpf.ErrUnknown) {
				t.problem("run-queue delay", err)
			}
		}
		w.past.add(t.now)
		sample := w.past.sample()
		t.mu.Lock()
		if i != 0 {
			sample.RunqUsP99 = t.targets[0].latest.RunqUsP99
		}
		w.latest = sample
		t.mu.Unlock()
	}
}

// readEngine reads the CPU time of the engine's processes. readEngine finds the processes if they
// are unknown.
func (t *Telemetry) readEngine(s *Source, w *watched, m *at) {
	if w.EngineProcess == nil {
		return
	}
	pid := int(w.process.Load())
	if pid != 0 && w.there(pid, m.time) {
		g, err := s.Processes.Group(pid)
		if err == nil {
			m.pid, m.cpu, m.delay = pid, g.CPU, g.Delay
			return
		}
		t.problem(w.what.cpu, err)
	}
	if m.time.Before(w.findAt) {
		return
	}
	w.findAt, t.searched = m.time.Add(findEvery), true
	t.find(s, w, pid)
}

// there tells whether the engine's process exists, or existed within aliveEvery.
func (w *watched) there(pid int, now time.Time) bool {
	if now.Sub(w.aliveAt) < aliveEvery {
		return true
	}
	w.aliveAt = now
	return alive(pid)
}

// find makes the kernel count the engine's present processes instead of the former ones.
func (t *Telemetry) find(s *Source, w *watched, before int) {
	pid, err := w.EngineProcess()
	if before != 0 && before != pid {
		_ = s.Processes.UnwatchProcesses(before)
	}
	w.process.Store(0)
	if err == nil && pid != 0 {
		err = watchProcesses(s.Processes, pid)
	}
	if err == nil && pid != 0 {
		w.process.Store(int64(pid))
		w.findAt = time.Time{} // the next process is looked for as soon as this one ends
	}
	t.problem(w.what.cpu, err)
}

// watchProcesses starts counting a group. watchProcesses makes room by forgetting groups whose root
// has ended.
func watchProcesses(r bpf.Reader, pid int) error {
	groups, err := r.Groups()
	if err != nil {
		return err
	}
	for _, g := range groups {
		if !alive(g.Root) {
			_ = r.UnwatchProcesses(g.Root)
		}
	}
	return r.WatchProcesses(pid)
}

// readFront reads the counts of the connections to the front.
func (t *Telemetry) readFront(s *Source, w *watched, m *at) {
	if w.FrontPort == 0 {
		return
	}
	p, err := s.Kernel.Port(w.FrontPort)
	t.problem(w.what.front, err)
	if err != nil {
		return
	}
	m.front, m.known = p.Sockets, true
	looks, sum := m.front.RTTLooks, m.front.RTTSum
	if s.Kernel.Source() == bpf.SourceBPF { // sock_diag's counts begin anew with each look
		looks, sum = 0, 0
		if n := len(w.past.moments); n > 0 && w.past.moments[n-1].known {
			before := &w.past.moments[n-1].front
			looks, sum = m.front.RTTLooks-before.RTTLooks, m.front.RTTSum-before.RTTSum
		}
	}
	if looks > 0 && sum > 0 {
		m.rtt = sum / time.Duration(looks)
	}
}

// sample returns the figures between the first and the last moment of the window.
func (p *past) sample() load.Kernel {
	last := &p.moments[len(p.moments)-1]
	s := load.Kernel{At: load.Taken{Time: last.time}}
	first := &p.moments[0]
	if last.pid != 0 {
		s.CPUPct, s.EngineWaitPct = p.engine(last)
	}
	if p.recent.Subtract(&last.waits, &first.waits); p.recent.Count > 0 && first != last {
		s.RunqUsP99 = micros(p.recent.Quantile(0.99))
	}
	if before := &p.slow[0]; last.known && before.known {
		s.RetransPPM = share(last.front.Retransmits-before.front.Retransmits,
			last.front.SegmentsSent-before.front.SegmentsSent)
	}
	if len(p.trips) > 0 {
		p.sorted = p.sorted[:0]
		for i := range p.trips {
			p.sorted = append(p.sorted, p.trips[i].mean)
		}
		slices.Sort(p.sorted)
		s.SRTTUsP50 = micros(p.sorted[len(p.sorted)/2])
	}
	return s
}

// engine looks at the last moment's group, since the group's first moment in the window. engine
// returns the share of one CPU that the group has used, and the share of time that its threads have
// waited for a CPU. An earlier wait fades by half in waitMemory. The wait must fade, because an
// engine without requests never waits, even on a full host.
func (p *past) engine(last *at) (cpu, wait load.Gauge) {
	if p.waiting.pid != last.pid {
		p.waiting = waiting{pid: last.pid}
	}
	first := since(p.moments, last)
	if first == nil {
		return cpu, wait
	}
	of := func(d time.Duration) float64 { return 100 * float64(d) / float64(last.time.Sub(first.time)) }
	left := p.waiting.pct * math.Exp2(-float64(last.time.Sub(p.waiting.at))/float64(waitMemory))
	p.waiting.pct, p.waiting.at = max(of(last.delay-first.delay), left), last.time
	return load.Known(of(last.cpu - first.cpu)), load.Known(p.waiting.pct)
}

// since returns the first moment before last that counted the same group; nil: there is none.
func since(moments []at, last *at) *at {
	for i := range moments {
		if first := &moments[i]; first.pid == last.pid && first.time.Before(last.time) && last.cpu >= first.cpu {
			return first
		}
	}
	return nil
}

// share returns of/all in parts per million. The share is unknown if the counts were set back, or
// if all is 0.
func share(of, all uint64) load.Gauge {
	if int64(of) < 0 || int64(all) <= 0 {
		return load.Gauge{}
	}
	return load.Known(min(1e6*float64(of)/float64(all), 1e6))
}

func micros(d time.Duration) load.Gauge {
	return load.Known(float64(d) / float64(time.Microsecond))
}
