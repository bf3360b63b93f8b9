package gateway

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/dispatch"
	"github.com/cognitora/dataplane/router/scan"
)

// call is one request of a client while it is worked on. It follows the answer on its way
// to the client; its memory is reused.
type call struct {
	relay.OneSource
	g      *Gateway
	number uint64 // of this memory, not of the request
	job    *dispatch.Job
	ctx    *fasthttp.RequestCtx
	api    scan.API
	id     []byte // x-request-id
	pin    []byte // node of a stored response
	stop   func() // ends the watch over the client
	lent   bool   // to the relay's loops: there is no ctx any more

	blind     bool // following the answer has failed: it goes on unseen
	streaming bool // the client asked for a stream, and counts as one
	refused   bool // by the router itself: nothing was relayed
	status    int
	bytes     int64  // of the answer's body, sent to the client
	why       string // code of the router's own error

	// Methods bound once, so that handing them over costs nothing.
	picked, left, detached func()
	reply                  func(*relay.Exchange) error
}

var callNumbers atomic.Uint64

var calls = sync.Pool{New: func() any {
	c := &call{number: callNumbers.Add(1)}
	c.picked, c.left, c.detached, c.reply = c.onPick, c.onLeft, c.onDetach, c.onReply
	return c
}}

func (g *Gateway) begin(ctx *fasthttp.RequestCtx, api scan.API) *call {
	c := calls.Get().(*call)
	c.g, c.ctx, c.api, c.job = g, ctx, api, g.dispatch.Job()
	c.id = append(c.id[:0], ctx.Response.Header.Peek("x-request-id")...)
	j := c.job
	j.API, j.Received, j.OnPick, j.Reply = api, time.Now(), c.picked, c.reply
	return c
}

// onPick begins the watch over the client: from now on there is something to cancel.
func (c *call) onPick() {
	c.g.live.add(c)
	if c.g.over.Load() { // the shutdown may have looked at the live calls before
		c.job.Shutdown()
	}
	c.stop = c.g.watcher.Watch(c.ctx.Conn(), c.left)
}

// onLeft is called when the client's connection has gone.
func (c *call) onLeft() { c.job.Cancel() }

// onReply hands an answer to fasthttp.
func (c *call) onReply(ex *relay.Exchange) error {
	c.status = ex.Status()
	h := &c.ctx.Response.Header
	h.Reset()
	h.SetNoDefaultContentType(true) // the engine's answer has one or has none
	c.ctx.SetStatusCode(c.status)
	relay.CopyHeaders(h, ex)
	c.describe(h)
	return relay.Reply(c.ctx, ex, relay.ReplyOptions{
		SlowReader: c.g.limits.SlowReader, Follower: c, Stop: c.stop, MustClose: closes(c.api) && c.status < 300,
		Lending: &c.g.lending, Lent: c.detached,
	})
}

// onDetach is called when the answer goes on without the request.
func (c *call) onDetach() {
	c.job.Detach()
	c.g.bodies.Give(&arrivingAt(c.ctx).Body)
	c.ctx, c.lent = nil, true
}

// closes tells whether a stream of api has an event that says that all is said.
func closes(api scan.API) bool {
	switch api {
	case scan.Chat, scan.Completions, scan.Responses, scan.Messages:
		return true
	}
	return false
}

// Event, Body, End and Done follow the answer as relay.Follower. A bug in that costs what
// would have been learnt from the answer, not the answer.
func (c *call) Event(e sse.Event, out []byte, at time.Time) (rest []byte, enough bool) {
	if c.keeps(e, at) {
		out = append(out, e.Raw...)
	}
	return out, false
}

// keeps tells whether the client gets the event.
func (c *call) keeps(e sse.Event, at time.Time) (keep bool) {
	if c.blind {
		return true
	}
	keep = true
	defer c.stumble()
	return c.job.Event(e, at)
}

// Body looks at a piece of the answer.
func (c *call) Body(piece []byte, whole bool) {
	if c.blind {
		return
	}
	defer c.stumble()
	c.job.Piece(piece, whole)
}

// End writes the error event at the end of a stream that could not be finished.
func (c *call) End(out []byte, o relay.Outcome, err error) (rest []byte, more bool) {
	if rest = out; o == relay.Complete {
		return rest, false
	}
	defer c.stumble()
	e := c.job.Failure(err)
	e.RequestID = string(c.id)
	return apierror.StreamEvent(out, c.api, e), false
}

// Done ends the call when the answer has been sent or given up.
func (c *call) Done(o relay.Outcome, sent int64, _ error) {
	g := c.g
	c.bytes = sent
	switch {
	case c.job.Left() || o == relay.ClientGone:
		o = relay.ClientGone
		g.metrics.ClientCut.WithLabelValues("left").Inc()
	case o == relay.SlowReader:
		g.metrics.ClientCut.WithLabelValues("slow_reader").Inc()
	}
	c.conclude(o)
}

// conclude is end, and survives a bug in it: nobody may touch the call afterwards.
func (c *call) conclude(o relay.Outcome) {
	g := c.g
	defer func() {
		if p := recover(); p != nil {
			g.bug(p)
		}
	}()
	c.end(o)
}

// stumble keeps a bug in following an answer from ending it.
func (c *call) stumble() {
	if p := recover(); p != nil {
		c.blind = true
		c.g.bug(p)
	}
}

// end writes the access log and gives everything back, each thing even if a bug keeps another from it.
func (c *call) end(o relay.Outcome) {
	g, j := c.g, c.job
	defer func() {
		c.job, c.ctx, c.stop, c.bytes, c.status, c.why = nil, nil, nil, 0, 0, ""
		c.lent, c.blind, c.streaming, c.refused = false, false, false, false
		calls.Put(c)
	}()
	if !c.lent {
		defer g.bodies.Give(&arrivingAt(c.ctx).Body)
	}
	defer g.dispatch.Finish(j, o)
	defer g.live.remove(c)
	if c.streaming {
		g.streams.give()
	}
	g.record(c, o)
}

// outcome is how the call ended, for the access log.
func (c *call) outcome(o relay.Outcome) string {
	switch {
	case c.refused && o != relay.ClientGone:
		return refused
	case o == relay.UpstreamFailed && c.job.Stopped():
		return shutdown
	}
	return o.String()
}
