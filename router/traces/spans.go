package traces

import (
	"context"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/cognitora/dataplane/internal/usage"
)

// These attributes have no name in the semantic conventions.
const (
	keyRequestID = attribute.Key("cgn.request.id")      // x-request-id, as in the access log
	keyEnd       = attribute.Key("cgn.end")             // how the answer ended, as in the access log
	keyAttempts  = attribute.Key("cgn.attempts")        // of the request or leg
	keyWork      = attribute.Key("cgn.leg.work")        // answer or prefill
	keyCascade   = attribute.Key("cgn.cascade.name")    // of the request
	keyStep      = attribute.Key("cgn.cascade.step")    // of the leg, or of the request's answer; from 1
	keyMode      = attribute.Key("cgn.policy.mode")     // of the pick
	keyHandover  = attribute.Key("cgn.leg.handover")    // whether another node computed the prompt, and why not
	keyQueued    = attribute.Key("cgn.leg.queued")      // seconds of the wait for a node with room; absent: none
	keyMatched   = attribute.Key("cgn.overlap.matched") // leading blocks believed to be at the node
	keyTotal     = attribute.Key("cgn.overlap.total")   // full blocks of the prompt
	keyNode      = attribute.Key("cgn.node.id")         // of the node that was asked, or of a leg's that answered
	keyRank      = attribute.Key("cgn.node.dp_rank")    // absent if the node has one rank
	keyVerdict   = attribute.Key("cgn.attempt.verdict") // answered, or the metrics' word for the failure
	keyExpected  = attribute.Key("cgn.ttft.expected")   // seconds from the attempt's begin, as the pick expected
)

// made is a span with the context of its children.
type made struct {
	trace.Span
	ctx    context.Context
	tracer trace.Tracer
	root   time.Time // when the request began
}

// child begins a span below m. All spans of a request take the wall clock's time from its begin,
// and their distance to that from the monotonic clock. So a child lies within its parent, even if
// the wall clock is set or the process stalls while it reads the two clocks.
func (m *made) child(name string, kind trace.SpanKind, at time.Time, attributes ...attribute.KeyValue) made {
	ctx, span := m.tracer.Start(m.ctx, name, trace.WithSpanKind(kind),
		trace.WithTimestamp(m.root.Add(at.Sub(m.root))), trace.WithAttributes(attributes...))
	return made{span, ctx, m.tracer, m.root}
}

// fail marks the span as failed.
func (m *made) fail(why string) {
	m.SetStatus(codes.Error, "")
	m.SetAttributes(semconv.ErrorTypeKey.String(why))
}

// appendHeader appends the header lines that name the span as the parent.
func (m *made) appendHeader(dst []byte) []byte {
	c := m.SpanContext()
	dst = appendParent(dst, parent{c.TraceID(), c.SpanID(), byte(c.TraceFlags())})
	if state := c.TraceState().String(); state != "" {
		dst = append(append(append(dst, stateHeader+": "...), state...), "\r\n"...)
	}
	return dst
}

// Request is the span of one request. Legs may begin at the same time. All other methods belong to
// the request's goroutine.
type Request struct{ span made }

// RequestEnd describes an ended request. Empty fields are unknown. Texts are cut at 256 characters.
type RequestEnd struct {
	ID            string
	Method, Route string
	API           string // as in the access log
	Generates     bool   // the request asks a model for something
	Asked         string // the model's name as the client wrote it
	Served        string // its canonical name
	Status        int
	End           string // as in the access log
	Cause         string // why the client got no answer, or a part; empty: it got one
	Failed        bool   // that is no mistake of the client
	Stream        bool
	Attempts      int
	Cascade       string        // its name; empty: none
	Step          int           // of the cascade
	TTFT          time.Duration // 0: there was none
	Usage         usage.Counts
}

// Describe sets the attributes of the span. The span ends with End.
func (r *Request) Describe(e *RequestEnd) {
	if r == nil {
		return
	}
	s := &r.span
	s.SetName(strings.TrimSpace(e.Method + " " + e.Route))
	s.SetAttributes(semconv.HTTPRequestMethodKey.String(e.Method), semconv.HTTPResponseStatusCode(e.Status),
		keyRequestID.String(e.ID), keyEnd.String(e.End), keyAttempts.Int(e.Attempts))
	if e.Route != "" {
		s.SetAttributes(semconv.HTTPRoute(e.Route))
	}
	if e.Cascade != "" {
		s.SetAttributes(keyCascade.String(e.Cascade), keyStep.Int(e.Step))
	}
	if e.Generates {
		s.SetAttributes(semconv.GenAIOperationNameKey.String(operation(e.API)), semconv.GenAIRequestStream(e.Stream))
	}
	if e.Asked != "" {
		s.SetAttributes(semconv.GenAIRequestModel(strings.ToValidUTF8(e.Asked, "\uFFFD")))
	}
	if e.Served != "" {
		s.SetAttributes(semconv.GenAIResponseModel(e.Served))
	}
	s.answered(e.Stream, e.TTFT, &e.Usage)
	switch {
	case e.Failed:
		s.fail(e.Cause)
	case e.Cause != "":
		s.SetAttributes(semconv.ErrorTypeKey.String(e.Cause))
	}
}

// answered sets the attributes of an answer. Only a stream has a first chunk.
func (m *made) answered(stream bool, ttft time.Duration, u *usage.Counts) {
	if stream && ttft > 0 {
		m.SetAttributes(semconv.GenAIResponseTimeToFirstChunk(ttft.Seconds()))
	}
	if u.HasPrompt {
		m.SetAttributes(semconv.GenAIUsageInputTokens(int(u.Prompt)))
	}
	if u.HasCompletion {
		m.SetAttributes(semconv.GenAIUsageOutputTokens(int(u.Completion)))
	}
	if u.HasCached {
		m.SetAttributes(semconv.GenAIUsageCacheReadInputTokens(int(u.Cached)))
	}
}

// operations are the conventions' names of APIs. The name of any other API is its own.
var operations = map[string]string{"completions": "text_completion", "responses": "chat", "messages": "chat"}

func operation(api string) string {
	if name, ok := operations[api]; ok {
		return name
	}
	return api
}

// End ends the span. Calls after the first do nothing.
func (r *Request) End() {
	if r != nil {
		r.span.End()
	}
}

// AppendHeader appends the header lines for a question to a node that is no attempt of a leg. Any
// goroutine may call AppendHeader.
func (r *Request) AppendHeader(dst []byte) []byte {
	if r == nil {
		return dst
	}
	return r.span.appendHeader(dst)
}

// Leg begins the span of a leg for the given kind of work. Any goroutine may call Leg.
func (r *Request) Leg(work string) *Leg {
	if r == nil {
		return nil
	}
	return &Leg{r.span.child("leg "+work, trace.SpanKindInternal, time.Now(), keyWork.String(work))}
}

// Leg is the span of one leg. One goroutine at a time uses a Leg.
type Leg struct{ span made }

// LegEnd describes an ended leg.
type LegEnd struct {
	Model          string // canonical
	Mode           string // of the policy
	Node           string // the answering node
	Matched, Total int    // blocks of the prompt
	Attempts       int
	Queued         time.Duration // the wait for a node with room; 0: none
	Step           int           // of a cascade, from 1; 0: none
	Handover       string        // how the prompt was computed, as in cgn_router_handovers_total; empty: by the node
	Failed         string        // why the leg failed; empty: it did not
}

// End ends the span.
func (l *Leg) End(e *LegEnd) {
	if l == nil {
		return
	}
	s := &l.span
	s.SetAttributes(keyMatched.Int(e.Matched), keyTotal.Int(e.Total), keyAttempts.Int(e.Attempts))
	if e.Step > 0 {
		s.SetAttributes(keyStep.Int(e.Step))
	}
	if e.Queued > 0 {
		s.SetAttributes(keyQueued.Float64(e.Queued.Seconds()))
	}
	for _, a := range [...]attribute.KeyValue{
		semconv.GenAIRequestModel(e.Model), keyMode.String(e.Mode), keyNode.String(e.Node),
		keyHandover.String(e.Handover),
	} {
		if a.Value.AsString() != "" {
			s.SetAttributes(a)
		}
	}
	if e.Failed != "" {
		s.fail(e.Failed)
	}
	s.End()
}

// AttemptBegin describes an attempt that begins.
type AttemptBegin struct {
	At      time.Time
	Method  string
	API     string // as in the access log
	Model   string // the name that is sent to the engine
	Engine  string // empty: unknown
	Node    string
	Rank    int // below 0: the node has one rank
	Address string
	Stream  bool // the client asks for a stream

	Expected time.Duration // time to the first token; 0: nothing is expected
}

// Attempt begins the span of an attempt.
func (l *Leg) Attempt(b *AttemptBegin) *Attempt {
	if l == nil {
		return nil
	}
	op := operation(b.API)
	all := append(make([]attribute.KeyValue, 0, 16), semconv.GenAIOperationNameKey.String(op),
		semconv.GenAIRequestModel(b.Model), semconv.GenAIRequestStream(b.Stream), keyNode.String(b.Node),
		semconv.HTTPRequestMethodKey.String(b.Method))
	all = appendServer(all, b.Address)
	if b.Engine != "" {
		all = append(all, semconv.GenAIProviderNameKey.String(b.Engine))
	}
	if b.Rank >= 0 {
		all = append(all, keyRank.Int(b.Rank))
	}
	if b.Expected > 0 {
		all = append(all, keyExpected.Float64(b.Expected.Seconds()))
	}
	return &Attempt{l.span.child(op+" "+b.Model, trace.SpanKindClient, b.At, all...)}
}

// appendServer appends the attributes of a node's URL. A Unix socket has a path and no port.
func appendServer(to []attribute.KeyValue, address string) []attribute.KeyValue {
	u, err := url.Parse(address)
	if err != nil {
		return to
	}
	if u.Host == "" {
		return append(to, semconv.ServerAddress(u.Path))
	}
	to = append(to, semconv.ServerAddress(u.Hostname()))
	if port, err := strconv.Atoi(u.Port()); err == nil {
		to = append(to, semconv.ServerPort(port))
	}
	return to
}

// Attempt is the span of one attempt. One goroutine at a time uses an Attempt.
type Attempt struct{ span made }

// AppendHeader appends the header lines that tell the engine that its spans are the attempt's
// children.
func (a *Attempt) AppendHeader(dst []byte) []byte {
	if a == nil {
		return dst
	}
	return a.span.appendHeader(dst)
}

// AttemptEnd describes an ended attempt.
type AttemptEnd struct {
	Verdict string
	Status  int    // HTTP; 0: no answer
	End     string // how the answer ended, as in the access log; empty: there was none
	Failed  string // why the attempt failed; empty: it did not
	Stream  bool   // the answer is a stream
	TTFT    time.Duration
	Usage   usage.Counts
}

// End ends the span.
func (a *Attempt) End(e *AttemptEnd) {
	if a == nil {
		return
	}
	s := &a.span
	s.SetAttributes(keyVerdict.String(e.Verdict))
	if e.Status > 0 {
		s.SetAttributes(semconv.HTTPResponseStatusCode(e.Status))
	}
	if e.End != "" {
		s.SetAttributes(keyEnd.String(e.End))
	}
	s.answered(e.Stream, e.TTFT, &e.Usage)
	if e.Failed != "" {
		s.fail(e.Failed)
	}
	s.End()
}
