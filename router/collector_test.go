package router_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	tracing "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/cognitora/dataplane/router"
)

const (
	clientTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	clientSpan  = "00f067aa0ba902b7"
)

// spans is a collector. It takes spans over OTLP, by HTTP and by gRPC.
type spans struct {
	collector.UnimplementedTraceServiceServer
	http, grpc string // URLs

	mu     sync.Mutex
	all    []*tracing.Span
	keys   []string // values of the header x-key
	source []*common.KeyValue
	refuse bool
}

func collect(t *testing.T) *spans {
	s := &spans{}
	web := httptest.NewServer(http.HandlerFunc(s.post))
	t.Cleanup(web.Close)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	collector.RegisterTraceServiceServer(g, s)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	t.Cleanup(func() { g.Stop(); <-served })
	s.http, s.grpc = web.URL, "http://"+l.Addr().String()
	return s
}

func (s *spans) post(w http.ResponseWriter, r *http.Request) {
	var batch collector.ExportTraceServiceRequest
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = proto.Unmarshal(body, &batch)
	}
	if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" ||
		!s.take(&batch, r.Header.Get("x-key")) {
		http.Error(w, fmt.Sprint("refused: ", err), http.StatusBadRequest)
	}
}

// Export implements collector.TraceServiceServer.
func (s *spans) Export(ctx context.Context, b *collector.ExportTraceServiceRequest) (
	*collector.ExportTraceServiceResponse, error,
) {
	head, _ := metadata.FromIncomingContext(ctx)
	s.take(b, strings.Join(head.Get("x-key"), ","))
	return &collector.ExportTraceServiceResponse{}, nil
}

func (s *spans) take(batch *collector.ExportTraceServiceRequest, key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse {
		return false
	}
	s.keys = append(s.keys, key)
	for _, r := range batch.ResourceSpans {
		s.source = r.Resource.Attributes
		for _, scope := range r.ScopeSpans {
			s.all = append(s.all, scope.Spans...)
		}
	}
	return true
}

// traced is a tweak that sends all requests' spans to the collector.
func (s *spans) traced(c *router.Config) { c.Traces.Endpoint, c.Traces.Sample = s.http, 1 }

// traceTree is the spans of one request.
type traceTree struct {
	t        *testing.T
	request  *tracing.Span
	legs     []*tracing.Span
	attempts []*tracing.Span
}

// tree stops the router and returns the spans, which must be those of one request.
func (s *spans) tree(t *testing.T, at *site) *traceTree {
	t.Helper()
	at.idle()
	if err := at.stop(); err != nil {
		t.Fatal(err)
	}
	return s.treeOfStopped(t)
}

// treeOfStopped is tree for a router that has stopped.
func (s *spans) treeOfStopped(t *testing.T) *traceTree {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := &traceTree{t: t}
	ids := map[string]bool{}
	for _, span := range s.all {
		if id := string(span.SpanId); ids[id] {
			t.Errorf("a span came twice: %s", prototext.Format(span))
		} else {
			ids[id] = true
		}
		switch {
		case span.Kind == tracing.Span_SPAN_KIND_SERVER && r.request == nil:
			r.request = span
		case span.Kind == tracing.Span_SPAN_KIND_INTERNAL:
			r.legs = append(r.legs, span)
		case span.Kind == tracing.Span_SPAN_KIND_CLIENT:
			r.attempts = append(r.attempts, span)
		default:
			t.Errorf("a further span: %s", prototext.Format(span))
		}
		if span.EndTimeUnixNano < span.StartTimeUnixNano || span.StartTimeUnixNano == 0 {
			t.Errorf("%s lasts from %d to %d", span.Name, span.StartTimeUnixNano, span.EndTimeUnixNano)
		}
	}
	if r.request == nil {
		t.Fatalf("no span of a request among %d", len(s.all))
	}
	for _, l := range r.legs {
		r.below(l, r.request)
	}
	for _, a := range r.attempts {
		of := func(l *tracing.Span) bool { return string(l.SpanId) == string(a.ParentSpanId) }
		if i := slices.IndexFunc(r.legs, of); i < 0 {
			t.Errorf("an attempt without a leg: %s", prototext.Format(a))
		} else {
			r.below(a, r.legs[i])
		}
	}
	return r
}

// below checks that a span is a child of another, and lies within its time.
func (r *traceTree) below(child, of *tracing.Span) {
	r.t.Helper()
	if string(child.ParentSpanId) != string(of.SpanId) || string(child.TraceId) != string(of.TraceId) {
		r.t.Errorf("%s is not below %s", child.Name, of.Name)
	}
	if child.StartTimeUnixNano < of.StartTimeUnixNano || child.EndTimeUnixNano > of.EndTimeUnixNano {
		r.t.Errorf("%s does not lie within %s", child.Name, of.Name)
	}
}

// has checks the number of legs and attempts.
func (r *traceTree) has(legs, attempts int) {
	r.t.Helper()
	if len(r.legs) != legs || len(r.attempts) != attempts {
		r.t.Fatalf("%d legs and %d attempts, want %d and %d", len(r.legs), len(r.attempts), legs, attempts)
	}
}

// is checks attributes of a span, given as names and values; an empty value means that there is
// none, and * any.
func (r *traceTree) is(span *tracing.Span, failed bool, want ...string) {
	r.t.Helper()
	if got := span.Status.GetCode() == tracing.Status_STATUS_CODE_ERROR; got != failed {
		r.t.Errorf("%s failed: %v", span.Name, got)
	}
	for i := 0; i < len(want); i += 2 {
		if got := textOf(span.Attributes, want[i]); got != want[i+1] && (want[i+1] != "*" || got == "") {
			r.t.Errorf("%s: %s is %q, want %q", span.Name, want[i], got, want[i+1])
		}
	}
}

func textOf(all []*common.KeyValue, name string) string {
	for _, a := range all {
		if a.Key != name {
			continue
		}
		switch v := a.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			return v.StringValue
		case *common.AnyValue_IntValue:
			return fmt.Sprint(v.IntValue)
		case *common.AnyValue_BoolValue:
			return fmt.Sprint(v.BoolValue)
		case *common.AnyValue_DoubleValue:
			return fmt.Sprint(v.DoubleValue)
		}
	}
	return ""
}

// parentOf returns the traceparent that names the span, with the flag that it is recorded.
func parentOf(span *tracing.Span) string {
	return "00-" + hex.EncodeToString(span.TraceId) + "-" + hex.EncodeToString(span.SpanId) + "-01"
}
