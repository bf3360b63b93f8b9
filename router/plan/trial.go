package plan

import (
	"bytes"
	"net/http"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/logprobs"
	"github.com/cognitora/dataplane/router/request"
)

// trial is the place of a leg whose answer is judged before the client gets any of it. Take reads
// the answer to its judgement. Then Take gives the answer to the client's place, with the part that
// was read as if it had not been read yet, or closes it. Take runs on the goroutine of the client's
// connection. The leg's own deadlines, and the end of the request, bound the time of Take.
type trial struct {
	of   *Cascade
	adds bool // the router asks for the log-probabilities, so the client does not get them

	task     *Task
	question leg.Question
	verdict  verdict
	tokens   logprobs.Answer
	kept     int    // events for the client that were read and that it has not got yet
	shown    []byte // scratch: an event without log-probabilities
	reserved int64  // bytes
	late     string // why a stream goes on without a judgement at the time of Sift
	crowded  bool   // too many answers wait
	broken   bool   // the engine has sent an error
}

// verdict is the result of a trial.
type verdict uint8

const (
	unjudged   verdict = iota // the client gets the answer without a judgement
	confident                 // the client gets the answer
	escalated                 // the answer is dropped
	unreadable                // the answer is dropped, because it has no log-probabilities
	failed                    // there is no answer
)

var verdictNames = [...]string{"unjudged", "confident", "escalated", "escalated", "failed"}

// reset begins the trial of a leg with question q.
func (r *trial) reset(t *Task, q leg.Question) {
	r.task, r.question, r.verdict = t, q, failed
}

// Take implements answer.Place.
func (r *trial) Take(ex *relay.Exchange, s answer.Source) error {
	r.verdict, r.kept, r.crowded, r.broken = failed, 0, false, false
	r.tokens.Reset()
	r.task.anew()
	switch status := ex.Status(); {
	case status < 300:
		return r.read(ex, s)
	case r.goesOn(status):
		ex.Close()
		return nil
	}
	r.verdict = unjudged
	return r.give(ex, s)
}

// goesOn says whether the next model is asked after an error of the engine. Other errors are the
// client's. The router's own change of the body may be the cause of 400 and 422.
func (r *trial) goesOn(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return r.adds
	}
	return status >= 500 || status == http.StatusTooManyRequests
}

// read reads the answer and judges it.
func (r *trial) read(ex *relay.Exchange, s answer.Source) error {
	set := &r.task.planner.parts.Cascades
	o := relay.SiftOptions{Limit: set.MaxHeld, MustClose: true}
	early := 0
	if ex.IsSSE() {
		early = set.Early
		o.Until, r.late = r.until(early > 0)
		o.Event = func(e sse.Event, out []byte, at time.Time) (rest []byte, enough bool) {
			return r.event(s, e, out, at), r.crowded || r.broken || early > 0 && r.tokens.Tokens() >= early
		}
	} else if !r.reserve(documentBytes(ex, set.MaxHeld)) {
		r.verdict = unjudged
		r.of.count(r.task, "bound")
		return r.give(ex, s)
	}
	defer r.free()
	why, err := relay.Sift(ex, o)
	if err != nil {
		return err
	}
	if !ex.IsSSE() && why == relay.SiftedWhole {
		r.tokens.Document(ex.Held())
		if r.adds {
			ex.Hold(logprobs.Cut(nil, ex.Held()))
		}
	}
	if r.judge(why, early); r.verdict == confident || r.verdict == unjudged {
		return r.give(ex, s)
	}
	r.drop(ex, s, why)
	return nil
}

// documentBytes returns how many bytes the answer takes at most.
func documentBytes(ex *relay.Exchange, most int) int64 {
	if n := ex.ContentLength(); n >= 0 {
		return min(n, int64(most))
	}
	return int64(most)
}

// until returns the time at which a stream goes on to the client without a judgement, and the
// reason. Half of the time until the client's deadline is for the client, or for the next model.
func (r *trial) until(early bool) (until time.Time, reason string) {
	now, deadline := time.Now(), r.task.Request.Deadline
	if early {
		until, reason = now.Add(r.task.planner.parts.Cascades.Latency), "latency"
	}
	if deadline.IsZero() {
		return until, reason
	}
	if half := now.Add(deadline.Sub(now) / 2); until.IsZero() || half.Before(until) {
		return half, "deadline"
	}
	return until, reason
}

// event reads an event of the stream.
func (r *trial) event(s answer.Source, e sse.Event, out []byte, at time.Time) []byte {
	if bytes.HasPrefix(e.Data, engineError) {
		r.broken = true
	}
	if !s.Event(e, at) {
		return out
	}
	r.tokens.Event(e.Data)
	held := len(out)
	if out = r.show(r.task, e, out); len(out) > held {
		r.kept++
	}
	if grown := int64(len(out)) - r.reserved; grown > 0 && !r.reserve(max(grown, reservedBytes)) {
		r.crowded = true
	}
	return out
}

// engineError is the beginning of an error in a stream.
var engineError = []byte(`{"error"`)

// show appends an event as the client gets it.
func (r *trial) show(t *Task, e sse.Event, out []byte) []byte {
	at := -1
	if r.adds && !e.IsDone() && !e.Oversized() {
		at = bytes.Index(e.Raw, e.Data)
	}
	if at >= 0 { // otherwise data of several lines, which no engine sends
		behind := e.Raw[at+len(e.Data):]
		raw := logprobs.Cut(append(r.shown[:0], e.Raw[:at]...), e.Data)
		end := len(raw)
		raw = append(raw, behind...)
		r.shown, e.Raw, e.Data = raw, raw, raw[at:end]
	}
	return t.Show(e, out)
}

// reservedBytes is the step in which a stream's bytes are reserved.
const reservedBytes = 16 << 10

// reserve takes n bytes of what all trials may hold.
func (r *trial) reserve(n int64) bool {
	if !r.task.planner.held.Take(n) {
		return false
	}
	r.reserved += n
	return true
}

func (r *trial) free() {
	r.task.planner.held.Give(r.reserved)
	r.reserved = 0
}

// judge decides about the answer. early is the number of tokens by which a stream is judged.
func (r *trial) judge(why relay.Sifted, early int) {
	c, t := r.of, r.task
	switch confidence, readable := r.tokens.Confidence(t.planner.parts.Cascades.Measure, early); {
	case r.broken:
		r.verdict = failed
	case r.crowded || why == relay.SiftedFull:
		r.pass("bound")
	case why == relay.SiftedLate:
		r.pass(r.late)
	case !readable || r.tokens.Several():
		if r.verdict = unreadable; c.direct <= c.step {
			r.pass("logprobs")
		}
	case confidence >= c.threshold():
		r.verdict = confident
	default:
		r.verdict = escalated
	}
	if r.verdict != escalated && r.verdict != unreadable {
		return
	}
	if reason := r.stuck(); reason != "" {
		r.pass(reason)
	}
}

// pass lets the client have the answer without a judgement.
func (r *trial) pass(reason string) {
	r.verdict = unjudged
	r.of.count(r.task, reason)
}

// stuck says why nothing could follow the answer; "": the next model can be asked.
func (r *trial) stuck() string {
	c, t := r.of, r.task
	next := c.step + 1
	if r.verdict == unreadable {
		next = c.direct
	}
	q := r.question
	q.Model, q.Edit = []byte(c.chain[next]), nil
	e, err := t.planner.parts.Legs.Expect(t.Request, q)
	early := 0 // the client may have the beginning of a stream in time
	if t.Request.Scan.Stream {
		early = 1
	}
	switch deadline := t.Request.Deadline; {
	case t.Request.Life.Ended() != request.None:
		return ""
	case err != nil:
		return "no_next"
	case e.Known && !deadline.IsZero() && time.Now().Add(e.Until(early)).After(deadline):
		return "deadline"
	}
	return ""
}

// give passes the answer on to the client.
func (r *trial) give(ex *relay.Exchange, s answer.Source) error {
	t := r.task
	t.toClient(true)
	err := t.Client.Take(ex, s)
	if err != nil {
		t.toClient(false)
	}
	return err
}

// drop closes an answer that the client does not get.
func (r *trial) drop(ex *relay.Exchange, s answer.Source, why relay.Sifted) {
	r.task.ended, r.kept = relay.Enough, 0
	if why == relay.SiftedWhole {
		r.task.ended = relay.Complete
		if !ex.IsSSE() {
			s.Piece(ex.Held(), true)
		}
	}
	ex.Close()
}
