package gateway

import (
	"bytes"
	"runtime/debug"
	"strconv"
	"time"
	"unsafe"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/dispatch"
	"github.com/cognitora/dataplane/router/scan"
)

// infer sends a request with a body to the node that should answer it.
func (g *Gateway) infer(ctx *fasthttp.RequestCtx, api scan.API) {
	c := g.begin(ctx, api)
	defer g.survive(c)
	err := c.read()
	if err == nil {
		err = g.dispatch.Do(c.job)
	}
	if err != nil {
		c.refuse(err)
	}
}

// survive keeps a bug in the handling of one request from ending all others.
func (g *Gateway) survive(c *call) {
	p := recover()
	if p == nil {
		return
	}
	g.bug(p)
	if c.ctx.Hijacked() { // the answer goes its way
		return
	}
	defer func() {
		if recover() != nil {
			c.ctx.SetConnectionClose()
		}
	}()
	c.refuse(errBug)
}

// bug reports a panic. It is called while that is being recovered from.
func (g *Gateway) bug(p any) {
	g.log.Error("request handling failed, this is a bug", "panic", p, "stack", string(debug.Stack()))
	g.metrics.Panics.Inc()
}

// read fills the job from the client's request.
func (c *call) read() *apierror.Error {
	j, h := c.job, &c.ctx.Request.Header
	j.Session, j.Pin = h.Peek("x-cgn-session-id"), h.Peek("x-cgn-node")
	c.forward()
	if len(h.ContentEncoding()) > 0 && !bytes.EqualFold(h.ContentEncoding(), []byte("identity")) {
		return errEncoding
	}
	if err := c.bound(); err != nil {
		return err
	}
	if c.api == scan.Other && len(j.Body) == 0 {
		return errNotPassed
	}
	var err error
	if kind := h.ContentType(); len(kind) >= len(formData) && bytes.EqualFold(kind[:len(formData)], formData) {
		err = scan.ScanMultipart(kind, j.Body, &j.Scan)
	} else {
		err = c.g.dispatch.Scan(j)
	}
	if err != nil {
		if e := apierror.FromScan(err); c.api != scan.Other || e.Param != "model" {
			return e
		}
		return errNotPassed
	}
	if j.Scan.Stream {
		if !c.g.streams.take(c.g.limits.MaxStreams) {
			return errStreams
		}
		c.streaming = true
	}
	return c.chain()
}

// bound reads the client's own deadline.
func (c *call) bound() *apierror.Error {
	v := c.ctx.Request.Header.Peek("x-cgn-deadline-ms")
	if len(v) == 0 {
		return nil
	}
	ms, err := strconv.ParseInt(stringOf(v), 10, 32)
	if err != nil || ms <= 0 {
		return errDeadline
	}
	c.job.Deadline = c.job.Received.Add(time.Duration(ms) * time.Millisecond)
	return nil
}

// forward takes over what goes to the engine as it is.
func (c *call) forward() {
	j, r := c.job, &c.ctx.Request
	j.Method = stringOf(r.Header.Method())
	j.Path = stringOf(r.URI().RequestURI()) // normalised, as it was routed
	j.Body = r.Body()
	j.Header = relay.AppendForwardHeaders(j.Header[:0], &r.Header)
	if c.g.forwardAuth {
		j.Auth = r.Header.Peek("Authorization")
	}
}

// chain pins a request that goes on from a stored response to the node that stored it.
func (c *call) chain() *apierror.Error {
	j := c.job
	if len(j.Scan.PreviousResponseID) == 0 {
		return nil
	}
	pin, err := c.g.dispatch.Holder(j, j.Scan.PreviousResponseID)
	if err != nil {
		return err
	}
	j.Pin = append(c.pin[:0], pin...)
	c.pin, j.Stored = j.Pin, true
	return nil
}

var formData = []byte("multipart/form-data")

// stringOf is b as a string without a copy, valid for as long as b is.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// refuse ends a call that nobody answered.
func (c *call) refuse(err *apierror.Error) {
	if c.stop != nil {
		c.stop()
	}
	c.status, c.refused = err.Status, true
	if err == dispatch.ErrClientLeft {
		c.g.metrics.ClientCut.WithLabelValues("left").Inc()
		relay.HangUp(c.ctx)
		c.conclude(relay.ClientGone)
		return
	}
	h := &c.ctx.Response.Header
	h.Reset()
	c.describe(h)
	api := c.api
	if api == scan.Other {
		api = apiOf(c.ctx.Path())
	}
	c.g.fail(c.ctx, api, err)
	c.bytes, c.why = int64(len(c.ctx.Response.Body())), rejection(err)
	c.conclude(relay.UpstreamFailed)
}

// describe adds the router's own headers to an answer.
func (c *call) describe(h *fasthttp.ResponseHeader) {
	j := c.job
	h.SetBytesV("X-Request-Id", c.id)
	if c.api == scan.Messages || c.api == scan.CountTokens {
		h.SetBytesV("Request-Id", c.id) // where Anthropic's SDKs look for it
	}
	if c.g.draining.Load() {
		h.SetConnectionClose()
	}
	if j.Attempts == 0 {
		return
	}
	var number [48]byte
	h.SetBytesV("X-Cgn-Attempts", strconv.AppendInt(number[:0], int64(j.Attempts), 10))
	if id := j.NodeID(); id != "" {
		h.Set("X-Cgn-Node", id)
		b := strconv.AppendInt(number[:0], int64(j.Matched()), 10)
		h.SetBytesV("X-Cgn-Overlap", strconv.AppendInt(append(b, '/'), int64(j.Blocks), 10))
	}
}
