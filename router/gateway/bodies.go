package gateway

import (
	"net"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/intake"
	"github.com/cognitora/dataplane/router/apierror"
)

// headRead allows more time for a request body than for the head, and room for the body if any is
// free.
func (g *Gateway) headRead(h *fasthttp.RequestHeader) fasthttp.RequestConfig {
	c := fasthttp.RequestConfig{ReadTimeout: g.limits.BodyTimeout, WriteTimeout: g.limits.SlowReader}
	ctx := intake.ContextOf(h)
	a := arrivingAt(ctx)
	a.named(h)
	if a.fault = faultOf(h); a.fault != nil {
		c.MaxRequestBodySize = intake.Unread
	} else if !g.bodies.Announce(&a.Body, ctx) {
		c.MaxRequestBodySize = intake.Unread
	}
	return c
}

// faultOf returns the error of a head that must not be answered, or nil. A body with two framings
// ends elsewhere for a proxy in front than for the router. The bytes behind that body would then
// count as another client's request.
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
