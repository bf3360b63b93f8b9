package gateway

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/plan"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/trust"
)

// call is one request of a client, from its head to its end. The request's plan passes the answer
// to the client through the call, which is an answer.Place. The relay reports the answer's events
// to the call, which is a relay.Follower. Ended calls are reused.
type call struct {
	g       *Gateway
	number  uint64 // of this memory, not of the request
	request *request.Request
	task    *plan.Task
	ctx     *fasthttp.RequestCtx // nil: the relay's loops have the answer
	body    *arrival             // holds the request's body
	id      []byte               // x-request-id
	stop    func()               // ends the watch for the client's departure

	stage     stage
	next      *relay.Exchange // exchange that continues the client's stream
	streaming bool            // the client asked for a stream, and is counted for it
	why       string          // code of the router's own error
	status    int
	bytes     int64 // of the answer's body, sent to the client

	reserved limits.Reservation
	most     limits.Use // what the request may use at most; zero: nobody counts it
	counts   bool       // the tokens of the request count
	tallied  bool       // the call has passed all limits, and its use is added up
	model    string     // canonical name; "" if it is unknown

	bound callMethods
}

// stage is the progress of a call.
type stage uint8

const (
	asking    stage = iota // nodes are asked for an answer
	answering              // the client's place is open
	refused                // the router answered with an error of its own; nothing was relayed
)

// callMethods are a call's methods, bound once. Passing bound methods allocates nothing.
type callMethods struct{ sending, left, parked, giveBody func() }

var callNumbers atomic.Uint64

var calls = sync.Pool{New: func() any {
	c := &call{number: callNumbers.Add(1), task: plan.NewTask()}
	c.request = c.task.Request
	c.bound = callMethods{c.onSend, c.onLeft, c.onLent, c.onGiveBody}
	return c
}}

// begin returns a call from the pool for the request of ctx. p is the plan that answers the call. A
// nil p stands for the usual plan of the request's kind.
func (g *Gateway) begin(ctx *fasthttp.RequestCtx, api scan.API, who *trust.Principal, p plan.Plan) *call {
	c := calls.Get().(*call)
	c.g, c.ctx, c.body = g, ctx, arrivingAt(ctx)
	c.id = append(c.id[:0], ctx.Response.Header.Peek("x-request-id")...)
	g.plans.Begin(c.task, c, p)
	r := c.request
	r.ID, r.API, r.Who, r.Salts = c.id, api, who, g.salts
	r.Received, r.Life.Begin = time.Now(), c.bound.sending
	return c
}

// answer calls read to read the request. Then the call's plan answers the request.
func (c *call) answer(read func(*call) *apierror.Error) {
	g := c.g
	defer g.survive(c)
	err := read(c)
	if err == nil {
		err = c.task.Answer()
	}
	switch {
	case err == nil:
	case c.stage == asking:
		c.refuse(err)
	default: // the plan failed after the client got an answer; the answer continues
		g.bug(err)
	}
}

// onSend begins to watch for the client's departure, because a request is now out that can be
// cancelled.
func (c *call) onSend() {
	c.g.live.add(c)
	if c.g.port.over.Load() { // the shutdown may have ended the live calls before this call was among them
		c.request.Life.Shutdown()
	}
	// EndRevoked may have missed the call, whose key was revoked after the head had been read. With
	// auth.revoked = finish such a call ends too: nothing has been sent to a node yet.
	if c.request.Who.Revoked() {
		c.request.Life.Revoke()
	}
	c.stop = c.g.watcher.Watch(c.ctx.Conn(), c.bound.left)
}

// onLeft cancels the request when the client's connection is gone.
func (c *call) onLeft() { c.request.Life.Cancel() }

// Take makes the call an answer.Place. The first answer starts the client's response. Any later
// answer is an event stream and continues the client's stream.
func (c *call) Take(ex *relay.Exchange, _ answer.Source) (err error) {
	if c.stage != asking {
		c.drop()
		c.next = ex
		return nil
	}
	if c.task.Follows() && ex.IsSSE() && !c.ctx.Request.Header.IsHTTP11() {
		return relay.ErrClientTooOld // the server would read the whole answer here, within the first leg
	}
	c.status = ex.Status()
	h := &c.ctx.Response.Header
	h.Reset()
	h.SetNoDefaultContentType(true) // a response has a content type only if the engine's answer has one
	c.ctx.SetStatusCode(c.status)
	relay.CopyHeaders(h, ex)
	c.describe(h)
	c.stage = answering
	err = errBug
	defer func() {
		if err != nil && c.ctx != nil { // covers a bug in Reply
			c.stage = asking
		}
	}()
	err = relay.Reply(c.ctx, ex, relay.ReplyOptions{
		SlowReader: c.g.limits.SlowReader, Follower: c, Stop: c.stop, MustClose: closes(c.request.API) &&
			c.status < 300,
		Parking: &c.g.parking, Parked: c.bound.parked,
	})
	return err
}

// drop closes the exchange in next, if Next has not handed it over.
func (c *call) drop() {
	if c.next != nil {
		c.next.Close()
		c.next = nil
	}
}

// onLent is called when the stream continues on the relay's loops and ctx is released. onLent frees
// the request's body, or keeps it for a later leg.
func (c *call) onLent() {
	if c.task.Follows() {
		c.g.bodies.Keep(&c.body.Body, c.ctx)
	} else {
		c.request.Release()
	}
	c.ctx = nil
}

// onGiveBody frees the memory of the request's body.
func (c *call) onGiveBody() { c.g.bodies.Give(&c.body.Body) }

// closes says whether a stream of api ends with a closing event.
func closes(api scan.API) bool {
	return api == scan.Chat || api == scan.Completions || api == scan.Responses || api == scan.Messages
}

// Event, Held, Body, End, Next, Left and Done make the call a relay.Follower.
func (c *call) Event(e sse.Event, out []byte, at time.Time) (rest []byte, enough bool) {
	return c.task.Event(e, out, at)
}

// Held tells the plan's task that the client holds up the answer, or no longer does.
func (c *call) Held(held bool, at time.Time) { c.task.Held(held, at) }

// Body passes a piece of the answer to the plan's task.
func (c *call) Body(piece []byte, whole bool) { c.task.Piece(piece, whole) }

// End asks the plan whether the stream continues. A stream that the plan cannot finish ends with an
// error event.
func (c *call) End(out []byte, o relay.Outcome, err error) (rest []byte, more bool) {
	if rest, more = c.task.End(out, o); more {
		c.task.Broke(err)
		return rest, true
	}
	switch {
	case c.task.Mended() && len(rest) == len(out): // the relay cuts a failed response that nothing ends
		return append(rest, emptyComment...), false
	case c.task.Mended() || o == relay.Complete || o == relay.Enough:
		return rest, false
	}
	e := c.task.Failure(err)
	e.RequestID = string(c.id)
	return apierror.StreamEvent(rest, c.request.API, e), false
}

// emptyComment is a block of an event stream that means nothing.
const emptyComment = ":\n\n"

// Next gets the exchange that continues the client's stream from the plan.
func (c *call) Next() (*relay.Exchange, error) {
	if e := c.task.Next(); e != nil {
		c.drop()
		return nil, e
	}
	ex := c.next
	c.next = nil
	return ex, nil
}

// Left cancels the wait in Next.
func (c *call) Left() { c.request.Life.Cancel() }

// Done ends the call when the answer has been sent or abandoned.
func (c *call) Done(o relay.Outcome, sent int64, _ error) {
	g := c.g
	c.bytes = sent
	switch {
	case o == relay.SlowReader:
		g.metrics.ClientCut.WithLabelValues("slow_reader").Inc()
	case o == relay.ClientGone || c.request.Life.Ended() == request.Left:
		o = relay.ClientGone
		g.metrics.ClientCut.WithLabelValues("left").Inc()
	}
	c.conclude(o)
}

// refuse ends a call with the router's own error.
func (c *call) refuse(err *apierror.Error) {
	c.status, c.stage = err.Status, refused
	c.writeError(err)
	if err == leg.ErrClientLeft {
		c.conclude(relay.ClientGone)
	} else {
		c.conclude(relay.UpstreamFailed)
	}
}

// writeError answers with err. If a bug makes that panic, the client loses its connection.
func (c *call) writeError(err *apierror.Error) {
	defer func() {
		if p := recover(); p != nil {
			c.ctx.SetConnectionClose()
			c.g.bug(p)
		}
	}()
	if c.stop != nil {
		c.stop()
	}
	if err == leg.ErrClientLeft {
		c.g.metrics.ClientCut.WithLabelValues("left").Inc()
		relay.HangUp(c.ctx)
		return
	}
	h := &c.ctx.Response.Header
	h.Reset()
	c.describe(h)
	api := c.request.API
	if api == scan.Other {
		api = apiOf(c.ctx.Path())
	}
	c.g.refuse(c.ctx, api, err, c.request.Who)
	c.bytes, c.why = int64(len(c.ctx.Response.Body())), err.Code
}

// conclude ends the call. Nothing may use the call afterwards. The call's memory is not reused if a
// bug makes the end panic.
func (c *call) conclude(o relay.Outcome) {
	g := c.g
	defer func() {
		if p := recover(); p != nil {
			g.bug(p)
			return
		}
		c.recycle()
	}()
	c.end(o)
}

// end writes the access log and frees every resource of the call. Each resource is freed even if
// freeing another one panics.
func (c *call) end(o relay.Outcome) {
	g := c.g
	defer c.task.Finish(o)
	defer g.live.remove(c)
	if c.streaming {
		defer g.streams.give()
	}
	defer c.drop()
	defer c.settle()
	g.record(c, o)
}

// recycle makes the call's memory free for another request.
func (c *call) recycle() {
	number, id, bound, task := c.number, c.id[:0], c.bound, c.task
	*c = call{}
	c.number, c.id, c.bound, c.task, c.request = number, id, bound, task, task.Request
	calls.Put(c)
}
