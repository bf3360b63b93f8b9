package compare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/cognitora/dataplane/perf/load"
)

// warm uses the code and pools of a fresh contestant, so that their memory is not counted.
func (m *measurement) warm() error {
	n := int64(min(2000, 50*max(m.Clients, m.Streams)))
	r, _ := load.Closed{Target: m.target(), Bodies: m.chat(false, 1, ""), Clients: 16, First: 1 << 40,
		Requests: uint64(n),
		Window:   load.Window{Measure: time.Minute, Stop: m.stop}}.Run()
	if r.Requests < n {
		return fmt.Errorf("only %d of %d requests in %.0f s: %v", r.Requests, n, r.Seconds, r.Failures)
	}
	return nil
}

func (m *measurement) rss() (float64, error) {
	u, err := m.on.Usage()
	return float64(u.RSS), err
}

// settle returns how long to wait before memory is read.
func (m *measurement) settle() time.Duration { return min(m.seconds, time.Second) }

// idle measures the memory for idle clients: soon after their answers, and at the end of the
// window.
func (m *measurement) idle() (Figures, error) {
	if err := m.warm(); err != nil {
		return nil, err
	}
	before, err := m.rss()
	if err != nil {
		return nil, err
	}
	held, err := load.Hold(m.target(), m.chat(false, 1, ""), m.Clients, 30*time.Second)
	if err != nil {
		return nil, err
	}
	defer held.Close()
	f := Figures{}
	for _, at := range []struct {
		figure string
		wait   time.Duration
	}{{"kib_each", m.settle()}, {"rested_kib_each", m.seconds - m.settle()}} {
		select {
		case <-time.After(at.wait):
		case <-m.stop:
		}
		after, err := m.rss()
		if err != nil {
			return nil, err
		}
		f[at.figure], f["rss_mib"] = (after-before)/1024/float64(m.Clients), after/(1<<20)
	}
	return f, nil
}

func (m *measurement) openStreams() (Figures, error) {
	if err := m.warm(); err != nil {
		return nil, err
	}
	before, err := m.rss()
	if err != nil {
		return nil, err
	}
	w := m.window(m.settle())
	r := load.Streams{Target: m.target(), Bodies: m.chat(true, 1e6, fmt.Sprintf("pace=%d", int(1e6/m.Rate))),
		N: m.Streams, Ramp: m.ramp(),
		Window: w.Window, Abandon: true, Timeout: 5 * time.Minute, Buffer: 1 << 10}.Run()
	f, err := m.figures(w, r, r.Tokens)
	if err != nil {
		return nil, err
	}
	opened := m.Streams - r.Failed()
	if opened < m.Streams*9/10 {
		return nil, fmt.Errorf("only %d of %d streams could be opened: %v", opened, m.Streams, r.Failures)
	}
	f["kib_each"] = (float64(w.to.RSS) - before) / 1024 / float64(opened)
	return f, nil
}

// maxGrowth is the growth of memory at which the measurement of a slow reader ends. More growth has
// no bound, and would use up the machine's memory.
const maxGrowth = 2 << 30

// slowReader measures the memory that a contestant holds for a client that reads 10 KB/s of an
// endless stream, and the effect on other streams. Before the slow client comes, the same streams
// are relayed without it for the same time. The streams first run for a sixth of this time, so that
// pools fill.
func (m *measurement) slowReader() (Figures, error) {
	if err := m.warm(); err != nil {
		return nil, err
	}
	full := m.seconds
	m.seconds /= 6
	_, filled, err := m.others(math.Inf(1))
	if err != nil {
		return nil, err
	}
	m.seconds = full
	alone, base, err := m.others(math.Inf(1))
	if err != nil {
		return nil, err
	}
	slow, err := load.ReadSlowly(m.target(), m.chat(true, 1e9, "pace=0"), 0)
	if err != nil {
		return nil, err
	}
	defer slow.Leave()
	beside, end, err := m.others(base.end + maxGrowth)
	if err != nil {
		return nil, err
	}
	if end.most > base.end+maxGrowth {
		m.note("given up at %.0f MiB: the slow reader takes %.0f KB/s", end.most/(1<<20),
			float64(slow.Read())/beside.Seconds/1e3)
	}
	return Figures{"growth_mib": (end.most - base.end) / (1 << 20),
		"growth_without_mib": (base.most - filled.end) / (1 << 20),
		"rss_mib":            end.end / (1 << 20), "others_p99_ms": beside.Token.P99 * 1e3,
		"alone_p99_ms": alone.Token.P99 * 1e3,
		"slow_kib":     float64(slow.Read()) / 1024, "failed": float64(beside.Failed())}, nil
}

// occupied is resident memory in bytes: at the end of a window, and the maximum until then.
type occupied struct{ end, most float64 }

// others relays the scenario's streams for the window, or until memory exceeds limit bytes. others
// returns the streams' result and the memory.
func (m *measurement) others(limit float64) (*load.Result, occupied, error) {
	watch := m.watch(limit)
	w := m.window(m.warmup())
	w.Stop = watch.full.Done()
	r := load.Streams{Target: m.target(), Bodies: m.paced(m.warmup()), N: m.Streams, Ramp: m.ramp(), First: 1,
		Window: w.Window, Timeout: m.seconds + time.Minute}.Run()
	highest, watchErr := watch.stop()
	_, err := m.figures(w, r, r.Tokens)
	end := float64(w.to.RSS)
	return r, occupied{end, max(end, highest)}, errors.Join(err, watchErr)
}

// watcher reads a contestant's resident memory periodically.
type watcher struct {
	end     chan struct{}
	reading sync.WaitGroup
	full    context.Context // ends when memory exceeds the limit, or when the measurement is stopped
	highest float64
	err     error
}

const watchEvery = 200 * time.Millisecond

// watch reads until stop. limit is in bytes.
func (m *measurement) watch(limit float64) *watcher {
	full, fill := context.WithCancel(context.Background())
	w := &watcher{end: make(chan struct{}), full: full}
	w.reading.Go(func() {
		defer fill()
		for stop := m.stop; ; {
			rss, err := m.rss()
			w.highest, w.err = max(w.highest, rss), cmp.Or(w.err, err)
			if rss > limit || err != nil {
				fill()
			}
			select {
			case <-w.end:
				return
			case <-stop:
				fill()
				stop = nil
			case <-time.After(watchEvery):
			}
		}
	})
	return w
}

// stop ends the reading and returns the maximum.
func (w *watcher) stop() (highest float64, err error) {
	close(w.end)
	w.reading.Wait()
	return w.highest, w.err
}

// steady sends many requests. Growth of memory after the first tenth of the requests is a leak.
func (m *measurement) steady() (Figures, error) {
	bodies, next := m.chat(false, m.Tokens, ""), uint64(0)
	work := func(requests uint64) (*load.Result, float64, error) {
		var r *load.Result
		r, next = load.Closed{Target: m.target(), Bodies: bodies, Clients: m.Clients, First: next, Requests: requests,
			Window: load.Window{Measure: m.seconds, Stop: m.stop}}.Run()
		if r.Failed() > 0 {
			m.note("failed: %v", r.Failures)
		}
		if uint64(r.Requests) < requests {
			m.note("only %d of %d requests in %.0f s", r.Requests, requests, r.Seconds)
		}
		rss, err := m.rss()
		return r, rss, err
	}
	_, start, err := work(m.Requests / 10)
	if err != nil {
		return nil, err
	}
	watch := m.watch(math.Inf(1))
	r, end, err := work(m.Requests - m.Requests/10)
	highest, watchErr := watch.stop()
	if err = errors.Join(err, watchErr); err != nil {
		return nil, err
	}
	return Figures{"growth_percent": 100 * (end/start - 1), "start_mib": start / (1 << 20), "rss_mib": end / (1 << 20),
		"most_mib":   max(end, highest) / (1 << 20),
		"per_second": float64(r.Requests) / r.Seconds}, nil
}

const (
	leaveTries   = 5
	leaveTimeout = 3 * time.Second
)

// leave measures how soon an engine is freed from a client that has left.
func (m *measurement) leave() (Figures, error) {
	f := Figures{}
	for name, wish := range map[string]struct {
		stream, begun bool
		wish          string
	}{
		"silent_stream_ms": {true, true, "pace=3600000000"},
		"before_head_ms":   {true, false, "hang=1"},
		"no_stream_ms":     {false, false, "hang=1"},
	} {
		bodies := m.chat(wish.stream, 10, wish.wish)
		var all []float64
		for range leaveTries {
			ms, err := m.leaveOnce(bodies, wish.begun)
			if err != nil {
				return nil, err
			}
			all = append(all, ms)
			if math.IsInf(ms, 1) {
				break
			}
		}
		f[name] = SpreadOf(all).Max
	}
	return f, nil
}

// leaveOnce returns the time until an engine is freed, in milliseconds. The time is infinite if the
// engine is not freed within leaveTimeout.
func (m *measurement) leaveOnce(bodies *load.Chat, begun bool) (float64, error) {
	site := m.on.site
	for len(site.left) > 0 {
		<-site.left
	}
	before := site.requests()
	w, err := load.Ask(m.target(), bodies, m.on.next[m.Name], begun, 10*time.Second)
	if err != nil {
		return 0, err
	}
	m.on.next[m.Name]++
	for deadline := time.Now().Add(10 * time.Second); site.requests() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.Leave()
			return 0, fmt.Errorf("the request did not reach an engine")
		}
	}
	time.Sleep(5 * time.Millisecond) // by now the engine waits for the client to leave
	gone := time.Now()
	w.Leave()
	select {
	case at := <-site.left:
		return float64(at.Sub(gone)) / 1e6, nil
	case <-time.After(leaveTimeout):
		return math.Inf(1), nil
	}
}

// requests returns the number of requests that the engines have received.
func (s *Site) requests() (n int64) {
	for _, e := range s.engines {
		n += e.Requests()
	}
	return n
}
