package gateway

import (
	"bytes"
	"strconv"
	"unsafe"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/auth"
	"github.com/cognitora/dataplane/router/members"
	"github.com/cognitora/dataplane/router/plan"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/trust"
)

// infer answers a request with a body that names a model.
func (g *Gateway) infer(ctx *fasthttp.RequestCtx, api scan.API, who *trust.Principal) {
	g.begin(ctx, api, who, nil).answer((*call).read)
}

// storedResponse answers a request for a stored response (GET, DELETE, cancel, input_items). rest
// is the part of the path behind /v1/responses/.
func (g *Gateway) storedResponse(ctx *fasthttp.RequestCtx, rest []byte, who *trust.Principal) {
	id, _, _ := bytes.Cut(rest, []byte("/"))
	g.begin(ctx, scan.Responses, who, plan.Stored{ID: id}).answer((*call).readHead)
}

// survive keeps a panic in one request from ending the process.
func (g *Gateway) survive(c *call) {
	p := recover()
	if p == nil {
		return
	}
	g.bug(p)
	if c.stage == asking { // otherwise the answer goes on
		c.refuse(errBug)
	}
}

// bug reports a mistake of the router: a panic, or an impossible error.
func (g *Gateway) bug(p any) { g.metrics.Bug(g.log, "request handling", p) }

// read fills the request from the client's head and body.
func (c *call) read() *apierror.Error {
	h := &c.ctx.Request.Header
	own, err := c.takeHead()
	if err != nil {
		return err
	}
	if coding := h.ContentEncoding(); len(coding) > 0 && !bytes.EqualFold(coding, []byte("identity")) {
		return errEncoding
	}
	r := c.request
	if r.API == scan.Other && len(r.Body()) == 0 {
		return errNotPassed
	}
	if err := r.Read(h.ContentType(), c.g.scans); err != nil {
		if e := apierror.FromScan(err); r.API != scan.Other || e.Param != "model" {
			return e
		}
		return errNotPassed
	}
	if own.Routing {
		if err := r.ReadHeaders(h.All()); err != nil {
			return apierror.FromScan(err)
		}
	}
	if err := c.permit(); err != nil {
		return err
	}
	if who := r.Who; who != nil && who.Models != nil {
		if name := members.Adapter(r.Scan, r.Body()); name != "" {
			return auth.LimitedTo(name, who)
		}
	}
	if r.Scan.Stream {
		if !c.g.streams.take(c.g.limits.MaxStreams) {
			return errStreams
		}
		c.streaming = true
	}
	return c.reserve(usesTokens(r.API))
}

// readHead fills the request from the client's head.
func (c *call) readHead() *apierror.Error {
	_, err := c.takeHead()
	if err == nil {
		err = c.permit()
	}
	if err == nil {
		err = c.reserve(false) // a stored response has the usage of the request that made it
	}
	return err
}

// takeHead takes over the parts of the head that go to the engine, and returns the headers that are
// addressed to the router.
func (c *call) takeHead() (request.OwnHeaders, *apierror.Error) {
	r, from := c.request, &c.ctx.Request
	r.Own(from.Body(), c.bound.giveBody)
	h := &from.Header
	own := ownHeadersOf(h)
	head := request.Head{
		Method: h.Method(), Path: from.URI().RequestURI(), // normalised, as it was routed
		Session: own.Sessions.ID(), Pin: own.Pin,
	}
	r.OneLeg = !h.IsHTTP11()
	if c.g.forwardAuth {
		head.Auth = h.Peek("Authorization")
	}
	r.SetHead(head)
	r.Header, r.Trace = c.g.traces.Begin(relay.AppendForwardHeaders(r.Header[:0], h), r.Received)
	if err := r.ReadDeadline(own.Deadline); err != nil {
		return own, apierror.FromScan(err)
	}
	return own, nil
}

// ownHeadersOf finds the headers that are addressed to the router in one pass over the head. The
// server has spelled every name as net/http does.
func ownHeadersOf(h *fasthttp.RequestHeader) (own request.OwnHeaders) {
	for name, value := range h.All() {
		own.Note(name, value)
	}
	return own
}

// permit refuses a request that steers the router from a client that may not.
func (c *call) permit() *apierror.Error {
	what := c.request.Privileged()
	if what == "" || c.request.Who.Scopes.Has(trust.Pin) {
		return nil
	}
	return c.g.auth.Denied(what, c.request.Who)
}

// stringOf returns b as a string without a copy. The string is valid for as long as b is.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// describe adds the router's own headers to an answer.
func (c *call) describe(h *fasthttp.ResponseHeader) {
	h.SetBytesV("X-Request-Id", c.id)
	if api := c.request.API; api == scan.Messages || api == scan.CountTokens {
		h.SetBytesV("Request-Id", c.id) // Anthropic's SDKs read this name
	}
	if c.g.port.draining.Load() {
		h.SetConnectionClose()
	}
	c.describeLimits(h)
	attempts := c.task.Attempts()
	if attempts == 0 {
		return
	}
	var number [48]byte
	h.SetBytesV("X-Cgn-Attempts", strconv.AppendInt(number[:0], int64(attempts), 10))
	if node, matched, blocks := c.task.Node(); node != "" {
		h.Set("X-Cgn-Node", node)
		b := strconv.AppendInt(number[:0], int64(matched), 10)
		h.SetBytesV("X-Cgn-Overlap", strconv.AppendInt(append(b, '/'), int64(blocks), 10))
	}
	if s := c.task.Steps(); s.Name != "" {
		h.SetBytesV("X-Cgn-Cascade-Step", strconv.AppendInt(number[:0], int64(s.Step), 10))
		b := strconv.AppendInt(number[:0], s.Prompt, 10)
		h.SetBytesV("X-Cgn-Cascade-Tokens", strconv.AppendInt(append(b, '/'), s.Output, 10))
	}
	if node, _ := c.task.PrefillNode(); node != "" {
		h.Set("X-Cgn-Prefill-Node", node)
	}
}
