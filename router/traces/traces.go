// Package traces records a request as a tree of OpenTelemetry spans: one for the request, one for
// each leg, and one for each attempt. A queue of bounded length takes the spans to a collector.
//
// A request that is not sampled has a nil *Request. All methods of a nil *Request, *Leg and
// *Attempt do nothing, so that such a request costs a comparison at each of its steps. No method is
// called for a token.
package traces

import (
	"context"
	"crypto/tls"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/cognitora/dataplane/internal/buildinfo"
)

// Options say which requests become spans, and where the spans go.
type Options struct {
	Endpoint Endpoint
	TLS      *tls.Config       // for an https endpoint
	Headers  map[string]string // sent with each batch, for instance a key of the collector
	// Sample is the share, from 0 to 1, of the requests without a traceparent that are recorded. A
	// request with a traceparent is recorded if its flag says so.
	Sample float64
	Queue  int           // ended spans that may wait to be sent; further ones are dropped
	Every  time.Duration // longest wait of a span for a full batch; 0: 1 s
	// Dropped is called for spans that do not reach the collector, with their number. Dropped must
	// not block.
	Dropped func(why Loss, spans int)
	Logger  *slog.Logger

	exporter sdk.SpanExporter // replaces the one for Endpoint in tests
}

// Tracer begins the spans of requests. A nil Tracer records nothing. Tracer is safe for concurrent
// use.
type Tracer struct {
	sample   float64
	tracer   trace.Tracer
	exporter *export
}

// Bounds of a span. The router sets fewer attributes; only texts of clients are cut.
const (
	attributesMax = 64
	textMax       = 256 // characters of an attribute
)

// New returns a tracer and starts its exporter, which Close stops.
func New(o Options) (*Tracer, error) {
	from, err := source()
	if err != nil {
		return nil, err
	}
	e, err := newExport(&o)
	if err != nil {
		return nil, err
	}
	provider := sdk.NewTracerProvider(
		sdk.WithResource(from),
		sdk.WithSampler(sdk.AlwaysSample()), // Begin has decided
		sdk.WithSpanProcessor(e),
		sdk.WithRawSpanLimits(sdk.SpanLimits{
			AttributeValueLengthLimit: textMax, AttributeCountLimit: attributesMax,
			EventCountLimit: 1, LinkCountLimit: 1, AttributePerEventCountLimit: 1, AttributePerLinkCountLimit: 1,
		}),
	)
	scope := provider.Tracer("github.com/cognitora/dataplane/router",
		trace.WithInstrumentationVersion(buildinfo.Version()), trace.WithSchemaURL(semconv.SchemaURL))
	return &Tracer{o.Sample, scope, e}, nil
}

// source describes this router. The standard variables OTEL_SERVICE_NAME and
// OTEL_RESOURCE_ATTRIBUTES replace and add to the description.
func source() (*resource.Resource, error) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return resource.New(context.Background(),
		resource.WithSchemaURL(semconv.SchemaURL),
		resource.WithAttributes(
			semconv.ServiceName("cgn-router"), semconv.ServiceVersion(buildinfo.Version()), semconv.HostName(host),
		),
		resource.WithFromEnv(),
	)
}

// Close sends the waiting spans for at most 3 s, and drops the rest. Spans that end later are
// dropped. Call Close once.
func (t *Tracer) Close() {
	if t != nil {
		t.exporter.close()
	}
}

// Begin decides whether a request becomes spans. lines are the header lines that go to the engine,
// each with its line end; at is the request's arrival. Begin returns the lines to send, in the
// memory of the given ones:
//
//   - If the request is not recorded, r is nil. A valid traceparent stays as it is. Without one,
//     Begin adds a traceparent whose flag keeps an engine from recording the request, too.
//   - If the request is recorded, the lines have neither traceparent nor tracestate. Attempts send
//     their own; see Attempt.AppendHeader.
//
// A malformed or repeated traceparent counts as none, and does not go to the engine.
func (t *Tracer) Begin(lines []byte, at time.Time) (rest []byte, r *Request) {
	if t == nil {
		return lines, nil
	}
	in := find(lines)
	parent, ok := parseParent(in.parent)
	if ok = ok && in.parents == 1; ok && !parent.sampled() {
		return lines, nil
	}
	sampled := ok || rand.Float64() < t.sample
	var state string
	if ok && in.states > 0 && sampled {
		state = joined(lines)
	}
	if in.parents+in.states > 0 {
		lines = without(lines)
	}
	if !sampled {
		return appendParent(lines, newContext()), nil
	}
	ctx := context.Background()
	if ok {
		ctx = trace.ContextWithRemoteSpanContext(ctx, parent.span(state))
	}
	return lines, t.begin(ctx, at)
}

func (t *Tracer) begin(ctx context.Context, at time.Time) *Request {
	ctx, span := t.tracer.Start(ctx, "request", trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(at))
	return &Request{span: made{span, ctx, t.tracer, at}}
}
