package gateway

import (
	"net"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/intake"
	"github.com/cognitora/dataplane/router/apierror"
)

// headRead gives a request body more time than its head, and room if there is any.
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

// faultOf says what makes a request one that must not be answered. A body that is framed in two
// ways ends elsewhere for a proxy in front than here, and what follows it would be taken for a
// request of somebody else's.
func faultOf(h *fasthttp.RequestHeader) *apierror.Error {
	if v := h.Protocol(); string(v) != "HTTP/1.1" && string(v) != "HTTP/1.0" {
		return errVersion
	}
	if h.ContentLength() == -1 && intake.TwiceFramed(h) {
		return errFraming
	}
	return nil
}

// track gives back what a request held that the server has lost before it was read.
func (g *Gateway) track(c net.Conn, state fasthttp.ConnState) {
	if state == fasthttp.StateClosed {
		g.bodies.Closed(&c.(client).arriving().Body, c)
	}
}
