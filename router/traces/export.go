package traces

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// Loss is the reason why spans did not reach the collector.
type Loss string

// These are the losses.
const (
	LossQueue     Loss = "queue"     // too many spans wait
	LossCollector Loss = "collector" // the collector did not take a batch, or not all of it
	LossShutdown  Loss = "shutdown"  // the time to send the last spans was over
)

const (
	batchMax  = 512             // spans that are sent together
	flushTime = 3 * time.Second // for the last spans, when the router stops
	errorMax  = 300             // bytes of an error in the log; the collector chooses the text
	sayEvery  = time.Minute     // time between two log lines about losses
)

// export is the queue of ended spans, and the goroutine that sends them. It is a span processor of
// the SDK. The SDK's own processor does not tell how many spans it drops.
type export struct {
	to      sdk.SpanExporter
	release func()
	dropped func(Loss, int)
	log     *slog.Logger
	every   time.Duration

	ending  sync.RWMutex // held for reading while a span enters spans, and for writing by close
	spans   chan sdk.ReadOnlySpan
	batch   []sdk.ReadOnlySpan // used by run only, and so are the next two
	lost    int                // spans that the collector did not take, since the last log line
	said    time.Time          // time of that line
	closing chan struct{}
	done    chan struct{}
	ctx     context.Context // of all sending
	stop    context.CancelFunc
}

func newExport(o *Options) (*export, error) {
	e := &export{
		to: o.exporter, release: func() {}, dropped: o.Dropped, log: o.Logger, every: cmp.Or(o.Every, time.Second),
		spans: make(chan sdk.ReadOnlySpan, o.Queue), batch: make([]sdk.ReadOnlySpan, 0, batchMax),
		closing: make(chan struct{}), done: make(chan struct{}),
	}
	if e.to == nil {
		var err error
		if e.to, e.release, err = o.open(); err != nil {
			return nil, err
		}
	}
	e.ctx, e.stop = context.WithCancel(context.Background())
	go e.run()
	return e, nil
}

// OnStart implements sdk.SpanProcessor.
func (*export) OnStart(context.Context, sdk.ReadWriteSpan) {}

// OnEnd queues an ended span. OnEnd never waits for the collector. After close has begun, no span
// enters the queue: what is in the queue then is sent, or counts as lost.
func (e *export) OnEnd(s sdk.ReadOnlySpan) {
	e.ending.RLock()
	defer e.ending.RUnlock()
	select {
	case <-e.closing:
		e.dropped(LossShutdown, 1)
		return
	default:
	}
	select {
	case e.spans <- s:
	default:
		e.dropped(LossQueue, 1)
	}
}

// Shutdown implements sdk.SpanProcessor. Only close ends the export.
func (*export) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdk.SpanProcessor.
func (*export) ForceFlush(context.Context) error { return nil }

// close sends the waiting spans for at most flushTime, and ends the export.
func (e *export) close() {
	limit := time.AfterFunc(flushTime, e.stop)
	defer limit.Stop()
	e.ending.Lock()
	close(e.closing)
	e.ending.Unlock()
	<-e.done
	e.stop()
	_ = e.to.Shutdown(context.Background()) // nothing is left to send
	e.release()
}

// run sends a batch when it is full, and when its first span has waited for the time of every.
func (e *export) run() {
	defer close(e.done)
	due := time.NewTimer(e.every)
	due.Stop()
	for {
		select {
		case s := <-e.spans:
			if len(e.batch) == 0 {
				due.Reset(e.every)
			}
			if e.batch = append(e.batch, s); len(e.batch) == batchMax {
				due.Stop()
				e.send()
			}
		case <-due.C:
			e.send()
		case <-e.closing:
			e.drain()
			return
		}
	}
}

// drain sends what is queued.
func (e *export) drain() {
	for {
		select {
		case s := <-e.spans:
			if e.batch = append(e.batch, s); len(e.batch) == batchMax {
				e.send()
			}
		default:
			e.send()
			return
		}
	}
}

// send sends the batch and empties it. A batch that the collector takes in part counts as lost.
func (e *export) send() {
	n := len(e.batch)
	if n == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(e.ctx, exportTime)
	err := e.to.ExportSpans(ctx, e.batch)
	cancel()
	clear(e.batch)
	e.batch = e.batch[:0]
	if err == nil {
		return
	}
	why := LossCollector
	if e.ctx.Err() != nil {
		why = LossShutdown
	}
	e.dropped(why, n)
	e.lost += n
	if now := time.Now(); now.Sub(e.said) >= sayEvery {
		text := err.Error()
		e.log.Warn("the collector does not take spans", "error", text[:min(len(text), errorMax)],
			"spans_lost_since_last_line", e.lost)
		e.said, e.lost = now, 0
	}
}
