package traces

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/usage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kept is an exporter that keeps spans. Its ExportSpans fails with fault, and waits while hang is
// open.
type kept struct {
	mu      sync.Mutex
	spans   tracetest.SpanStubs
	batches []int
	fault   error
	hang    chan struct{}
}

func (k *kept) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	k.mu.Lock()
	hang, fault := k.hang, k.fault
	k.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if fault != nil {
		return fault
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.spans = append(k.spans, tracetest.SpanStubsFromReadOnlySpans(spans)...)
	k.batches = append(k.batches, len(spans))
	return nil
}

// count returns the number of spans so far.
func (k *kept) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.spans)
}

func (*kept) Shutdown(context.Context) error { return nil }

// losses counts lost spans by reason.
type losses struct {
	mu  sync.Mutex
	all map[Loss]int
}

func (l *losses) add(why Loss, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[Loss]int{}
	}
	l.all[why] += n
}

func (l *losses) of(why Loss) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[why]
}

func with(k *kept, o Options) Options {
	o.exporter = k
	if o.Queue == 0 {
		o.Queue = 64
	}
	if o.Dropped == nil {
		o.Dropped = func(Loss, int) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return o
}

func open(t testing.TB, o Options) *Tracer {
	t.Helper()
	tr, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func tracer(t *testing.T, k *kept, sample float64) *Tracer {
	t.Helper()
	tr := open(t, with(k, Options{Sample: sample}))
	t.Cleanup(tr.Close)
	return tr
}

// TestTree checks the spans of a request with two attempts, and their order in time.
func TestTree(t *testing.T) {
	k := new(kept)
	tr := open(t, with(k, Options{}))
	at := time.Now()
	in := lines("A", "b", "Traceparent", recorded, "Tracestate", "x=1", "C", "d", "Tracestate", "y=2")
	rest, r := tr.Begin(in, at)
	if string(rest) != string(lines("A", "b", "C", "d")) || r == nil {
		t.Fatalf("%q, %v", rest, r)
	}
	l := r.Leg("answer")
	first := l.Attempt(&AttemptBegin{At: at, API: "chat", Model: "m", Node: "n1", Rank: -1, Address: "http://h:81"})
	first.End(&AttemptEnd{Verdict: "connect", Failed: "connect"})
	second := l.Attempt(&AttemptBegin{
		At: at, API: "completions", Model: "m", Engine: "vllm", Node: "n2", Rank: 1, Address: "unix:///run/e.sock",
		Stream: true, Expected: time.Second,
	})
	sent := string(second.AppendHeader(nil))
	second.End(&AttemptEnd{Verdict: "answered", Status: 200, End: "complete", Stream: true,
		TTFT: 500 * time.Millisecond, Usage: usage.Counts{Prompt: 7, HasPrompt: true, Cached: 0, HasCached: true}})
	l.End(&LegEnd{Model: "m", Mode: "score", Node: "n2", Matched: 3, Total: 4, Attempts: 2})
	r.Describe(&RequestEnd{Method: "POST", Route: "/v1/chat/completions", API: "chat", Generates: true, Status: 200,
		End: "complete", Asked: "\xff" + strings.Repeat("m", 1000)})
	r.End()
	r.End()
	tr.Close()
	if len(k.spans) != 4 {
		t.Fatalf("%d spans", len(k.spans))
	}
	one, two, leg, request := k.spans[0], k.spans[1], k.spans[2], k.spans[3]
	for _, s := range k.spans {
		if c := s.SpanContext; c.TraceID().String() != clientTrace || c.TraceState().String() != "x=1,y=2" {
			t.Errorf("%s: %v", s.Name, c)
		}
	}
	if request.Parent.SpanID().String() != clientSpan || leg.Parent.SpanID() != request.SpanContext.SpanID() ||
		one.Parent.SpanID() != leg.SpanContext.SpanID() || two.Parent.SpanID() != leg.SpanContext.SpanID() {
		t.Errorf("no tree: %v", k.spans)
	}
	id := two.SpanContext.SpanID().String()
	if want := string(lines("Traceparent", "00-"+clientTrace+"-"+id+"-01", "Tracestate", "x=1,y=2")); sent != want {
		t.Errorf("the engine gets %q, want %q", sent, want)
	}
	if !request.StartTime.Equal(at) ||
		two.Name != "text_completion m" || request.Name != "POST /v1/chat/completions" {
		t.Errorf("%v %q %q", request.StartTime, two.Name, request.Name)
	}
	if got := textOf(&request, "gen_ai.request.model"); !strings.HasPrefix(got, "\uFFFDmmm") || len(got) > 2*textMax {
		t.Errorf("the model's name is %.20q of %d bytes", got, len(got))
	}
	for name, want := range map[string]string{
		"server.address": "/run/e.sock", "gen_ai.provider.name": "vllm", "cgn.node.dp_rank": "1",
		"cgn.ttft.expected": "1", "gen_ai.response.time_to_first_chunk": "0.5", "gen_ai.usage.input_tokens": "7",
		"gen_ai.usage.cache_read.input_tokens": "0", "gen_ai.usage.output_tokens": "", "server.port": "",
	} {
		if got := textOf(&two, name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if textOf(&one, "server.port") != "81" || textOf(&one, "error.type") != "connect" {
		t.Errorf("%v", one.Attributes)
	}
}

func textOf(s *tracetest.SpanStub, name string) string {
	for _, a := range s.Attributes {
		if string(a.Key) == name {
			return a.Value.String()
		}
	}
	return ""
}

// TestOneClock checks that spans of a request are as far apart on the wall clock as on the
// monotonic one, which two readings of both clocks never are.
func TestOneClock(t *testing.T) {
	k := new(kept)
	tr := open(t, with(k, Options{Sample: 1}))
	begin := time.Now()
	_, r := tr.Begin(nil, begin)
	l := r.Leg("answer")
	sent := time.Now()
	a := l.Attempt(&AttemptBegin{At: sent})
	a.End(&AttemptEnd{})
	l.End(&LegEnd{})
	r.End()
	tr.Close()
	if len(k.spans) != 3 {
		t.Fatalf("%d spans", len(k.spans))
	}
	for _, s := range k.spans {
		for _, at := range []time.Time{s.StartTime, s.EndTime} {
			if wall, passed := at.Round(0).Sub(begin.Round(0)), at.Sub(begin); wall != passed {
				t.Errorf("%s: %s on the wall clock, %s passed", s.Name, wall, passed)
			}
		}
	}
	if got := k.spans[0].StartTime; !got.Equal(begin.Add(sent.Sub(begin))) {
		t.Errorf("the attempt begins at %s, want %s after the request", got, sent.Sub(begin))
	}
}

// TestSample checks the share of requests without a traceparent.
func TestSample(t *testing.T) {
	tr := tracer(t, new(kept), 0.25)
	n := 0
	for range 4000 {
		if _, r := tr.Begin(nil, time.Now()); r != nil {
			n++
		}
	}
	if n < 800 || n > 1200 { // 7 standard deviations
		t.Errorf("%d of 4000 requests", n)
	}
}

// spansOf ends n spans.
func spansOf(tr *Tracer, n int) {
	for range n {
		_, r := tr.Begin(nil, time.Now())
		r.End()
	}
}

// TestBatches checks that spans wait for a full batch, but not for long.
func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(kept)
		tr := open(t, with(k, Options{Sample: 1, Queue: 2 * batchMax, Every: time.Second}))
		spansOf(tr, batchMax+1)
		synctest.Wait()
		if n := k.count(); n != batchMax {
			t.Errorf("%d spans at once", n)
		}
		time.Sleep(time.Second - 1)
		synctest.Wait()
		if n := k.count(); n != batchMax {
			t.Errorf("%d spans before the time", n)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if n := k.count(); n != batchMax+1 {
			t.Errorf("%d spans after the time", n)
		}
		spansOf(tr, 3)
		tr.Close()
		if n := k.count(); n != batchMax+4 {
			t.Errorf("%d spans at the end", n)
		}
	})
}

// TestLosses checks a full queue, a collector that refuses, and an end without a collector.
func TestLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lost losses
		var log strings.Builder
		k := &kept{hang: make(chan struct{})}
		tr := open(t, with(k, Options{
			Sample: 1, Queue: 8, Dropped: lost.add, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		}))
		spansOf(tr, 1)
		time.Sleep(2 * time.Second) // it is being sent
		spansOf(tr, 11)
		if got := lost.of(LossQueue); got != 3 {
			t.Errorf("%d spans beyond the queue, want 3", got)
		}
		k.mu.Lock()
		k.fault = errors.New(strings.Repeat("no ", 1000))
		k.mu.Unlock()
		close(k.hang)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got := lost.of(LossCollector); got != 8 || k.count() != 1 {
			t.Errorf("%d spans refused, want 8; %d taken", got, k.count())
		}
		if text := log.String(); strings.Count(text, "\n") != 1 || len(text) > 2*errorMax {
			t.Errorf("the log says %q", text)
		}
		k.mu.Lock()
		k.hang = make(chan struct{})
		k.mu.Unlock()
		spansOf(tr, 5)
		began := time.Now()
		tr.Close()
		if took := time.Since(began); took != flushTime || lost.of(LossShutdown) != 5 {
			t.Errorf("the end took %v, and %d spans were lost", took, lost.of(LossShutdown))
		}
		spansOf(tr, 1)
		if got := lost.of(LossShutdown); got != 6 {
			t.Errorf("%d spans lost after the end", got)
		}
	})
}

// TestNoSpanIsForgotten checks that close waits for a span that is entering the queue, and that the
// span is sent.
func TestNoSpanIsForgotten(t *testing.T) {
	var lost losses
	k := new(kept)
	tr := open(t, with(k, Options{Sample: 1, Dropped: lost.add}))
	e := tr.exporter
	e.ending.RLock() // as OnEnd does
	closed := make(chan struct{})
	go func() {
		tr.Close()
		close(closed)
	}()
	for e.ending.TryRLock() { // until close waits
		e.ending.RUnlock()
		runtime.Gosched()
	}
	select {
	case <-e.closing:
		t.Error("the queue is drained while a span enters it")
	default:
	}
	e.spans <- tracetest.SpanStub{Name: "late"}.Snapshot()
	e.ending.RUnlock()
	<-closed
	if sent := k.count(); sent != 1 || lost.of(LossShutdown) != 0 {
		t.Errorf("%d spans were sent, and %d count as lost", sent, lost.of(LossShutdown))
	}
	if spansOf(tr, 1); lost.of(LossShutdown) != 1 {
		t.Error("a span after the end does not count as lost")
	}
}

// BenchmarkRequest measures a request with one leg and one attempt: off, not recorded, and
// recorded. The spans are not sent.
func BenchmarkRequest(b *testing.B) {
	head := lines("Accept", "*/*", "Content-Type", "application/json", "User-Agent", "sdk/1", "X-Request-Id", "0123")
	for _, side := range []struct {
		name   string
		off    bool
		sample float64
	}{{name: "off", off: true}, {name: "unsampled"}, {name: "recorded", sample: 1}} {
		b.Run(side.name, func(b *testing.B) {
			var tr *Tracer
			if !side.off {
				tr = open(b, with(new(kept), Options{Sample: side.sample, Queue: 1}))
				defer tr.Close()
			}
			memory := make([]byte, 0, 512)
			b.ReportAllocs()
			for b.Loop() {
				one(tr, append(memory, head...))
			}
		})
	}
}

func one(tr *Tracer, lines []byte) {
	now := time.Now()
	lines, r := tr.Begin(lines, now)
	l := r.Leg("answer")
	if l != nil {
		a := l.Attempt(&AttemptBegin{At: now, Method: "POST", API: "chat", Model: "m", Engine: "vllm", Node: "n",
			Rank: -1, Address: "http://10.0.0.1:8000", Stream: true, Expected: time.Second})
		a.AppendHeader(lines)
		a.End(&AttemptEnd{Verdict: "answered", Status: 200, End: "complete", Stream: true, TTFT: time.Second,
			Usage: usage.Counts{HasPrompt: true, HasCompletion: true, HasCached: true}})
		l.End(&LegEnd{Model: "m", Mode: "predicted", Node: "n", Attempts: 1})
		r.Describe(&RequestEnd{ID: "0123", Method: "POST", Route: "/v1/chat/completions", API: "chat", Generates: true,
			Asked: "m", Served: "m", Status: 200, End: "complete", Stream: true, TTFT: time.Second})
	}
	r.End()
}
