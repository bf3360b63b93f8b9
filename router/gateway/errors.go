package gateway

import (
	"errors"
	"net"
	"os"
	"strconv"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/scan"
)

var (
	errNoPath      = &apierror.Error{Status: 404, Code: "unknown_path", Message: "there is no such endpoint here"}
	errMethod      = &apierror.Error{Status: 405, Code: "method_not_allowed", Message: "this endpoint does not take this method"}
	errTooLarge    = &apierror.Error{Status: 413, Code: "body_too_large", Message: "the request body is larger than this router accepts (limits.max_body)"}
	errBodies      = &apierror.Error{Status: 503, Code: "bodies_full", Message: "the router holds as many bytes of request bodies as it may (limits.max_body_total)", RetryAfterSeconds: 1}
	errHeaderLarge = &apierror.Error{Status: 431, Code: "header_too_large", Message: "the request head is larger than this router accepts (limits.max_header)"}
	errSlowRequest = &apierror.Error{Status: 408, Code: "request_timeout", Message: "the request did not arrive in time"}
	errMalformed   = &apierror.Error{Status: 400, Code: "malformed_http", Message: "the request is not well-formed HTTP/1.1"}
	errStreams     = &apierror.Error{Status: 429, Code: "too_many_streams", Message: "too many streams are open in this router", RetryAfterSeconds: 1}
	errDeadline    = &apierror.Error{Status: 400, Param: "x-cgn-deadline-ms", Message: "x-cgn-deadline-ms must be a positive number of milliseconds"}
	errEncoding    = &apierror.Error{Status: 400, Code: "unsupported_encoding", Message: "compressed request bodies are not read; send the body without Content-Encoding"}
	errBug         = &apierror.Error{Status: 500, Code: "router_bug", Message: "the router failed to handle this request; its log says more"}
)

// fail answers with an error of the router's own, in the envelope of api.
func (g *Gateway) fail(ctx *fasthttp.RequestCtx, api scan.API, err *apierror.Error) {
	e := *err
	e.RequestID = string(ctx.Response.Header.Peek("x-request-id"))
	ctx.Response.ResetBody()
	ctx.SetStatusCode(e.Status)
	ctx.SetContentType("application/json")
	if e.RetryAfterSeconds > 0 {
		ctx.Response.Header.Set("Retry-After", strconv.Itoa(e.RetryAfterSeconds))
	}
	ctx.Response.AppendBody(apierror.Body(nil, api, &e))
	reason := e.Code
	if reason == "" {
		reason = "invalid_request"
	}
	g.metrics.Rejected.WithLabelValues(reason).Inc()
}

// unreadable answers a request that could not be read to its end. fasthttp closes the
// connection afterwards.
func (g *Gateway) unreadable(ctx *fasthttp.RequestCtx, err error) {
	g.identify(ctx)
	g.bodies.give(&ctx.Request.Header)
	api := apiOf(ctx.Path())
	var small *fasthttp.ErrSmallBuffer
	var timeout net.Error
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge) && g.counts(ctx.Request.Header.ContentLength()):
		g.fail(ctx, api, errBodies)
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		g.fail(ctx, api, errTooLarge)
	case errors.As(err, &small):
		g.fail(ctx, api, errHeaderLarge)
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		g.metrics.ClientCut.WithLabelValues("slow_request").Inc()
		g.fail(ctx, api, errSlowRequest)
		return
	default:
		g.fail(ctx, api, errMalformed)
	}
	relay.Linger(ctx.Conn())
}
