package compare

import (
	"fmt"
	"math"
	"time"

	"github.com/cognitora/dataplane/perf/load"
)

// warm uses a fresh contestant's code and pools, so that what it takes for itself is not counted.
func (m *measurement) warm() error {
	r, _ := load.Closed{Target: m.target(), Bodies: m.chat(false, 1, ""), Clients: 16, First: 1 << 40, Requests: 2000,
		Window: load.Window{Measure: 30 * time.Second}}.Run()
	if r.Requests < 2000 {
		return fmt.Errorf("only %d of 2000 requests in 30 s: %v", r.Requests, r.Failures)
	}
	return nil
}

func (m *measurement) rss() (float64, error) {
	if len(m.on.processes) == 0 {
		return math.NaN(), nil
	}
	u, err := m.on.Usage()
	return float64(u.RSS), err
}

// settle is how long memory is left alone before it is read.
const settle = time.Second

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
	time.Sleep(settle)
	after, err := m.rss()
	return Figures{"kib_each": (after - before) / 1024 / float64(m.Clients), "rss_mib": after / (1 << 20)}, err
}

func (m *measurement) openStreams() (Figures, error) {
	if err := m.warm(); err != nil {
		return nil, err
	}
	before, err := m.rss()
	if err != nil {
		return nil, err
	}
	w := m.window(settle)
	r := load.Streams{Target: m.target(), Bodies: m.chat(true, 1e6, fmt.Sprintf("pace=%d", int(1e6/m.Rate))), N: m.Streams, Ramp: 5 * time.Second,
		Window: w.Window, Abandon: true, Timeout: 5 * time.Minute, Buffer: 1 << 10}.Run()
	f, err := m.figures(w, r, r.Tokens)
	if err == nil {
		f["kib_each"] = (float64(w.to.RSS) - before) / 1024 / float64(m.Streams)
	}
	return f, err
}

// slowReader measures what a contestant keeps for a client that does not read.
func (m *measurement) slowReader() (Figures, error) {
	if err := m.warm(); err != nil {
		return nil, err
	}
	before, err := m.rss()
	if err != nil {
		return nil, err
	}
	slow, err := load.Ask(m.target(), m.chat(true, 1e9, "pace=0"), 0, true, 10*time.Second)
	if err != nil {
		return nil, err
	}
	defer slow.Leave()
	w := m.window(0)
	r := load.Streams{Target: m.target(), Bodies: m.paced(0), N: m.Streams, Ramp: m.ramp(), First: 1, Window: w.Window, Timeout: m.seconds + time.Minute}.Run()
	f, err := m.figures(w, r, r.Tokens)
	if err == nil {
		f["growth_mib"] = (float64(w.to.RSS) - before) / (1 << 20)
		f.quantiles("others_", r.Token)
	}
	return f, err
}

// steady makes many requests: what memory grows by after the first tenth of them is a leak.
func (m *measurement) steady() (Figures, error) {
	bodies := m.chat(false, m.Tokens, "")
	var rss [2]float64
	var result *load.Result
	next := uint64(0)
	for i, requests := range []uint64{m.Requests / 10, m.Requests - m.Requests/10} {
		result, next = load.Closed{Target: m.target(), Bodies: bodies, Clients: m.Clients, First: next, Requests: requests, Window: load.Window{Measure: m.seconds}}.Run()
		if result.Requests == 0 {
			return nil, fmt.Errorf("nothing was answered: %v", result.Failures)
		}
		if result.Failed() > 0 {
			m.notes = append(m.notes, fmt.Sprintf("failed: %v", result.Failures))
		}
		var err error
		if rss[i], err = m.rss(); err != nil {
			return nil, err
		}
	}
	return Figures{"growth_percent": 100 * (rss[1]/rss[0] - 1), "rss_mib": rss[1] / (1 << 20), "per_second": float64(result.Requests) / result.Seconds}, nil
}

const (
	leaveTries   = 5
	leaveTimeout = 3 * time.Second
)

// leave measures how soon an engine is rid of a client that has left.
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
		f[name] = spread(all).Max
	}
	return f, nil
}

// leaveOnce is the time in milliseconds, infinite if nothing happened within leaveTimeout.
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
	time.Sleep(5 * time.Millisecond) // the engine waits for the end by now
	gone := time.Now()
	w.Leave()
	select {
	case at := <-site.left:
		return float64(at.Sub(gone)) / 1e6, nil
	case <-time.After(leaveTimeout):
		return math.Inf(1), nil
	}
}

// requests is how many the engines have got.
func (s *Site) requests() (n int64) {
	for _, e := range s.engines {
		n += e.Requests()
	}
	return n
}
