package gateway

import (
	"net"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/intake"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/apierror"
)

// headRead finds out who asks, sets the time limit for reading the request's body, and reserves
// memory for the body if enough is free. The body of a request that is refused is not read, unless
// it is so short that the connection can go on.
func (g *Gateway) headRead(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	c := fasthttp.RequestConfig{ReadTimeout: g.limits.BodyTimeout, WriteTimeout: g.limits.SlowReader}
	ctx := intake.ContextOf(h)
	a := arrivingAt(ctx)
	a.named(h)
	if a.fault = faultOf(h); a.fault == nil {
		a.fault = g.admit(a, ctx)
	}
	if a.fault != nil {
		if !refusesIdentity(a.fault) || !isShort(h) {
			c.MaxRequestBodySize = intake.Unread
		}
	} else if !g.bodies.Announce(&a.Body, ctx) {
		c.MaxRequestBodySize = intake.Unread
	}
	return c
}

// shortBody is the largest body, in bytes, that is read of a request without an identity.
const shortBody = 4 << 10

// admit finds out who sends the request whose head has been read. Health is for everybody, but
// without an identity only with a short body, which takes no memory from other requests.
func (g *Gateway) admit(a *arrival, ctx *fasthttp.RequestCtx) (err *apierror.Error) {
	if a.peer == nil {
		a.peer = g.auth.PeerOf(ctx.RemoteAddr(), ctx.TLSConnectionState())
	}
	h := &ctx.Request.Header
	if a.who, err = g.auth.Identify(h, a.peer); err != nil && string(ctx.Path()) == pathHealth && isShort(h) {
		return nil
	}
	return err
}

// refusesIdentity says whether the fault of a head is whom it names, after which the connection can
// go on.
func refusesIdentity(fault *apierror.Error) bool {
	return fault.Status == fasthttp.StatusUnauthorized || fault.Status == fasthttp.StatusForbidden
}

// isShort says whether a request has no body, or one of at most shortBody bytes.
func isShort(h *fasthttp.RequestHeader) bool {
	const chunked = -1
	n := h.ContentLength()
	return n != chunked && n <= shortBody
}

// expected says which status answers a client that waits for leave to send its body. A request that
// is refused gets its answer at once, also if the client sends the body without leave.
func (g *Gateway) expected(ctx *fasthttp.RequestCtx) int {
	if arrivingAt(ctx).fault == nil {
		return fasthttp.StatusContinue
	}
	g.handle(ctx)
	relay.Linger(ctx.Conn())
	return ctx.Response.StatusCode()
}

// faultOf returns the error of a head that must not be answered, or nil. If a head declares the
// body's length in two ways, a proxy in front may see the end of the body elsewhere than the
// router. Bytes of the body could then count as another client's request.
func faultOf(h *fasthttp.RequestHeader) *apierror.Error {
	if v := h.Protocol(); string(v) != "HTTP/1.1" && string(v) != "HTTP/1.0" {
		return errVersion
	}
	if h.ContentLength() == -1 && intake.TwiceFramed(h) {
		return errFraming
	}
	return nil
}

// track frees the memory of a request that the server lost before it was read.
func (g *Gateway) track(c net.Conn, state fasthttp.ConnState) {
	if state == fasthttp.StateClosed {
		g.bodies.Closed(&c.(client).arriving().Body, c)
	}
}
