package load

import (
	"errors"
	"io"
	"maps"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Window is the measured part of a run. Requests and tokens outside the Window are sent and
// checked, but not counted.
type Window struct {
	Warmup  time.Duration
	Measure time.Duration
	// Begin and End, if set, are called at the beginning and the end of the window: Begin before
	// the counts are read, End after.
	Begin, End func()
	// Stop, if set, ends the run early when it is closed. Running requests are then abandoned, or
	// end within their time limits.
	Stop <-chan struct{}
}

// pause waits until d has passed, or done or Stop is closed.
func (w *Window) pause(d time.Duration, done <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-done:
	case <-w.Stop:
	}
}

// stopped reports whether Stop is closed.
func (w *Window) stopped() bool {
	select {
	case <-w.Stop:
		return true
	default:
		return false
	}
}

func pause(d time.Duration, done <-chan struct{}) {
	w := Window{}
	w.pause(d, done)
}

// Failures counts failed requests by reason, and keeps the text of the first.
type Failures struct {
	mu    sync.Mutex
	by    map[string]int
	first string
}

func (f *Failures) add(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		f.by, f.first = map[string]int{}, err.Error()
	}
	f.by[reason(err)]++
}

// all returns the counts, and the text of the first failure.
func (f *Failures) all() (counts map[string]int, first string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.by), f.first
}

// reason maps errors to a few texts.
func reason(err error) string {
	var status statusError
	var network net.Error
	var errno syscall.Errno
	switch {
	case errors.As(err, &status):
		return "status " + strconv.Itoa(status.status)
	case errors.As(err, &network) && network.Timeout():
		return "timeout"
	}
	for _, known := range reasons {
		if errors.Is(err, known.is) {
			return known.text
		}
	}
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return "another error"
}

// reasons are the texts of known errors. The first that fits counts.
var reasons = []struct {
	is   error
	text string
}{
	{syscall.ECONNREFUSED, "refused"}, {syscall.ECONNRESET, "reset"}, {syscall.EPIPE, "reset"}, {io.EOF, "closed"},
	{errCount, errCount.Error()}, {errOrder, errOrder.Error()}, {errStray, errStray.Error()},
	{errClosed, errClosed.Error()}, {errEvent, errEvent.Error()}, {errBroken, errBroken.Error()},
	{errStale, errStale.Error()},
}

// Result is the result of a run.
type Result struct {
	// Requests is the number of requests that were completely answered in the window; for Streams,
	// in the whole run.
	Requests int64 `json:"requests"`
	// Tokens is the number of tokens that arrived in the window.
	Tokens   int64          `json:"tokens,omitempty"`
	Failures map[string]int `json:"failures,omitempty"` // in the whole run
	// Sample is the first failure: status and the first 200 bytes of the body, or the error.
	Sample  string  `json:"failure_sample,omitempty"`
	Seconds float64 `json:"window_seconds"`
	// Latency is the time to the end of an answer. In an open loop the latency counts from the due
	// time.
	Latency Quantiles `json:"latency"`
	// TTFT is the time to the first token, counted like Latency.
	TTFT Quantiles `json:"ttft"`
	// Token is the time from the engine's sending of a token to its arrival.
	Token Quantiles `json:"token"`
	// Late is the time from a request's due time until a connection gets it.
	Late Quantiles `json:"late"`
	// OwnCPUSeconds is the CPU time that this process used in the window.
	OwnCPUSeconds float64 `json:"own_cpu_seconds"`
}

// Failed returns the number of requests without a complete and correct answer.
func (r *Result) Failed() (n int) {
	for _, count := range r.Failures {
		n += count
	}
	return n
}

// ownCPU returns the CPU time of this process so far, in seconds.
func ownCPU() float64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// run is the state that the connections of one run share.
type run struct {
	target   Target
	bodies   *Chat
	sink     *sink // nil: no streams
	timeout  time.Duration
	next     atomic.Uint64 // number of the next request
	answered atomic.Int64
	failures Failures

	counting       atomic.Bool // true inside the window
	latency, first Histogram
	late           Histogram
}

// measure waits for the window, or until done is closed, and fills in the growth of count and the
// CPU time. start is called before the warm-up or, without one, inside the window.
func (r *run) measure(w Window, start func(), done <-chan struct{}, count func() int64) *Result {
	if w.Warmup > 0 {
		start()
		w.pause(w.Warmup, done)
	}
	if w.Begin != nil {
		w.Begin()
	}
	cpu := ownCPU()
	r.counting.Store(true)
	from, begun := count(), time.Now()
	if w.Warmup == 0 {
		start()
	}
	w.pause(w.Measure, done)
	result := &Result{Requests: count() - from, Seconds: time.Since(begun).Seconds()}
	r.counting.Store(false)
	result.OwnCPUSeconds = ownCPU() - cpu
	if w.End != nil {
		w.End()
	}
	return result
}

// work runs do, and measures the answers. do ends by itself, or when stop is closed after the
// window, and then waits for the last answers.
func (r *run) work(w Window, do func(stop <-chan struct{})) *Result {
	stop, done := make(chan struct{}), make(chan struct{})
	start := func() {
		go func() {
			defer close(done)
			do(stop)
		}()
	}
	result := r.measure(w, start, done, r.answered.Load)
	close(stop)
	<-done
	r.finish(result)
	return result
}

func (r *run) finish(result *Result) {
	result.Failures, result.Sample = r.failures.all()
	result.Latency, result.TTFT, result.Late = r.latency.Quantiles(), r.first.Quantiles(), r.late.Quantiles()
	if r.sink != nil && r.sink.Delay != nil {
		result.Token = r.sink.Delay.Quantiles()
	}
}

// one sends one request on c. The request's times count from due.
func (r *run) one(c *conn, s *sink, n uint64, due time.Time) bool {
	err := c.exchange(r.bodies, n, time.Now().Add(r.timeout), s)
	if err != nil {
		r.failures.add(err)
		return false
	}
	r.answered.Add(1)
	if r.counting.Load() {
		r.latency.Add(time.Since(due))
	}
	return true
}
