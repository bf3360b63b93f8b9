package leg

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/books"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health/patience"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/traces"
)

// attempt is one exchange with one node. attempt holds a slot of the node until it is dropped. The
// node's book has the attempt's cost until the exchange ends.
type attempt struct {
	member   *member
	ref      prefix.Ref      // the node's cache, as of the attempt's begin
	ex       *relay.Exchange // nil: nothing was sent, or the place has taken the exchange
	matched  int             // leading blocks believed to be at the node or its host
	believed int             // leading blocks that were predicted in the engine's own memory when it began the prompt
	status   int             // status of the delivered answer
	streams  bool            // the answer is an event stream
	awaits   bool            // the stream has begun before its prompt is computed
	taken    bool            // the place has taken the answer
	sent     time.Time
	recorded bool // the prediction is in the index; Prefilled reads recorded under the lookout's lock
	cost     books.Entry
	forecast forecast
	shares   bool // the node keeps blocks that requests share only once
	grows    bool // the blocks of the answer count as they grow
	abort    relay.Abort
	span     *traces.Attempt // nil: not recorded, or ended
}

// lookout is the state through which another goroutine may give up an attempt, while another node
// can still be asked.
type lookout struct {
	mu    sync.Mutex
	phase phase
	abort *relay.Abort // of the running attempt
}

// phase is the progress of a leg's attempt as seen by its lookout.
type phase uint8

const (
	resting phase = iota // no attempt is running, or its answer is being passed on
	waiting              // the attempt waits for the first sign of an answer
	slow                 // given up: the node's peers would have answered by now
	stuck                // given up: the node makes no progress
)

// verdict is the outcome of an attempt.
type verdict uint8

const (
	answered   verdict = iota // an answer has begun and the place has taken the exchange
	unreached                 // the connection failed
	starved                   // this host lacks a descriptor or memory; the node is not to blame
	broken                    // the connection ended before an answer
	silent                    // the node acknowledges no packets
	garbled                   // the reply is not HTTP/1.1
	failed500                 // 500
	overloaded                // 429, 502 or 503: the node reports an overload
	overdue                   // given up: the node's peers would have answered by now
	stalled                   // given up: the node makes no progress
	noOptions                 // 400 or 422, because of the stream_options that the router added
	late                      // a hard time limit passed
	// The remaining verdicts are no node's fault; see blames.
	tooOld    // the client's HTTP/1.0 cannot take the answer
	tooLong   // the answer exceeds its memory limit
	unfit     // the leg's edit of the body failed
	abandoned // the client is gone or the router is shutting down
)

var verdictNames = [...]string{
	"answered", "connect", "local", "reset", "silent", "protocol", "status_500", "overloaded", "slow", "stalled",
	"stream_options", "timeout", "http_version", "too_long", "unfit", "left",
}

func (v verdict) String() string { return verdictNames[v] }

// blames says whether the node, or the way to it, may have caused the failure.
func (v verdict) blames() bool {
	return v < tooOld && v != answered
}

// try asks the node of the spare attempt, which holds a slot of the node.
func (l *Leg) try() verdict {
	now := time.Now()
	a := l.spare()
	a.sent = now
	a.ref = a.member.rank.Ref()
	l.useAdapter(a)
	l.Reading, l.tries.stored = answer.Reading{}, false
	if !l.asked(a.member) {
		l.tries.asked = append(l.tries.asked, a.member)
	}
	l.Attempts++
	l.traceBegin(a)
	a.member.waits.Begin(&l.wait, now, l.work(a))
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
	l.failedWith(v, a.member, now)
	l.judge(a, v, err)
	l.traceFailed(a, v)
	l.put(a, v, err)
	return v
}

// spare returns the one of the two attempts that is not kept.
func (l *Leg) spare() *attempt {
	a := &l.slots[0]
	if a == l.kept {
		a = &l.slots[1]
	}
	return a
}

// put puts a failed attempt aside. put keeps an engine's own answer and closes any other.
func (l *Leg) put(a *attempt, v verdict, err error) {
	if a.recorded {
		l.prompt.Failed(a.ref, a.sent)
		a.recorded = false
	}
	if (v == failed500 || v == overloaded) && err == nil {
		l.drop(l.kept)
		l.Request.Life.Leave(&a.abort)
		l.leave(a)
		a.cost.Close(time.Now())
		l.kept = a // a becomes the leg's answer only through fallBack
		return
	}
	l.drop(a)
}

// GiveUp ends the running attempt if another node can be asked. The patience tracker calls GiveUp
// with its lock held.
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

// Prefilled notes that the node now holds the prompt of an unstreamed request. The patience tracker
// calls Prefilled with its lock held when the prompt should have been computed.
func (l *Leg) Prefilled() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now == nil {
		return
	}
	l.assumed(l.now, time.Now())
}

// arm makes a the attempt that GiveUp and the end of the request cancel. arm returns false if the
// request has ended.
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

// claim ends the time in which the attempt may be given up. Afterwards the attempt's answer
// decides. claim returns false if the attempt was given up before.
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

// disarm ends the time in which the attempt may be given up, and returns the phase at that moment.
func (l *Leg) disarm() phase {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.phase == waiting {
		l.phase = resting
	}
	return l.phase
}

// records says whether the attempt's prediction is to be recorded.
func (l *Leg) records(a *attempt) bool {
	return l.prompt.Blocks > 0 && l.prompt.Found() && l.Request.Predicts() && !a.recorded
}

// record puts the prediction in the index, and the prompt's blocks in the node's book. Prefilled
// may then use the prompt while the attempt waits.
func (l *Leg) record(a *attempt) {
	l.prompt.Sent(a.ref, a.sent)
	if a.shares {
		a.cost.Count(l.prompt.Keys(), &l.d.sharing)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a.recorded = true
}

// leave notes that a is no longer running.
func (l *Leg) leave(a *attempt) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now == a {
		l.now = nil
	}
}

// drop closes an attempt and frees its slot.
func (l *Leg) drop(a *attempt) {
	if a == nil || a.member == nil {
		return
	}
	l.Request.Life.Leave(&a.abort)
	l.leave(a)
	if a.ex != nil {
		a.ex.Close()
	}
	a.cost.Close(time.Now())
	a.member.rank.Release()
	*a = attempt{}
	if l.kept == a {
		l.kept = nil
	}
}

// believe stores the beliefs about the node at a place of the leg's pool.
func (a *attempt) believe(l *Leg, at int) {
	r := l.prompt.Reach(at)
	a.matched, a.believed = int(max(r.Device, r.Host, r.Disk)), l.prompt.Predicted(at)
}

// work describes the leg to the patience tracker, in the router's token counts.
func (l *Leg) work(a *attempt) patience.Work {
	w := patience.Work{
		Stream: l.Request.Scan.Stream, Owner: l, MaxTokens: l.Request.Scan.MaxTokens,
		CachedTokens:   int64(a.matched) * prefix.BlockTokens,
		UncachedTokens: int64(l.prompt.Blocks-a.matched) * prefix.BlockTokens,
		Expected:       time.Duration(a.forecast.ttft * float64(time.Second)),
	}
	if !l.Request.Generates() {
		w.MaxTokens = patience.NoTokens
	}
	return w
}

// exchange runs the attempt up to the first sign of an answer. If the node does not know
// stream_options, exchange remembers that and asks again without.
func (l *Leg) exchange(a *attempt) (verdict, error) {
	v, err := l.ask(a)
	if v != noOptions {
		return v, err
	}
	a.member.node.rejectsStreamOptions.Store(true)
	a.member.node.metrics.RejectsStreamOptions.Inc()
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
	ex, err := a.member.node.Pool.Send(out, deadline)
	if err != nil {
		return l.blame(err), err
	}
	a.ex = ex
	if l.records(a) {
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

// mayRefuse says whether the answer may mean that the node does not know the added stream_options.
func (l *Leg) mayRefuse(ex *relay.Exchange) bool {
	return l.out.asksUsage && (ex.Status() == 400 || ex.Status() == 422)
}

// statusVerdict returns the verdict for a status.
func statusVerdict(status int) verdict {
	switch status {
	case 500:
		return failed500
	case 429, 502, 503:
		return overloaded
	}
	return answered
}

// deliver hands the answer to the place, which first reads a small body to its end. The client has
// received nothing until deliver returns nil.
func (l *Leg) deliver(a *attempt) error {
	a.status, a.streams = a.ex.Status(), a.ex.IsSSE()
	l.failAdapter(a)
	if !l.claim() {
		return relay.ErrCanceled
	}
	first := time.Since(l.Request.Received)
	if a.streams {
		l.begun(a, time.Now()) // the place may read the whole stream, as for an HTTP/1.0 client
	}
	if err := l.place.Take(a.ex, l); err != nil {
		return err
	}
	a.ex, a.taken, l.TTFT = nil, true, first
	if !a.streams {
		l.begun(a, time.Now())
	}
	return nil
}

// begun notes that the engine has begun to answer at now. The prompt is then no longer pending at
// the node, except that of a response, which engines announce before.
func (l *Leg) begun(a *attempt, now time.Time) {
	if a.status >= 300 {
		return
	}
	l.wait.FirstByte(now)
	if a.awaits = a.streams && l.Request.API == scan.Responses; !a.awaits {
		l.computed(a, now)
	}
	l.sessionAnswered(a, now)
	l.firstCame(a, now)
}

// computed notes that the engine has computed the prompt.
func (l *Leg) computed(a *attempt, now time.Time) {
	a.cost.Begun(now)
	l.holds(a)
}

// assumed notes that the engine should have computed the prompt by now.
func (l *Leg) assumed(a *attempt, now time.Time) {
	a.cost.Assumed(now)
	l.holds(a)
}

// holds notes in the index that the node holds the prompt.
func (l *Leg) holds(a *attempt) {
	if a.recorded {
		l.prompt.Begun(a.ref)
	}
}

// announces says whether the event of a response only says that the engine has the request.
func announces(e sse.Event) bool {
	switch string(e.Name) {
	case "response.created", "response.queued", "response.in_progress":
		return true
	}
	return false
}

// fallBack makes the kept answer of an engine the leg's answer.
func (l *Leg) fallBack() *apierror.Error {
	a := l.kept
	// The last wait and reading belong to another node.
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

// blame returns the verdict for a failed exchange. blame ends the time in which the attempt may be
// given up.
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

// blameOf returns the verdict for a failed exchange that was not given up.
func (l *Leg) blameOf(err error) verdict {
	switch e, ok := errors.AsType[*relay.Error](err); {
	case !ok:
		return broken
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

// outgoing is the request to a node.
type outgoing struct {
	request   relay.Request
	edits     scan.Edits
	asksUsage bool // the router added stream_options.include_usage
}

// prepare makes the request for the attempt's node. prepare sets the node's model name and asks for
// a usage report at the end of a stream.
func (l *Leg) prepare(a *attempt) (*relay.Request, error) {
	asked, o := l.Request, &l.out
	o.edits.Reset(asked.Scan, asked.Body())
	name := a.member.node.UpstreamModel(l.model.name)
	if len(asked.Scan.Model) > 0 && string(asked.Scan.Model) != name {
		o.edits.Model(name)
	}
	o.asksUsage = l.Work == Answer && l.d.o.Feedback && asked.Scan.Stream && !asked.Scan.IncludeUsage &&
		(asked.API == scan.Chat || asked.API == scan.Completions) && !a.member.node.rejectsStreamOptions.Load()
	if o.asksUsage {
		o.edits.IncludeUsage()
	}
	if asked.Scan.Nvext() != (scan.Span{}) {
		l.editNvext()
	}
	if l.Edit != nil {
		l.Edit(&o.edits)
	}
	r := &o.request
	r.Method, r.Path, r.Header, r.More = asked.Method, asked.Path, asked.Header, a.member.rank.Header
	if l.Bond == Stored {
		r.More = nil // the rank that made the response has no part in reading it
	}
	r.More = a.span.AppendHeader(r.More[:len(r.More):len(r.More)])
	address(r, a.member.node.Node, asked.Auth, &a.abort)
	if r.Body = o.edits.Segments(r.Body[:0]); o.edits.Err() != nil {
		return nil, fmt.Errorf("%w: %w", errUnfit, o.edits.Err())
	}
	return r, nil
}

// editNvext takes the body's nvext out, unless engines shall get it. Engines know its cache_salt as
// a member of the root only.
func (l *Leg) editNvext() {
	e, x := &l.out.edits, l.Request.Nvext
	if !l.d.o.PassNvext {
		e.Remove("nvext")
	}
	if x != nil && x.CacheSalt != nil {
		e.Set("cache_salt", jsonscan.AppendQuoted(nil, x.CacheSalt))
	}
}

// errUnfit is returned by prepare when the leg's edit of the body fails.
var errUnfit = errors.New("the body cannot be changed")

// address directs r to n. address uses the client's key, auth, if the router has none for n.
// address uses a new connection if idle connections would hold up the node's other clients.
func address(r *relay.Request, n *fleet.Node, auth []byte, abort *relay.Abort) {
	r.ForwardAuthorization = nil
	if n.Pool.Target().Authorization == "" {
		r.ForwardAuthorization = auth
	}
	r.Abort, r.Once = abort, holdsThreads(n)
}

// Ask sends a GET for path to n and to no other node, with the request's head. place gets the
// answer, whatever its status. abort or the end of the request cancels the exchange. Ask is a leg
// without a reservation: it does not count as load on n or as evidence about its health. Ask is
// safe for concurrent use.
func (d *Dispatcher) Ask(
	r *request.Request, n *fleet.Node, path string, until time.Time, abort *relay.Abort, place answer.Place,
) error {
	if !r.Life.Enter(abort) {
		return relay.ErrCanceled
	}
	defer r.Life.Leave(abort)
	get := relay.Request{Method: "GET", Path: path, Header: r.Header, More: r.Trace.AppendHeader(nil)}
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

// unread is a Source that ignores the answer.
type unread struct{}

func (unread) Event(sse.Event, time.Time) bool { return true }
func (unread) Piece([]byte, bool)              {}
