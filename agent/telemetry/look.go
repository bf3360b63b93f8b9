package telemetry

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/load"
)

// at is the counts of one moment.
type at struct {
	time  time.Time
	pid   int // of cpu; 0: not known
	cpu   time.Duration
	delay time.Duration // of the same processes: waits for a CPU that have ended
	front bpf.Sockets
	known bool // front is
	waits bpf.Histogram
	rtt   time.Duration // mean of the round trips seen since the moment before; 0: none
}

// past is the counts of the last window, and fewer of the time before.
type past struct {
	moments []at // of the window, oldest first, and the last one before it
	slow    []at // of the socket window likewise, one for each second
	trips   []trip
	waiting waiting

	spare  []bpf.Histogram // memory of moments that have been forgotten
	recent bpf.Histogram   // waits of the window; memory of sample
	sorted []time.Duration // likewise
}

// histogram is memory for the waits of the next moment.
func (p *past) histogram() (h bpf.Histogram) {
	if n := len(p.spare); n > 0 {
		h, p.spare = p.spare[n-1], p.spare[:n-1]
	}
	return h
}

// waiting is how long the threads of a group wait for a CPU. Earlier waits fade.
type waiting struct {
	pid int
	pct float64 // 100 is one thread that always waits
	at  time.Time
}

// waitMemory is after how long half of a wait is forgotten.
const waitMemory = 10 * time.Second

// trip is a mean round trip between two looks.
type trip struct {
	time time.Time
	mean time.Duration
}

// socketWindow is longer than window: events of sockets are rarer than those of threads.
const socketWindow = 10 * time.Second

// Bounds of the memory.
const (
	mostMoments = int(window/MinInterval) + 1
	mostSlow    = int(socketWindow/time.Second) + 1
	mostTrips   = 64
)

// add takes a moment and forgets what no window needs.
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

// outside is how many of the oldest moments to forget when one more comes: those older than the
// window, except the last of them.
func outside(moments []at, now time.Time, window time.Duration, most int) (drop int) {
	drop = max(0, len(moments)+1-most)
	for drop+1 < len(moments) && now.Sub(moments[drop+1].time) >= window {
		drop++
	}
	return drop
}

// look reads all sources and publishes a sample of each target. Waits for a CPU are the host's,
// and read once.
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

// readEngine reads the CPU time of the engine's processes, and finds them if they are not known.
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

// there tells whether the engine's process is, or was a moment ago.
func (w *watched) there(pid int, now time.Time) bool {
	if now.Sub(w.aliveAt) < aliveEvery {
		return true
	}
	w.aliveAt = now
	return alive(pid)
}

// find has the engine's processes counted, and those before no more.
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
		w.findAt = time.Time{} // once it ends, the next one is looked for at once
	}
	t.problem(w.what.cpu, err)
}

// watchProcesses makes room by forgetting groups whose root has ended.
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

// readFront reads how the connections to the front do.
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
	if s.Kernel.Source() == bpf.SourceBPF { // the other one begins anew with each look
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

// sample is the figures between the first and the last moment of the window.
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

// engine is the share of one CPU that the group of the last moment has used since its first moment
// in the window, and the time that its threads have waited for one. Half of an earlier wait is left
// after waitMemory: without requests an engine waits for nothing, on the fullest host.
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

// since is the first moment before last at which the same group was counted; nil: there is none.
func since(moments []at, last *at) *at {
	for i := range moments {
		if first := &moments[i]; first.pid == last.pid && first.time.Before(last.time) && last.cpu >= first.cpu {
			return first
		}
	}
	return nil
}

// share is how many of all, in a million. Counts that were set back, and nothing at all, are
// unknown.
func share(of, all uint64) load.Gauge {
	if int64(of) < 0 || int64(all) <= 0 {
		return load.Gauge{}
	}
	return load.Known(min(1e6*float64(of)/float64(all), 1e6))
}

func micros(d time.Duration) load.Gauge {
	return load.Known(float64(d) / float64(time.Microsecond))
}
