package leg

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health/patience"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
)

// attempt is one exchange with one node. It holds the node's slot until it is dropped.
type attempt struct {
	node     *member
	ref      prefix.Ref      // of the node's cache when the attempt began
	ex       *relay.Exchange // nil: nothing was sent, or the place has it
	matched  int             // leading blocks that the node or its host was believed to have
	believed int             // leading blocks predicted in the engine's own memory when it takes the prompt
	status   int             // of the answer that was delivered
	streams  bool            // it is an event stream
	taken    bool            // the place has taken it
	sent     time.Time
	recorded bool // the prediction is in the index; Prefilled reads it under the lookout's lock
	abort    relay.Abort
}

// lookout is what another goroutine needs to give an attempt up, as long as another node could be
// asked.
type lookout struct {
	mu    sync.Mutex
	phase phase
	abort *relay.Abort // of the attempt under way
}

// phase is how far a leg's attempt has come, as its lookout sees it.
type phase uint8

const (
	resting phase = iota // none is under way, or what it brought is the answer
	waiting              // for the first sign of an answer
	slow                 // given up: its peers would have answered
	stuck                // given up: its node makes no progress
)

// verdict is what an attempt came to.
type verdict uint8

const (
	answered   verdict = iota // the place has taken an answer that has begun
	unreached                 // could not connect
	starved                   // this host has no descriptor or memory; counted by node, not held against its health
	broken                    // the connection ended before an answer
	silent                    // the node acknowledges no packets
	garbled                   // what came is no answer in HTTP/1.1
	failed500                 // 500
	overloaded                // 429, 502 or 503: the node says so itself
	overdue                   // given up: its peers would have answered
	stalled                   // given up: the node makes no progress
	noOptions                 // 400 or 422 because of stream_options that the router has spliced in
	late                      // a hard bound passed
	// Those from here on are no node's fault, see blames.
	tooOld    // the client's HTTP/1.0 cannot take the answer
	tooLong   // the answer does not fit the memory that it is kept in
	unfit     // the body cannot be changed as the leg wants
	abandoned // the client is gone or the router shuts down
)

var verdictNames = [...]string{
	"answered", "connect", "local", "reset", "silent", "protocol", "status_500", "overloaded", "slow", "stalled",
	"stream_options", "timeout", "http_version", "too_long", "unfit", "left",
}

func (v verdict) String() string { return verdictNames[v] }

// blames tells whether the attempt has failed for something that its node, or the way to it, may
// have caused.
func (v verdict) blames() bool {
	return v < tooOld && v != answered
}

// try asks the node at place at of the pool, whose slot the spare attempt has.
func (l *Leg) try(at int) verdict {
	now := time.Now()
	a := l.spare()
	a.sent = now
	a.believe(l, at)
	a.ref = a.node.Ref()
	l.Reading, l.tries.stored = answer.Reading{}, false
	if !slices.Contains(l.tries.asked, a.node) {
		l.tries.asked = append(l.tries.asked, a.node)
	}
	l.Attempts++
	a.node.waits.Begin(&l.wait, now, l.work(a.matched))
	v := abandoned
	var err error
	if l.arm(a) {
		v, err = l.exchange(a)
	}
	l.disarm()
	if v == answered {
		l.judge(a, v, nil)
		return v
	}
	now = time.Now()
	l.wait.Done(now, 0, false)
	l.failedWith(v, a.node, now)
	l.judge(a, v, err)
	l.put(a, v, err)
	return v
}

// spare is the one of the two attempts that is not kept.
func (l *Leg) spare() *attempt {
	a := &l.slots[0]
	if a == l.kept {
		a = &l.slots[1]
	}
	return a
}

// put puts a failed attempt away: an engine's own answer is kept, the rest closed.
func (l *Leg) put(a *attempt, v verdict, err error) {
	if a.recorded {
		l.prompt.Failed(a.ref, a.sent)
		a.recorded = false
	}
	if (v == failed500 || v == overloaded) && err == nil {
		l.drop(l.kept)
		l.Request.Life.Leave(&a.abort)
		l.leave(a)
		l.kept = a // which is nobody's answer unless fallBack makes it the leg's
		return
	}
	l.drop(a)
}

// GiveUp ends the attempt under way if another node can be asked. It is called by the patience
// tracker, with its lock held.
func (l *Leg) GiveUp(v patience.Verdict) (given bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() {
		if p := recover(); p != nil {
			l.d.metrics.Bug(l.d.log, "looking for another node", p)
			given = false
		}
	}()
	if l.phase != waiting || l.tries.spare == 0 || l.suspect() > 0 || !l.others(time.Now()) {
		return false
	}
	if l.Request.Life.Ended() != request.None || !l.d.budget.Allow() {
		return false
	}
	l.tries.paid, l.phase = true, slow
	if v == patience.Stalled {
		l.phase = stuck
	}
	l.abort.Cancel()
	return true
}

// Prefilled is called by the patience tracker, with its lock held, when the prompt of a request
// that is not streamed should be computed: the node holds it from now on.
func (l *Leg) Prefilled() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now != nil && l.now.recorded {
		l.prompt.Begun(l.now.ref)
	}
}

// arm makes a the attempt that the request's end and GiveUp cancel; false when the request has
// ended.
func (l *Leg) arm(a *attempt) bool {
	alive := l.Request.Life.Enter(&a.abort)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = a
	if l.phase, l.abort = resting, &a.abort; alive {
		l.phase = waiting
	}
	return alive
}

// claim ends the time in which the attempt may be given up, unless it has been already: from then
// on it is judged by what it brings.
func (l *Leg) claim() bool {
	ended := l.Request.Life.Ended() != request.None
	l.mu.Lock()
	defer l.mu.Unlock()
	if ended || l.phase == slow || l.phase == stuck {
		return false
	}
	l.phase = resting
	return true
}

// disarm ends that time in either case, and says how the lookout saw it end.
func (l *Leg) disarm() phase {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase == waiting {
		l.phase = resting
	}
	return l.phase
}

// record notes that the prediction is in the index. From then on Prefilled may use the prompt,
// until the attempt waits no more.
func (l *Leg) record(a *attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.recorded = true
}

// leave says that a is not under way any more.
func (l *Leg) leave(a *attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now == a {
		l.now = nil
	}
}

// drop closes an attempt and gives its slot back.
func (l *Leg) drop(a *attempt) {
	if a == nil || a.node == nil {
		return
	}
	l.Request.Life.Leave(&a.abort)
	l.leave(a)
	if a.ex != nil {
		a.ex.Close()
	}
	a.node.Release()
	*a = attempt{}
	if l.kept == a {
		l.kept = nil
	}
}

// believe keeps what was believed of the node at a place of the leg's pool.
func (a *attempt) believe(l *Leg, at int) {
	r := l.prompt.Reach(at)
	a.matched, a.believed = int(max(r.Device, r.Host, r.Disk)), l.prompt.Predicted(at)
}

// work describes the leg to the patience tracker, in tokens of ours.
func (l *Leg) work(matched int) patience.Work {
	w := patience.Work{
		Stream: l.Request.Scan.Stream, Owner: l, MaxTokens: l.Request.Scan.MaxTokens,
		CachedTokens:   int64(matched) * prefix.BlockTokens,
		UncachedTokens: int64(l.prompt.Blocks-matched) * prefix.BlockTokens,
	}
	if !l.Request.Generates() {
		w.MaxTokens = patience.NoTokens
	}
	return w
}

// exchange brings the attempt to the first sign of an answer. A node that does not know
// stream_options is remembered and asked again without.
func (l *Leg) exchange(a *attempt) (verdict, error) {
	v, err := l.ask(a)
	if v != noOptions {
		return v, err
	}
	a.node.rejectsStreamOptions.Store(true)
	a.node.metrics.RejectsStreamOptions.Inc()
	a.ex.Close()
	a.ex = nil
	return l.ask(a)
}

// ask sends the request and waits for the first sign of an answer.
func (l *Leg) ask(a *attempt) (verdict, error) {
	limits := &l.model.limits
	deadline := l.Request.Before(a.sent.Add(limits.FirstByte))
	out, err := l.prepare(a)
	if err != nil {
		return unfit, err
	}
	ex, err := a.node.Pool.Send(out, deadline)
	if err != nil {
		return l.blame(err), err
	}
	a.ex = ex
	if l.prompt.Blocks > 0 && l.Request.Predicts() && !a.recorded {
		l.prompt.Sent(a.ref, a.sent)
		l.record(a)
	}
	if err := ex.ReadHead(deadline); err != nil {
		return l.blame(err), err
	}
	l.wait.Progress(time.Now())
	ex.SetIdleTimeout(limits.Idle)
	ex.SetReadDeadline(l.Request.Before(a.sent.Add(limits.Total)))
	if v := statusVerdict(ex.Status()); v != answered {
		if !l.claim() {
			return l.blame(relay.ErrCanceled), relay.ErrCanceled
		}
		return v, nil
	}
	if ex.IsSSE() || l.mayRefuse(ex) {
		if err := ex.AwaitBody(deadline); err != nil {
			return l.blame(err), err
		}
	}
	if l.mayRefuse(ex) && bytes.Contains(ex.Held(), []byte("stream_options")) {
		return noOptions, nil
	}
	if err := l.deliver(a); err != nil {
		return l.blame(err), err
	}
	return answered, nil
}

// mayRefuse tells whether the answer may say that the node does not know the stream_options that
// were spliced in.
func (l *Leg) mayRefuse(ex *relay.Exchange) bool {
	return l.out.asksUsage && (ex.Status() == 400 || ex.Status() == 422)
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

// deliver hands the answer to the place, which reads a small body to its end first: until it
// returns nil nothing has reached the client.
func (l *Leg) deliver(a *attempt) error {
	a.status, a.streams = a.ex.Status(), a.ex.IsSSE()
	if !l.claim() {
		return relay.ErrCanceled
	}
	first := time.Since(l.Request.Received)
	if a.streams {
		l.begun(a) // the place may read all of the stream, as for an HTTP/1.0 client
	}
	if err := l.place.Take(a.ex, l); err != nil {
		return err
	}
	a.ex, a.taken, l.TTFT = nil, true, first
	if !a.streams {
		l.begun(a)
	}
	return nil
}

// begun notes that the engine has begun to answer: the prompt is no longer pending there.
func (l *Leg) begun(a *attempt) {
	if a.status >= 300 {
		return
	}
	l.wait.FirstByte(time.Now())
	if a.recorded {
		l.prompt.Begun(a.ref)
	}
}

// fallBack makes the kept answer of an engine the leg's own.
func (l *Leg) fallBack() *apierror.Error {
	a := l.kept
	// The last wait and reading were of another node, of which this answer says nothing.
	l.kept, l.wait, l.Reading = nil, patience.Attempt{}, answer.Reading{}
	if !l.arm(a) {
		l.drop(a)
		return Ended(l.Request)
	}
	l.disarm()
	err := l.deliver(a)
	if err == nil {
		return nil
	}
	v := l.blame(err)
	l.drop(a)
	return l.errorAfter(v)
}

// blame says what a failed exchange means. It ends the time in which it may be given up.
func (l *Leg) blame(err error) verdict {
	if l.Request.Life.Ended() != request.None {
		return abandoned
	}
	switch l.disarm() {
	case slow:
		return overdue
	case stuck:
		return stalled
	}
	if errors.Is(err, relay.ErrClientTooOld) {
		return tooOld
	}
	if errors.Is(err, relay.ErrTooLong) {
		return tooLong
	}
	return l.blameOf(err)
}

// blameOf says what an exchange has failed of that nobody has given up.
func (l *Leg) blameOf(err error) verdict {
	var e *relay.Error
	if !errors.As(err, &e) {
		return broken
	}
	switch {
	case errors.Is(err, relay.ErrSilent):
		return silent
	case e.Kind == relay.KindLocal:
		return starved
	case e.Kind == relay.KindTimeout && (e.Phase != relay.PhaseDial || l.Request.Expired()):
		return late
	case e.Phase == relay.PhaseDial:
		return unreached
	case e.Kind == relay.KindProtocol:
		return garbled
	}
	return broken
}

// outgoing is what is sent to a node.
type outgoing struct {
	request   relay.Request
	edits     scan.Edits
	asksUsage bool // stream_options.include_usage was spliced in
}

// prepare makes the request for the attempt's node: its model name, and a usage report at the end
// of a stream.
func (l *Leg) prepare(a *attempt) (*relay.Request, error) {
	asked, o := l.Request, &l.out
	o.edits.Reset(asked.Scan, asked.Body())
	if name := a.node.UpstreamModel(l.model.name); len(asked.Scan.Model) > 0 && string(asked.Scan.Model) != name {
		o.edits.Model(name)
	}
	o.asksUsage = l.Work == Answer && l.d.options.Feedback && asked.Scan.Stream && !asked.Scan.IncludeUsage &&
		(asked.API == scan.Chat || asked.API == scan.Completions) && !a.node.rejectsStreamOptions.Load()
	if o.asksUsage {
		o.edits.IncludeUsage()
	}
	if l.Edit != nil {
		l.Edit(&o.edits)
	}
	r := &o.request
	r.Method, r.Path, r.Header = asked.Method, asked.Path, asked.Header
	address(r, a.node.Node, asked.Auth, &a.abort)
	if r.Body = o.edits.Segments(r.Body[:0]); o.edits.Err() != nil {
		return nil, fmt.Errorf("%w: %w", errUnfit, o.edits.Err())
	}
	return r, nil
}

// errUnfit is what preparing a request fails with whose body cannot be changed as its leg wants.
var errUnfit = errors.New("the body cannot be changed")

// address makes r go to n: with the client's key, auth, where n has none of the router's, and on a
// connection of its own where idle ones are in the way of others.
func address(r *relay.Request, n *fleet.Node, auth []byte, abort *relay.Abort) {
	r.ForwardAuthorization = nil
	if n.Pool.Target().Authorization == "" {
		r.ForwardAuthorization = auth
	}
	r.Abort, r.Once = abort, holdsThreads(n)
}

// Ask asks n, and nobody else, for path by a GET with the request's head, and has place take the
// answer, whatever its status. abort, or the end of the request, cancels it. It is a leg without
// reservation: it counts neither as load on n nor for or against its health. It is safe for
// concurrent use.
func (d *Dispatcher) Ask(
	r *request.Request, n *fleet.Node, path string, until time.Time, abort *relay.Abort, place answer.Place,
) error {
	if !r.Life.Enter(abort) {
		return relay.ErrCanceled
	}
	defer r.Life.Leave(abort)
	get := relay.Request{Method: "GET", Path: path, Header: r.Header}
	address(&get, n, r.Auth, abort)
	ex, err := n.Pool.Send(&get, until)
	if err != nil {
		return err
	}
	if err = ex.ReadHead(until); err == nil {
		ex.SetReadDeadline(until)
		err = place.Take(ex, unread{})
	}
	if err != nil {
		ex.Close()
	}
	return err
}

// unread is the source of an answer that nobody follows.
type unread struct{}

func (unread) Event(sse.Event, time.Time) bool { return true }
func (unread) Piece([]byte, bool)              {}
