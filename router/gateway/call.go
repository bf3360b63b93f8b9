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
	"github.com/cognitora/dataplane/router/plan"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
)

// call is one request of a client while it is answered: the client's place, to which its plan hands
// the answer, and the observer of that answer. Its memory is reused.
type call struct {
	g       *Gateway
	number  uint64 // of this memory, not of the request
	request *request.Request
	task    *plan.Task
	ctx     *fasthttp.RequestCtx // nil: the relay's loops have the answer
	body    *arrival             // that the request's body came with
	id      []byte               // x-request-id
	stop    func()               // ends the watch over the client

	stage     stage
	next      *relay.Exchange // that goes on with the client's stream
	streaming bool            // the client asked for a stream, and counts as one
	why       string          // code of the router's own error
	status    int
	bytes     int64 // of the answer's body, sent to the client

	bound callMethods
}

// stage is how far a call has come.
type stage uint8

const (
	asking    stage = iota // nodes, for an answer
	answering              // the client's place is open
	refused                // by the router itself: nothing was relayed
)

// callMethods are a call's methods, bound once, so that handing them over costs nothing.
type callMethods struct{ sending, left, parked, giveBody func() }

var callNumbers atomic.Uint64

var calls = sync.Pool{New: func() any {
	c := &call{number: callNumbers.Add(1), task: plan.NewTask()}
	c.request = c.task.Request
	c.bound = callMethods{c.onSend, c.onLeft, c.onLent, c.onGiveBody}
	return c
}}

// begin takes a call for the request of ctx, which is answered by p; nil: by the plan of its kind.
func (g *Gateway) begin(ctx *fasthttp.RequestCtx, api scan.API, p plan.Plan) *call {
	c := calls.Get().(*call)
	c.g, c.ctx, c.body = g, ctx, arrivingAt(ctx)
	c.id = append(c.id[:0], ctx.Response.Header.Peek("x-request-id")...)
	g.plans.Begin(c.task, c, p)
	r := c.request
	r.API, r.Received, r.Life.Begin = api, time.Now(), c.bound.sending
	return c
}

// answer has the call's plan answer it, once read has read the request.
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
	default: // the plan has failed after its answer was taken, which goes its way
		g.bug(err)
	}
}

// onSend begins the watch over the client: from now on there is something to cancel.
func (c *call) onSend() {
	c.g.live.add(c)
	if c.g.door.over.Load() { // the shutdown may have looked at the live calls before
		c.request.Life.Shutdown()
	}
	c.stop = c.g.watcher.Watch(c.ctx.Conn(), c.bound.left)
}

// onLeft is called when the client's connection has gone.
func (c *call) onLeft() { c.request.Life.Cancel() }

// Take makes the call an answer.Place. The first answer opens the client's place; a later one, an
// event stream, goes on with its stream.
func (c *call) Take(ex *relay.Exchange, _ answer.Source) (err error) {
	if c.stage != asking {
		c.drop()
		c.next = ex
		return nil
	}
	if c.task.Follows() && ex.IsSSE() && !c.ctx.Request.Header.IsHTTP11() {
		return relay.ErrClientTooOld // its whole answer would be read here, within the first leg
	}
	c.status = ex.Status()
	h := &c.ctx.Response.Header
	h.Reset()
	h.SetNoDefaultContentType(true) // the engine's answer has one or has none
	c.ctx.SetStatusCode(c.status)
	relay.CopyHeaders(h, ex)
	c.describe(h)
	c.stage = answering
	err = errBug
	defer func() {
		if err != nil && c.ctx != nil { // a bug in Reply included
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

// drop closes an exchange that Next has not handed over.
func (c *call) drop() {
	if c.next != nil {
		c.next.Close()
		c.next = nil
	}
}

// onLent is called when the stream goes on and ctx is let go: the body is released, or kept for a
// leg to come.
func (c *call) onLent() {
	if c.task.Follows() {
		c.g.bodies.Keep(&c.body.Body, c.ctx)
	} else {
		c.request.Release()
	}
	c.ctx = nil
}

// onGiveBody gives back the memory and the room of the request's body.
func (c *call) onGiveBody() { c.g.bodies.Give(&c.body.Body) }

// closes tells whether a stream of api has an event that says that all is said.
func closes(api scan.API) bool {
	switch api {
	case scan.Chat, scan.Completions, scan.Responses, scan.Messages:
		return true
	}
	return false
}

// Event, Body, End, Next, Left and Done make the call a relay.Follower.
func (c *call) Event(e sse.Event, out []byte, at time.Time) (rest []byte, enough bool) {
	return c.task.Event(e, out, at)
}

// Body looks at a piece of the answer.
func (c *call) Body(piece []byte, whole bool) { c.task.Piece(piece, whole) }

// End has the plan say whether the stream goes on. One that could not be finished ends with an
// error event.
func (c *call) End(out []byte, o relay.Outcome, err error) (rest []byte, more bool) {
	if rest, more = c.task.End(out, o); more || o == relay.Complete || o == relay.Enough {
		return rest, more
	}
	e := c.task.Failure(err)
	e.RequestID = string(c.id)
	return apierror.StreamEvent(rest, c.request.API, e), false
}

// Next has the plan bring what goes on with the client's stream.
func (c *call) Next() (*relay.Exchange, error) {
	if e := c.task.Next(); e != nil {
		c.drop()
		return nil, e
	}
	ex := c.next
	c.next = nil
	return ex, nil
}

// Left ends what Next waits for.
func (c *call) Left() { c.request.Life.Cancel() }

// Done ends the call when the answer has been sent or given up.
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

// refuse ends a call that nobody answered.
func (c *call) refuse(err *apierror.Error) {
	c.status, c.stage = err.Status, refused
	c.writeError(err)
	if err == leg.ErrClientLeft {
		c.conclude(relay.ClientGone)
	} else {
		c.conclude(relay.UpstreamFailed)
	}
}

// writeError answers with err. A bug in that costs the client its connection.
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
	c.g.fail(c.ctx, api, err)
	c.bytes, c.why = int64(len(c.ctx.Response.Body())), rejection(err)
}

// conclude ends the call: nobody may touch it afterwards. A bug in that costs its memory, which no
// other request gets.
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

// end writes the access log and gives everything back, each thing even if a bug keeps another from
// it.
func (c *call) end(o relay.Outcome) {
	g := c.g
	defer c.task.Finish(o)
	defer g.live.remove(c)
	if c.streaming {
		defer g.streams.give()
	}
	defer c.drop()
	g.record(c, o)
}

// recycle lets another request have the call.
func (c *call) recycle() {
	number, id, bound, task := c.number, c.id[:0], c.bound, c.task
	*c = call{}
	c.number, c.id, c.bound, c.task, c.request = number, id, bound, task, task.Request
	calls.Put(c)
}
