package traces

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

const (
	clientTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	clientSpan  = "00f067aa0ba902b7"
	recorded    = "00-" + clientTrace + "-" + clientSpan + "-01"
	unrecorded  = "00-" + clientTrace + "-" + clientSpan + "-00"
)

var parents = map[string]bool{ // whether they are valid
	recorded: true, unrecorded: true, " " + recorded + "\t": true,
	"00-" + clientTrace + "-" + clientSpan + "-03": true,
	"cc-" + clientTrace + "-" + clientSpan + "-01": true, "cc-" + clientTrace + "-" + clientSpan + "-01-more": true,
	"": false, "00": false, recorded[:54]: false, recorded + "-more": false, recorded + " x": false,
	"cc-" + clientTrace + "-" + clientSpan + "-01x":                 false,
	"ff-" + clientTrace + "-" + clientSpan + "-01":                  false,
	"00-" + strings.Repeat("0", 32) + "-" + clientSpan + "-01":      false,
	"00-" + clientTrace + "-" + strings.Repeat("0", 16) + "-01":     false,
	"00-" + strings.ToUpper(clientTrace) + "-" + clientSpan + "-01": false,
	"00-" + clientTrace[1:] + "g-" + clientSpan + "-01":             false,
	"0x-" + clientTrace + "-" + clientSpan + "-01":                  false,
	"00_" + clientTrace + "-" + clientSpan + "-01":                  false,
	"00-" + clientTrace + "-" + clientSpan + "-0g":                  false,
	"00-" + clientTrace + "-" + clientSpan + "_01":                  false,
	strings.Repeat("0", 4096):                                       false,
	"00-" + clientTrace + "-" + clientSpan[:15] + "\x00" + "-01":    false,
	"00-" + clientTrace[:31] + "\u00e9" + "-" + clientSpan + "-01":  false,
}

func TestParseParent(t *testing.T) {
	for v, want := range parents {
		p, ok := parseParent([]byte(v))
		if ok != want {
			t.Errorf("%q: %v", v, ok)
		}
		if !ok {
			continue
		}
		if p.trace.String() != clientTrace || p.id.String() != clientSpan {
			t.Errorf("%q: %v", v, p)
		}
	}
	value := []byte(recorded)
	if n := testing.AllocsPerRun(100, func() { parseParent(value) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzParent compares the parser with OpenTelemetry's, which differs on purpose: it refuses unknown
// flags of version 00, and takes no blanks around the value.
func FuzzParent(f *testing.F) {
	for v := range parents {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v string) {
		got, ok := parseParent([]byte(v))
		carrier := propagation.MapCarrier{"traceparent": strings.Trim(v, " \t")}
		want := trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
		if unknown := ok && got.flags > 3; unknown {
			return
		}
		if ok != want.IsValid() || ok && (got.trace != want.TraceID() || got.id != want.SpanID() ||
			got.sampled() != want.IsSampled()) {
			t.Fatalf("%q: %v, %v; want %v", v, got, ok, want)
		}
	})
}

// lines returns header lines of names and values in turn.
func lines(fields ...string) []byte {
	var b strings.Builder
	for i := 0; i < len(fields); i += 2 {
		b.WriteString(fields[i] + ": " + fields[i+1] + "\r\n")
	}
	return []byte(b.String())
}

// TestHeadersWithoutRecording checks the header lines of requests that are not recorded.
func TestHeadersWithoutRecording(t *testing.T) {
	never := tracer(t, new(kept), 0)
	for name, tc := range map[string]struct {
		in   []byte
		same bool   // the lines stay as they are
		rest []byte // otherwise: the lines before a new traceparent
	}{
		"off": {in: lines("Accept", "a", "Traceparent", unrecorded, "Tracestate", "a=b", "X", "y"), same: true},
		"a later version": {
			in: lines("Traceparent", "cc-"+clientTrace+"-"+clientSpan+"-00-more", "Tracestate", "??"), same: true},
		"none":        {in: lines("Accept", "a", "Te", "b"), rest: lines("Accept", "a", "Te", "b")},
		"nothing":     {},
		"only state":  {in: lines("A", "b", "Tracestate", "a=b", "C", "d"), rest: lines("A", "b", "C", "d")},
		"malformed":   {in: lines("A", "b", "Traceparent", "00-1-2-01", "Tracestate", "a=b"), rest: lines("A", "b")},
		"two parents": {in: lines("Traceparent", recorded, "A", "b", "Traceparent", recorded), rest: lines("A", "b")},
		"other spelling": {in: lines("TRACEPARENT", "x", "tracestate", "a=b", "Traceparents", "c"),
			rest: lines("Traceparents", "c")},
	} {
		got, r := never.Begin([]byte(string(tc.in)), time.Now())
		if r != nil {
			t.Fatalf("%s: recorded", name)
		}
		if tc.same {
			if string(got) != string(tc.in) {
				t.Errorf("%s: %q", name, got)
			}
			continue
		}
		added, cut := strings.CutPrefix(string(got), string(tc.rest))
		p, ok := parseParent([]byte(strings.TrimSuffix(strings.TrimPrefix(added, "Traceparent: "), "\r\n")))
		if !cut || !ok || p.flags != 0 {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestOffAndUnsampledAllocateNothing follows all steps of a request that is not recorded.
func TestOffAndUnsampledAllocateNothing(t *testing.T) {
	var off *Tracer
	never := tracer(t, new(kept), 0)
	for name, head := range map[string][]byte{
		"no parent": lines("Accept", "a", "Content-Type", "application/json", "X-Request-Id", "1"),
		"unsampled": lines("Accept", "a", "Traceparent", unrecorded, "Tracestate", "a=b"),
		"malformed": lines("Accept", "a", "Traceparent", "00-1-2-01", "Tracestate", "a=b"),
	} {
		memory := make([]byte, 0, 512)
		for _, tr := range []*Tracer{off, never} {
			n := testing.AllocsPerRun(100, func() {
				sent, r := tr.Begin(append(memory, head...), time.Time{})
				l := r.Leg("answer")
				a := l.Attempt(nil)
				sent = a.AppendHeader(sent)
				a.End(nil)
				l.End(nil)
				r.Describe(nil)
				r.End()
				if len(sent) == 0 {
					t.Fatal("no lines")
				}
			})
			if n != 0 {
				t.Errorf("%s, off %v: %v allocations", name, tr == nil, n)
			}
		}
	}
}
