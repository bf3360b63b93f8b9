package gateway

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/accesslog"
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
	errNoTLS       = &apierror.Error{Status: 400, Code: "https_required", Message: "this port speaks HTTPS; ask it for https://"}
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

// unreadable answers a request that could not be read to its end, in the envelope of the API
// that its first line names, if that has come. fasthttp closes the connection afterwards.
func (g *Gateway) unreadable(ctx *fasthttp.RequestCtx, err error) {
	a := arrivingAt(ctx)
	if s, ok := ctx.Conn().(*secure); ok && !s.ConnectionState().HandshakeComplete {
		g.unencrypted(s, err)
		return
	}
	method, api := a.asked()
	e := errMalformed
	var small *fasthttp.ErrSmallBuffer
	switch {
	case errors.Is(err, fasthttp.ErrBodyTooLarge) && g.counts(ctx.Request.Header.ContentLength()):
		e = errBodies
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		e = errTooLarge
	case errors.As(err, &small):
		e = errHeaderLarge
	case a.late:
		e = errSlowRequest
		g.metrics.ClientCut.WithLabelValues("slow_request").Inc()
	}
	g.identify(ctx)
	g.bodies.give(a)
	g.fail(ctx, api, e)
	g.note(ctx, method, api.String(), a.began)
	if e != errSlowRequest {
		relay.Linger(ctx.Conn())
	}
}

// unencrypted answers a client that speaks plain HTTP to a port that speaks TLS. Other
// connections that end before TLS is spoken have asked for nothing.
func (g *Gateway) unencrypted(s *secure, err error) {
	var record tls.RecordHeaderError
	if !errors.As(err, &record) || record.Conn == nil || !startsHTTP(record.RecordHeader[:]) {
		return
	}
	body := apierror.Body(nil, scan.Other, errNoTLS)
	fmt.Fprintf(record.Conn, "HTTP/1.1 %d %s\r\nServer: cognitora\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		errNoTLS.Status, fasthttp.StatusMessage(errNoTLS.Status), len(body), body)
	relay.Linger(s)
	g.metrics.Rejected.WithLabelValues(errNoTLS.Code).Inc()
	g.noted(accesslog.Entry{
		Time: time.Now(), API: scan.Other.String(), End: refused, Status: errNoTLS.Status, Bytes: int64(len(body)),
		TTFT: -1, PromptTokens: -1, CompletionTokens: -1, CachedTokens: -1,
	})
}

// startsHTTP tells whether the first bytes of a connection are those of a request line.
func startsHTTP(b []byte) bool {
	for _, method := range []string{"GET /", "HEAD ", "POST ", "PUT /", "DELET", "OPTIO", "PATCH"} {
		if string(b) == method {
			return true
		}
	}
	return false
}
