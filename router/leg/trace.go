package leg

import (
	"strconv"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/traces"
)

// traceLeg begins the span of the leg.
func (l *Leg) traceLeg() { l.tries.span = l.Request.Trace.Leg(l.Work.String()) }

// traceError notes the router's own error of the leg, if there is one, and returns it.
func (l *Leg) traceError(err *apierror.Error) *apierror.Error {
	if err != nil {
		l.tries.refused = err.Code
	}
	return err
}

// traceBegin begins the span of an attempt.
func (l *Leg) traceBegin(a *attempt) {
	if l.tries.span == nil {
		return
	}
	info, asked := a.member.node.Info(), l.Request
	b := traces.AttemptBegin{
		At: a.sent, Method: asked.Method, API: asked.API.String(), Model: a.member.node.UpstreamModel(l.model.name),
		Engine: info.Engine, Node: a.member.node.ID, Rank: -1, Address: info.Address,
		Stream:   asked.Scan.Stream && l.Work == Answer,
		Expected: time.Duration(a.forecast.ttft * float64(time.Second)),
	}
	if a.split && b.Expected > 0 { // expected since the prompt was handed over
		b.Expected = max(b.Expected-a.sent.Sub(l.hand.last.began), 1)
	}
	if a.member.rank.Count > 1 {
		b.Rank = a.member.rank.Index
	}
	a.span = l.tries.span.Attempt(&b)
}

// traceFailed ends the span of an attempt with verdict v, which is no answer. If the leg passes an
// engine's error on later, that has no span of its own.
func (l *Leg) traceFailed(a *attempt, v verdict) {
	if a.span == nil {
		return
	}
	e := traces.AttemptEnd{Verdict: v.String()}
	if v != abandoned {
		e.Failed = e.Verdict
	}
	if a.ex != nil && (v == failed500 || v == overloaded) {
		e.Status = a.ex.Status()
	}
	a.span.End(&e)
	a.span = nil
}

// traceEnd ends the spans of the leg, and of the attempt that has not ended. o is the end of the
// answer, if an answer came.
func (l *Leg) traceEnd(o relay.Outcome) {
	if l.tries.span == nil {
		return
	}
	e := traces.LegEnd{
		Model: l.Served(), Node: l.NodeID(), Matched: l.Matched(), Total: l.Blocks(), Attempts: l.Attempts,
		Step: l.Step, Queued: l.turn.waited, Failed: l.tries.refused,
	}
	if l.way != Undecided {
		e.Handover = l.way.String()
	}
	if p := l.picks.policy; p != nil {
		e.Mode = p.Mode.String()
	}
	if a := l.now; a != nil && a.taken {
		if e.Failed == "" {
			e.Failed = l.failure(a, o)
		}
		if a.span != nil {
			a.span.End(&traces.AttemptEnd{
				Verdict: answered.String(), Status: a.status, End: o.String(), Failed: l.failure(a, o),
				Stream: a.streams, TTFT: l.Request.Received.Add(l.TTFT).Sub(a.sent), Usage: l.Reading.Usage,
			})
			a.span = nil
		}
	}
	for i := range l.slots { // only after a bug of the router
		l.slots[i].span.End(&traces.AttemptEnd{Verdict: abandoned.String(), Failed: "router_bug"})
	}
	l.tries.span.End(&e)
	l.tries.span = nil
}

// failure returns why a delivered answer that ended with o is a failure, or "".
func (l *Leg) failure(a *attempt, o relay.Outcome) string {
	switch {
	case l.broke(o) != "":
		return l.broke(o)
	case l.Reading.Failed:
		return "error_event"
	case o == relay.TotalTimeout:
		return o.String()
	case a.status >= 400:
		return "status_" + strconv.Itoa(a.status)
	}
	return ""
}
