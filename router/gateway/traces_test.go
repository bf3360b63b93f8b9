package gateway

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracing "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/cognitora/dataplane/router/traces"
)

// TestTraceOfTwoLegs checks that a request of two legs has one span, with a span for each leg below
// it, and one for each attempt below its leg.
func TestTraceOfTwoLegs(t *testing.T) {
	both(t, 3, func(t *testing.T, ln *lane) {
		all := recorded(t, ln, func() {
			if got := read(ln.ask(t.Context(), 10).Body); got.contents != 20 {
				t.Errorf("%+v", got)
			}
			ln.idle()
		})
		parents, names := map[string]string{}, map[string]string{}
		for _, s := range all {
			parents[string(s.SpanId)], names[string(s.SpanId)] = string(s.ParentSpanId), s.Name
		}
		ways := map[string]int{}
		for id, name := range names {
			way := name
			for up := parents[id]; up != ""; up = parents[up] {
				way = names[up] + " > " + way
			}
			ways[way]++
		}
		const top = "POST /v1/chat/completions"
		want := map[string]int{top: 1, top + " > leg answer": 2, top + " > leg answer > chat sim": 2}
		if fmt.Sprint(ways) != fmt.Sprint(want) || len(all) != 5 {
			t.Errorf("%v, want %v", ways, want)
		}
	})
}

// recorded returns the spans of what ask does.
func recorded(t *testing.T, ln *lane, ask func()) (all []*tracing.Span) {
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var batch collector.ExportTraceServiceRequest
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = proto.Unmarshal(body, &batch)
		}
		if err != nil {
			t.Error(err)
		}
		for _, s := range batch.ResourceSpans {
			all = append(all, s.ScopeSpans[0].Spans...)
		}
	}))
	defer web.Close()
	tracer, err := traces.New(traces.Options{
		Endpoint: traces.Endpoint{Host: strings.TrimPrefix(web.URL, "http://"), Path: "/v1/traces"},
		Sample:   1, Queue: 64, Dropped: func(why traces.Loss, n int) { t.Errorf("%d spans are lost: %s", n, why) },
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ln.traces = tracer
	ask()
	tracer.Close() // waits for the collector
	return all
}
