package dispatch

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/patience"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// attempt is one node asked once. It holds the node's slot until it is closed.
type attempt struct {
	node     *member
	ref      prefix.Ref      // of the node's cache when the attempt began
	ex       *relay.Exchange // nil: nothing was sent, or it belongs to the client's side
	matched  int             // leading blocks that the node or its host was believed to have
	believed int             // leading blocks predicted in the engine's own memory when it takes the request
	status   int             // of the answer that was delivered
	streams  bool            // it is an event stream
	sent     time.Time
	recorded bool // the prediction is in the index; set under Job.mu
	abort    relay.Abort
}

// verdict is what an attempt came to.
type verdict uint8

const (
	answered   verdict = iota // an answer has begun that goes to the client
	unreached                 // could not connect
	starved                   // no descriptor or memory here for a connection: not the node's fault
	broken                    // the connection ended before an answer
	silent                    // the node acknowledges no packets
	garbled                   // what came is no answer in HTTP/1.1
	failed500                 // 500
	overloaded                // 429, 502 or 503: the node says so itself
	overdue                   // given up: its peers would have answered
	stalled                   // given up: the node makes no progress
	noOptions                 // 400 or 422 because of stream_options that the router has spliced in
	late                      // a hard bound passed
	tooOld                    // the client's HTTP/1.0 cannot take the answer
	abandoned                 // the client is gone or the router shuts down
)

var verdictNames = [...]string{"answered", "connect", "local", "reset", "silent", "protocol", "status_500", "overloaded", "slow", "stalled", "stream_options", "timeout", "http_version", "left"}

func (v verdict) String() string { return verdictNames[v] }

// try asks the node at place at of the model, whose slot has been taken.
func (d *Dispatcher) try(j *Job, at int) verdict {
	now := time.Now()
	a := j.slot()
	a.node, a.sent = j.model.nodes[at], now
	a.believe(j, at)
	a.ref = a.node.Ref()
	j.stream, j.Usage = stream{}, usage.Counts{}
	if !slices.Contains(j.tried, a.node) {
		j.tried = append(j.tried, a.node)
	}
	j.Attempts++
	a.node.waits.Begin(&j.wait, now, j.work(a.matched))
	v := abandoned
	var err error
	if j.arm(a) {
		v, err = d.exchange(j, a)
	}
	j.disarm()
	if v == answered {
		d.note(j, a, v, nil)
		return v
	}
	now = time.Now()
	j.wait.Done(now, 0, false)
	j.failedWith(v, a.node, now)
	d.note(j, a, v, err)
	d.put(j, a, v, err)
	return v
}

// slot is the one of the two attempts that is free.
func (j *Job) slot() *attempt {
	a := &j.slots[0]
	if a == j.kept {
		a = &j.slots[1]
	}
	return a
}

// put puts a failed attempt away: an engine's own answer is kept, the rest closed.
func (d *Dispatcher) put(j *Job, a *attempt, v verdict, err error) {
	if a.recorded {
		d.index.Forget(&j.chain, a.ref, a.sent)
		a.recorded = false
	}
	if (v == failed500 || v == overloaded) && err == nil {
		j.drop(j.kept)
		j.kept = a
		return
	}
	j.drop(a)
}

// drop closes an attempt and gives its slot back.
func (j *Job) drop(a *attempt) {
	if a == nil || a.node == nil {
		return
	}
	j.mu.Lock()
	if j.cur == a {
		j.cur = nil
	}
	j.mu.Unlock()
	if a.ex != nil {
		a.ex.Close()
	}
	a.node.Release()
	a.abort.Reset()
	a.node, a.ex, a.recorded = nil, nil, false
	if j.kept == a {
		j.kept = nil
	}
}

// believe keeps what was believed of the node at a place of the job's model.
func (a *attempt) believe(j *Job, at int) {
	r := &j.reach[at]
	a.matched, a.believed = int(max(r.Device, r.Host, r.Disk)), int(max(j.matched[at], j.coming[at]))
}

// work describes the request to the patience tracker, in tokens of ours.
func (j *Job) work(matched int) patience.Work {
	w := patience.Work{
		Stream: j.Scan.Stream, Owner: j, MaxTokens: j.Scan.MaxTokens,
		CachedTokens:   int64(matched) * prefix.BlockTokens,
		UncachedTokens: int64(j.Blocks-matched) * prefix.BlockTokens,
	}
	if !j.generates() {
		w.MaxTokens = patience.NoTokens
	}
	return w
}

// generates tells whether the request may ask for tokens to be made.
func (j *Job) generates() bool {
	switch j.API {
	case scan.Chat, scan.Completions, scan.Responses, scan.Messages, scan.Audio, scan.Other:
		return j.Method == "POST"
	}
	return false
}

// exchange brings the attempt to the first sign of an answer. A node that does not know
// stream_options is remembered and asked again without.
func (d *Dispatcher) exchange(j *Job, a *attempt) (verdict, error) {
	v, err := d.ask(j, a)
	if v != noOptions {
		return v, err
	}
	a.node.rejectsStreamOptions.Store(true)
	a.node.metrics.RejectsStreamOptions.Inc()
	a.ex.Close()
	a.ex = nil
	return d.ask(j, a)
}

// ask sends the request and waits for the first sign of an answer.
func (d *Dispatcher) ask(j *Job, a *attempt) (verdict, error) {
	limits := &j.model.limits
	deadline := j.bound(a.sent.Add(limits.FirstByte))
	ex, err := a.node.Pool.Send(d.prepare(j, a), deadline)
	if err != nil {
		return j.blame(err), err
	}
	a.ex = ex
	if j.predicts() && !a.recorded {
		d.remember(j)
		d.index.Record(&j.chain, a.ref, a.sent)
		j.record(a)
	}
	if err := ex.ReadHead(deadline); err != nil {
		return j.blame(err), err
	}
	j.wait.Progress(time.Now())
	ex.SetIdleTimeout(limits.Idle)
	ex.SetReadDeadline(j.bound(a.sent.Add(limits.Total)))
	if v := statusVerdict(ex.Status()); v != answered {
		if !j.claim() {
			return j.blame(relay.ErrCanceled), relay.ErrCanceled
		}
		return v, nil
	}
	if ex.IsSSE() || j.mayRefuse(ex) {
		if err := ex.AwaitBody(deadline); err != nil {
			return j.blame(err), err
		}
	}
	if j.refused(ex) {
		return noOptions, nil
	}
	if err := j.deliver(a); err != nil {
		return j.blame(err), err
	}
	return answered, nil
}

// statusVerdict is what a status means for the choice of another node.
func statusVerdict(status int) verdict {
	switch status {
	case 500:
		return failed500
	case 429, 502, 503:
		return overloaded
	}
	return answered
}

// deliver hands the answer to the client's side, which reads a small body to its end first:
// until it returns nil nothing has reached the client.
func (j *Job) deliver(a *attempt) error {
	a.status, a.streams = a.ex.Status(), a.ex.IsSSE()
	if a.streams && !j.claim() {
		return relay.ErrCanceled
	}
	first := time.Since(j.Received)
	if a.streams {
		j.begun(a) // Reply reads all of the stream for an HTTP/1.0 client
	}
	if err := j.Reply(a.ex); err != nil {
		return err
	}
	a.ex, j.TTFT = nil, first
	if !a.streams {
		j.begun(a)
	}
	return nil
}

// record notes that the prediction is in the index. From then on Prefilled may use the chain,
// until the attempt waits no more.
func (j *Job) record(a *attempt) {
	j.mu.Lock()
	defer j.mu.Unlock()
	a.recorded = true
}

// begun notes that the engine has begun to answer: the prompt is no longer pending there.
func (j *Job) begun(a *attempt) {
	if a.status >= 300 {
		return
	}
	j.wait.FirstByte(time.Now())
	if a.recorded {
		j.d.index.Begun(&j.chain, a.ref)
	}
}

// predicts tells whether the request leaves a prompt in an engine's cache.
func (j *Job) predicts() bool {
	switch j.API {
	case scan.Chat, scan.Completions, scan.Responses, scan.Messages:
		return j.Blocks > 0
	}
	return false
}

// bound is the earlier of t and the client's own deadline.
func (j *Job) bound(t time.Time) time.Time {
	if !j.Deadline.IsZero() && j.Deadline.Before(t) {
		return j.Deadline
	}
	return t
}

// refused tells whether the node's answer is that it does not know the stream_options that
// were spliced in.
func (j *Job) refused(ex *relay.Exchange) bool {
	return j.mayRefuse(ex) && bytes.Contains(ex.Held(), []byte("stream_options"))
}

func (j *Job) mayRefuse(ex *relay.Exchange) bool {
	return j.asks && (ex.Status() == 400 || ex.Status() == 422)
}

// blame says what a failed exchange means.
func (j *Job) blame(err error) verdict {
	switch j.why() {
	case reasonLeft, reasonShutdown:
		return abandoned
	case reasonOverdue:
		return overdue
	case reasonStalled:
		return stalled
	}
	var e *relay.Error
	if errors.Is(err, relay.ErrClientTooOld) {
		return tooOld
	}
	if !errors.As(err, &e) {
		return broken
	}
	switch {
	case errors.Is(err, relay.ErrSilent):
		return silent
	case e.Kind == relay.KindLocal:
		return starved
	case e.Kind == relay.KindTimeout && (e.Phase != relay.PhaseDial || j.expired()):
		return late
	case e.Phase == relay.PhaseDial:
		return unreached
	case e.Kind == relay.KindProtocol:
		return garbled
	}
	return broken
}

// fallBack makes the kept answer of an engine the job's own.
func (d *Dispatcher) fallBack(j *Job) *apierror.Error {
	a := j.kept
	j.kept, j.wait = nil, patience.Attempt{} // the last wait was for another node, of which this answer says nothing
	if !j.arm(a) {
		j.drop(a)
		return j.gone()
	}
	j.disarm()
	if err := j.deliver(a); err != nil {
		j.drop(a)
		return d.unanswered(j)
	}
	return nil
}

// prepare makes the request for the attempt's node: its model name, and a usage report at
// the end of a stream.
func (d *Dispatcher) prepare(j *Job, a *attempt) *relay.Request {
	j.edits = j.edits[:0]
	if name := a.node.UpstreamModel(j.model.name); len(j.Scan.Model) > 0 && string(j.Scan.Model) != name {
		j.edits = j.Scan.EditModel(j.edits, []byte(name))
	}
	j.asks = d.options.Feedback && j.Scan.Stream && !j.Scan.IncludeUsage &&
		(j.API == scan.Chat || j.API == scan.Completions) && !a.node.rejectsStreamOptions.Load()
	if j.asks {
		j.edits = j.Scan.EditIncludeUsage(j.edits)
	}
	r := &j.request
	r.Method, r.Path, r.Header, r.ForwardAuthorization = j.Method, j.Path, j.Header, nil
	if a.node.Pool.Target().Authorization == "" {
		r.ForwardAuthorization = j.Auth
	}
	r.Abort, r.Once = &a.abort, a.node.holdsThreads()
	r.Body = scan.Splice(r.Body[:0], j.Body, j.edits)
	return r
}
