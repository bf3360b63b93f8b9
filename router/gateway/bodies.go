package gateway

import (
	"net"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/intake"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/auth"
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
		if n := h.ContentLength(); a.fault.Status != fasthttp.StatusUnauthorized || n < 0 || n > shortBody {
			c.MaxRequestBodySize = intake.Unread
		}
	} else if !g.bodies.Announce(&a.Body, ctx) {
		c.MaxRequestBodySize = intake.Unread
	}
	return c
}

// shortBody is the largest body, in bytes, that is read of a request without an identity.
const shortBody = 4 << 10

// admit finds out who sends the request whose head has been read. Health is for everybody.
func (g *Gateway) admit(a *arrival, ctx *fasthttp.RequestCtx) (err *apierror.Error) {
	if a.peer == nil {
		a.peer = auth.PeerOf(ctx.RemoteAddr(), ctx.TLSConnectionState())
	}
	if a.who, err = g.auth.Identify(&ctx.Request.Header, a.peer); err != nil && string(ctx.Path()) == pathHealth {
		return nil
	}
	return err
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
