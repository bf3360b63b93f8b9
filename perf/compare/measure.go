package compare

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cognitora/dataplane/perf/instant"
	"github.com/cognitora/dataplane/perf/load"
	"github.com/cognitora/dataplane/perf/process"
)

// kind is a kind of measurement.
type kind struct {
	measure func(m *measurement) (Figures, error)
	// fresh means that the contestant is started for this measurement only.
	fresh bool
	// idle means that clients' connections to the contestant are idle, so that the contestant needs
	// no engine's connection for them.
	idle bool
	// program excludes direct, which is no program. admin excludes contestants without an admin
	// port.
	program, admin bool
}

var kinds = map[string]*kind{
	"closed":       {measure: (*measurement).closed},
	"open":         {measure: (*measurement).open},
	"streams":      {measure: (*measurement).streams},
	"leave":        {measure: (*measurement).leave, fresh: true},
	"idle":         {measure: (*measurement).idle, fresh: true, idle: true, program: true},
	"open_streams": {measure: (*measurement).openStreams, fresh: true, program: true},
	"slow_reader":  {measure: (*measurement).slowReader, fresh: true, program: true},
	"steady":       {measure: (*measurement).steady, fresh: true, program: true},
	"held":         {measure: (*measurement).held, fresh: true},
	"profile":      {measure: (*measurement).profile, fresh: true, program: true, admin: true},
}

// measurement is one measurement of one contestant in one scenario.
type measurement struct {
	Scenario
	on      *Running
	seconds time.Duration
	stop    <-chan struct{} // ends it early when closed
	edge    func()          // called at both ends of the window, if set
	notes   []string
	top     []Function
}

func (m *measurement) note(format string, args ...any) {
	m.notes = append(m.notes, fmt.Sprintf(format, args...))
}

// Measure makes one measurement of s with this window on a running contestant. The measurement ends
// early when stop is closed.
func Measure(s *Scenario, on *Running, window time.Duration, stop <-chan struct{}) (Figures, error) {
	return MeasureBetween(s, on, window, stop, func() {})
}

// MeasureBetween is Measure, and calls edge at the beginning and the end of the window.
func MeasureBetween(s *Scenario, on *Running, window time.Duration, stop <-chan struct{},
	edge func()) (Figures, error) {
	m := &measurement{Scenario: *s, on: on, seconds: window, stop: stop, edge: edge}
	f, err := kinds[s.Kind].measure(m)
	if err == nil && f["failed"] > 0 {
		err = fmt.Errorf("%s: %s: %s", on.Name, s.Name, m.notes[0])
	}
	return f, err
}

func (m *measurement) target() load.Target { return m.on.Target() }

// chat makes the scenario's requests. tokens and wish are for streams.
func (m *measurement) chat(stream bool, tokens int, wish string) *load.Chat {
	return load.NewChat(load.ChatConfig{Model: instant.Model, PromptBytes: m.PromptBytes, Shared: m.Shared,
		Documents: m.Documents,
		Stream:    stream, Tokens: tokens, Wish: wish, Salt: uint64(len(m.Name))})
}

// warmup returns a time in which caches, pools and code are used.
func (m *measurement) warmup() time.Duration {
	return min(m.seconds/4, time.Second)
}

// metered is a window that records the contestant's usage.
type metered struct {
	load.Window
	from, to process.Usage
	err      error
}

func (m *measurement) window(warmup time.Duration) *metered {
	w := &metered{Window: load.Window{Warmup: warmup, Measure: m.seconds, Stop: m.stop}}
	read := func(into *process.Usage) {
		if m.edge != nil {
			m.edge()
		}
		u, err := m.on.Usage()
		*into, w.err = u, errors.Join(w.err, err)
	}
	w.Begin, w.End = func() { read(&w.from) }, func() { read(&w.to) }
	return w
}

// figures divides the usage by the units of work.
func (m *measurement) figures(w *metered, r *load.Result, units int64) (Figures, error) {
	if w.err != nil {
		return nil, w.err
	}
	if units == 0 {
		return nil, fmt.Errorf("nothing was answered: %v", r.Failures)
	}
	if r.Failed() > 0 {
		m.note("failed: %v", r.Failures)
	}
	f := Figures{
		"cpu_us":     w.to.Sub(w.from).CPU.Seconds() * 1e6 / float64(units),
		"harness_us": r.OwnCPUSeconds * 1e6 / float64(units),
		"per_second": float64(units) / r.Seconds,
		"rss_mib":    float64(w.to.RSS) / (1 << 20),
		"failed":     float64(r.Failed()),
	}
	if len(m.on.processes) == 0 {
		f["cpu_us"], f["rss_mib"] = math.NaN(), math.NaN()
	}
	return f, nil
}

func (f Figures) quantiles(prefix string, q load.Quantiles) {
	f[prefix+"p50_ms"], f[prefix+"p99_ms"], f[prefix+"max_ms"] = q.P50*1e3, q.P99*1e3, q.Max*1e3
}

func (m *measurement) closed() (Figures, error) {
	w := m.window(m.warmup())
	r, next := load.Closed{Target: m.target(), Bodies: m.chat(false, m.Tokens, ""), Clients: m.Clients,
		First: m.on.next[m.Name], Window: w.Window}.Run()
	m.on.next[m.Name] = next
	f, err := m.figures(w, r, r.Requests)
	if err == nil {
		f.quantiles("", r.Latency)
	}
	return f, err
}

func (m *measurement) open() (Figures, error) {
	w := m.window(m.warmup())
	first := m.on.next[m.Name]
	r := load.Open{Target: m.target(), Bodies: m.chat(true, m.Tokens, ""), Arrivals: load.Poisson(m.Rate, 1),
		First: first, Window: w.Window, Timeout: 10 * time.Second}.Run()
	m.on.next[m.Name] = first + 1<<32
	f, err := m.figures(w, r, r.Requests)
	if err == nil {
		f.quantiles("", r.Latency)
		f.quantiles("ttft_", r.TTFT)
	}
	return f, err
}

// ramp returns the time in which streams are opened.
func (m *measurement) ramp() time.Duration {
	return time.Duration(m.Streams) * time.Millisecond
}

// paced returns requests for streams that outlast the window.
func (m *measurement) paced(warmup time.Duration) *load.Chat {
	lasts := m.ramp() + warmup + m.seconds + 200*time.Millisecond
	return m.chat(true, int(lasts.Seconds()*m.Rate)+1, fmt.Sprintf("pace=%d", int(1e6/m.Rate)))
}

// relay relays the scenario's streams in the window w.
func (m *measurement) relay(w *metered) *load.Result {
	first := m.on.next[m.Name]
	m.on.next[m.Name] += uint64(m.Streams)
	return load.Streams{Target: m.target(), Bodies: m.paced(m.warmup()), N: m.Streams, Ramp: m.ramp(), First: first,
		Window: w.Window, Timeout: m.seconds + time.Minute}.Run()
}

func (m *measurement) streams() (Figures, error) {
	w := m.window(m.warmup())
	r := m.relay(w)
	f, err := m.figures(w, r, r.Tokens)
	if err == nil {
		f.quantiles("", r.Token)
		if due := m.Rate * float64(m.Streams); f["per_second"] < 0.97*due {
			m.note("fell behind the %.0f tokens/s that were due", due)
			f["behind"] = 1
		}
	}
	return f, err
}
