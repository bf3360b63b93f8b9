package leg

import (
	"bytes"
	"errors"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/books"
	"github.com/cognitora/dataplane/router/health/patience"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/traces"
)

// attempt is one exchange with one node. attempt holds a slot of the node until it is dropped. The
// node's book has the attempt's cost until the exchange ends.
type attempt struct {
	member *member
	ref    prefix.Ref      // the node's cache, as of the attempt's begin
	ex     *relay.Exchange // nil: nothing was sent, or the place has taken the exchange
	belief
	status   int  // status of the delivered answer
	streams  bool // the answer is an event stream
	awaits   bool // the stream has begun before its prompt is computed
	taken    bool // the place has taken the answer
	sent     time.Time
	recorded bool // the prediction is in the index; Prefilled reads recorded under the lookout's lock
	cost     books.Entry
	forecast forecast
	split    bool // another node computes the prompt
	frees    bool // the answer does not matter; the node shall only read the prompt's blocks
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
	off   bool         // the leg has been called off
}

// phase is the progress of a leg's attempt as seen by its lookout.
type phase uint8

const (
	resting  phase = iota // no attempt is running, or its answer is being passed on
	waiting               // the attempt waits for the first sign of an answer
	slow                  // given up: the node's peers would have answered by now
	stuck                 // given up: the node makes no progress
	forsaken              // given up: the node that computes the prompt has failed
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
	unpaired  // the node that computes the prompt has failed
	lost      // the node cannot read the prompt's blocks
	orphaned  // no node computes the prompt for the node, which cannot do so itself
	abandoned // the client is gone or the router is shutting down
)

var verdictNames = [...]string{
	"answered", "connect", "local", "reset", "silent", "protocol", "status_500", "overloaded", "slow", "stalled",
	"stream_options", "timeout", "http_version", "too_long", "unfit", "unpaired",
	"lost", "orphaned", "left",
}

func (v verdict) String() string { return verdictNames[v] }

// blames says whether the node, or the way to it, may have caused the failure.
func (v verdict) blames() bool {
	return v < tooOld && v != answered
}

// try asks the node of the spare attempt, which holds a slot of the node.
func (l *Leg) try() verdict {
	a := l.spare()
	if a.split {
		if !l.Request.Expired() {
			l.prefillFirst(a)
		}
		if l.Request.Expired() {
			l.put(a, late, nil)
			return late
		}
	}
	if l.orphaned(a) {
		v := l.bereft()
		l.put(a, v, nil)
		return v
	}
	now := time.Now()
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
	alive = alive && !l.off
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
	if ended || l.off || l.phase == slow || l.phase == stuck || l.phase == forsaken {
		return false
	}
	l.phase = resting
	return true
}

// calledOff says whether the leg has been called off.
func (l *Leg) calledOff() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.off
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
	l.takeLesson(a)
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
	l.d.waiting.Queue.Wake()
	*a = attempt{}
	if l.kept == a {
		l.kept = nil
	}
}

// work describes the leg to the patience tracker, in the router's token counts.
func (l *Leg) work(a *attempt) patience.Work {
	w := patience.Work{
		Stream: l.showsFirst(), Owner: l, MaxTokens: l.Request.Scan.MaxTokens,
		CachedTokens:   int64(a.matched) * prefix.BlockTokens,
		UncachedTokens: int64(l.prompt.Blocks-a.matched) * prefix.BlockTokens,
		Expected:       time.Duration(a.forecast.ttft * float64(time.Second)),
	}
	switch {
	case !l.Request.Generates():
		w.MaxTokens = patience.NoTokens
	case l.Work == Prefill:
		w.MaxTokens = 1
	case a.split && !l.hand.with.Together():
		w.CachedTokens, w.UncachedTokens = w.CachedTokens+w.UncachedTokens, 0
	}
	return w
}

// showsFirst says whether the answer begins with its first token. The answer of a leg for prefill
// is one token.
func (l *Leg) showsFirst() bool { return l.Request.Scan.Stream || l.Work == Prefill }

// exchange runs the attempt up to the first sign of an answer. If the node does not know
// stream_options, exchange remembers that and asks again without.
func (l *Leg) exchange(a *attempt) (verdict, error) {
	if a.split {
		l.hand.prefillBeside()
	}
	v, err := l.ask(a)
	for again := true; a.split && again; {
		if v, again = l.handed(a, v, err); again {
			v, err = l.ask(a)
		}
	}
	if v != noOptions {
		return v, err
	}
	a.member.node.noStreamOptions()
	a.ex.Close()
	a.ex = nil
	return l.ask(a)
}

// ask sends the request and waits for the first sign of an answer.
func (l *Leg) ask(a *attempt) (verdict, error) {
	limits := &l.model.limits
	deadline := l.before(a.sent.Add(limits.FirstByte))
	out, err := l.prepare(a)
	if err != nil {
		return unfit, err
	}
	ex, err := a.member.node.Pool.Send(out, deadline)
	if err != nil {
		return l.blame(err), err
	}
	a.ex = ex
	if a.split && l.hand.stage == fresh {
		l.d.metrics.Handover.Observe(time.Since(l.hand.last.ended).Seconds())
	}
	if l.records(a) {
		l.record(a)
	}
	if err := ex.ReadHead(deadline); err != nil {
		return l.blame(err), err
	}
	head := time.Now()
	l.wait.Progress(head)
	ex.SetIdleTimeout(limits.Idle)
	ex.SetReadDeadline(l.before(a.sent.Add(limits.Total)))
	if v := statusVerdict(ex.Status()); v != answered {
		if !l.claim() {
			return l.blame(relay.ErrCanceled), relay.ErrCanceled
		}
		return v, nil
	}
	if ex.IsSSE() || a.split || l.mayRefuse(ex) {
		if err := ex.AwaitBody(deadline); err != nil {
			return l.blame(err), err
		}
	}
	if a.split && ex.IsSSE() && behindRole(ex.Held()) != nil {
		if err := ex.AwaitSecond(deadline); err != nil {
			return l.blame(err), err
		}
	}
	if l.mayRefuse(ex) && bytes.Contains(ex.Held(), []byte("stream_options")) {
		return noOptions, nil
	}
	if a.split && (a.unreadable(ex) || l.readLate(a, ex, head)) {
		return lost, nil
	}
	if err := l.deliver(a); err != nil {
		return l.blame(err), err
	}
	return answered, nil
}

// deadline returns the time by which the leg must have ended: the client's own deadline, or the
// leg's if that is earlier; zero: there is none.
func (l *Leg) deadline() time.Time {
	if l.tries.until.IsZero() {
		return l.Request.Deadline
	}
	return l.Request.Before(l.tries.until)
}

// expired says whether nothing is left of the leg's time.
func (l *Leg) expired() bool {
	end := l.deadline()
	return !end.IsZero() && !time.Now().Before(end)
}

// before returns the earliest of t, the client's own deadline and the leg's.
func (l *Leg) before(t time.Time) time.Time {
	if !l.tries.until.IsZero() && l.tries.until.Before(t) {
		t = l.tries.until
	}
	return l.Request.Before(t)
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
	if a.split && !l.hand.computed(a.ex.Status()) {
		return relay.ErrCanceled
	}
	a.status, a.streams = a.ex.Status(), a.ex.IsSSE()
	l.failAdapter(a)
	if !l.claim() {
		return relay.ErrCanceled
	}
	first := time.Since(l.Request.Received)
	if a.streams {
		l.begun(a, time.Now()) // the place may read the whole stream, as for an HTTP/1.0 client
	}
	if a.split && !a.streams && a.status < 300 {
		if err := l.recount(a.ex); err != nil {
			return err
		}
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
	l.wakeOfTokens()
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
	if l.hand != nil {
		l.hand.repay() // needs the body, which the place may free
	}
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
	case forsaken:
		return unpaired
	}
	if l.calledOff() {
		return abandoned
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
