package engine

import (
	"math"
	"slices"
	"sync/atomic"
	"time"
)

// histogram counts observations and writes them in cumulative form. One goroutine observes; any may
// read.
type histogram struct {
	bounds []float64
	counts []atomic.Int64 // one count more than bounds
	sum    atomic.Uint64  // bits of a float
}

func newHistogram(bounds []float64) *histogram {
	return &histogram{bounds: bounds, counts: make([]atomic.Int64, len(bounds)+1)}
}

func (h *histogram) observe(v float64) {
	i, _ := slices.BinarySearch(h.bounds, v)
	h.counts[i].Add(1)
	h.sum.Store(math.Float64bits(math.Float64frombits(h.sum.Load()) + v))
}

// These are the bucket bounds of vLLM's histograms.
var (
	ttftBounds = []float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
		160, 640, 2560}
	itlBounds     = []float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
	requestBounds = []float64{.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}
	lengthBounds  = []float64{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}
	stepBounds    = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}
)

// finishReasons are the labels of vllm:request_success_total.
var finishReasons = []string{"stop", "length", "abort", "error", "repetition"}

// meters are the engine's own figures, in simulated time. The scheduler writes the meters. /metrics
// and /sim/stats read them.
type meters struct {
	started time.Time

	running, waiting, maxRunning          atomic.Int64
	usedBlocks, cachedBlocks              atomic.Int64
	queries, hits, prompt, generated      atomic.Int64
	preemptions, evictions                atomic.Int64
	filled, received                      atomic.Int64    // prompt tokens computed, and got from other engines
	success                               [5]atomic.Int64 // by finishReasons
	ttft, itl, tpot, e2e, queue           *histogram
	inference, prefill, decode            *histogram
	promptLen, outputLen, computed, steps *histogram
}

func newMeters() *meters {
	return &meters{
		started: time.Now(),
		ttft:    newHistogram(ttftBounds), itl: newHistogram(itlBounds), tpot: newHistogram(itlBounds),
		e2e: newHistogram(requestBounds), queue: newHistogram(requestBounds),
		inference: newHistogram(requestBounds), prefill: newHistogram(requestBounds),
		decode:    newHistogram(requestBounds),
		promptLen: newHistogram(lengthBounds), outputLen: newHistogram(lengthBounds),
		computed: newHistogram(lengthBounds), steps: newHistogram(stepBounds),
	}
}

func (m *meters) peak(running int64) {
	if running > m.maxRunning.Load() {
		m.maxRunning.Store(running)
	}
}

// admitted counts a prompt that enters the batch for the first time.
func (m *meters) admitted(q *sequence) {
	m.queries.Add(int64(q.size))
	m.hits.Add(q.cached.Load())
	if q.received {
		m.received.Add(int64(q.size) - q.cached.Load())
	}
	m.queue.observe((q.admitted - q.arrived).Seconds())
}

// token counts one generated token of q.
func (m *meters) token(q *sequence, now time.Duration) {
	m.generated.Add(1)
	if q.produced.Load() == 0 {
		q.first = now
		m.prompt.Add(int64(q.size))
		m.ttft.observe((now - q.arrived).Seconds())
	} else {
		m.itl.observe((now - q.last).Seconds())
	}
	q.last = now
}

func (m *meters) step(tokens int) { m.steps.observe(float64(tokens)) }

// completed counts a complete answer.
func (m *meters) completed(q *sequence, now time.Duration) {
	n := q.produced.Load()
	m.finished(q.output.reason)
	m.e2e.observe((now - q.arrived).Seconds())
	m.inference.observe((now - q.admitted).Seconds())
	m.prefill.observe((q.first - q.admitted).Seconds())
	m.decode.observe((now - q.first).Seconds())
	if n > 1 {
		m.tpot.observe((now - q.first).Seconds() / float64(n-1))
	}
	m.promptLen.observe(float64(q.size))
	m.outputLen.observe(float64(n))
	if q.received {
		m.computed.observe(0)
		return
	}
	m.computed.observe(float64(q.size) - float64(q.cached.Load()))
}

// finished counts an end by its reason. A tool call ends by a stop token.
func (m *meters) finished(reason string) {
	m.success[max(slices.Index(finishReasons, reason), 0)].Add(1)
}
