package gateway

import (
	"cmp"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/accesslog"
	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/auth"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/trust"
)

var (
	errNoPath = &apierror.Error{
		Status: 404, Code: "unknown_path", Message: "there is no such endpoint here",
	}
	errNotPassed = &apierror.Error{
		Status: 404, Code: "unknown_path",
		Message: "there is no such endpoint here; below /v1/ the router passes what it does not know to a node, " +
			"if it is a POST that names a `model`",
	}
	errTooLarge = &apierror.Error{
		Status: 413, Code: "body_too_large",
		Message: "the request body is larger than this router accepts (limits.max_body)",
	}
	errBodies = &apierror.Error{
		Status: 503, Code: "bodies_full", RetryAfterSeconds: 1,
		Message: "the router holds as many bytes of request bodies as it may (limits.max_body_total)",
	}
	errHeaderLarge = &apierror.Error{
		Status: 431, Code: "header_too_large",
		Message: "the request head is larger than this router accepts (limits.max_header)",
	}
	errSlowRequest = &apierror.Error{
		Status: 408, Code: "request_timeout",
		Message: "the request did not arrive in time",
	}
	errMalformed = &apierror.Error{
		Status: 400, Code: "malformed_http",
		Message: "the request is not well-formed HTTP/1.1",
	}
	errShortBody = &apierror.Error{
		Status: 400, Code: "body_incomplete",
		Message: "the connection's sending side was closed before the request was complete; " +
			"Content-Length says how long its body is",
	}
	errVersion = &apierror.Error{
		Status: 505, Code: "http_version",
		Message: "this port speaks HTTP/1.1; HTTP/2 needs a proxy in front of it",
	}
	errFraming = &apierror.Error{
		Status: 400, Code: "malformed_http",
		Message: "the request has both Content-Length and Transfer-Encoding, so where it ends is not clear; " +
			"send one of them",
	}
	errStreams = &apierror.Error{
		Status: 429, Code: "too_many_streams", RetryAfterSeconds: 1,
		Message: "too many streams are open in this router; limits.max_streams bounds them",
	}
	errEncoding = &apierror.Error{
		Status: 400, Code: "unsupported_encoding", Param: "Content-Encoding",
		Message: "compressed request bodies are not read; send the body without Content-Encoding",
	}
	errNoTLS = &apierror.Error{
		Status: 400, Code: "https_required",
		Message: "this port speaks HTTPS; ask it for https://",
	}
	errBug = &apierror.Error{
		Status: 500, Code: "router_bug",
		Message: "the router failed to handle this request; its log says more",
	}
)

// fail answers with one of the router's own errors, in the envelope of api.
func (g *Gateway) fail(ctx *fasthttp.RequestCtx, api scan.API, err *apierror.Error) {
	e := *err
	id := ctx.Response.Header.Peek("x-request-id")
	if api == scan.Messages || api == scan.CountTokens {
		e.RequestID = string(id)
		ctx.Response.Header.SetBytesV("Request-Id", id) // Anthropic's SDKs read this name
	}
	ctx.Response.ResetBody()
	ctx.SetStatusCode(e.Status)
	ctx.SetContentType("application/json")
	if e.Status == fasthttp.StatusUnauthorized {
		ctx.Response.Header.Set("WWW-Authenticate", auth.Challenge)
	}
	if e.RetryAfterSeconds > 0 {
		ctx.Response.Header.Set("Retry-After", strconv.Itoa(e.RetryAfterSeconds))
	}
	if e.RetryAfterMillis > 0 {
		ctx.Response.Header.Set("Retry-After-Ms", strconv.Itoa(e.RetryAfterMillis))
	}
	if e.NoRetry {
		ctx.Response.Header.Set("X-Should-Retry", "false")
	}
	var room [512]byte
	ctx.Response.AppendBody(apierror.Body(room[:0], api, &e))
	ctx.SetUserValue(causeKey, e.Code)
	g.metrics.Rejected.WithLabelValues(e.Code).Inc()
}

// refuse is fail for a request of who; nil: somebody unknown. The audit log has the refusals of
// identities and rights.
func (g *Gateway) refuse(ctx *fasthttp.RequestCtx, api scan.API, err *apierror.Error, who *trust.Principal) {
	if g.audit != nil && (refusesIdentity(err) || err.Code == auth.CodeIdentity) {
		of, _, _ := find(ctx.Method(), ctx.Path())
		r := audit.Refusal{
			Reason: cmp.Or(err.Reason, err.Code), Detail: err.Message, Key: err.Key,
			Client: ctx.RemoteAddr().String(), Port: "serving", Asked: of.name(api),
		}
		if who != nil {
			r.Key, r.Tenant = who.ID, who.Tenant
		}
		g.audit.Refuse(r)
	}
	g.fail(ctx, api, err)
}

// causeKey is the key under which fail stores the error code for note.
const causeKey = "cgn-cause"

// unreadable answers a request that could not be read. The answer has the envelope of the API in
// the request's first line, if that line came. fasthttp closes the connection afterwards.
func (g *Gateway) unreadable(ctx *fasthttp.RequestCtx, err error) {
	a := arrivingAt(ctx)
	if s, ok := ctx.Conn().(*secure); ok && !s.ConnectionState().HandshakeComplete {
		if g.audit.Stranger("serving", s.RemoteAddr(), err) {
			g.metrics.Rejected.WithLabelValues(audit.ReasonCertificate).Inc()
		} else {
			g.unencrypted(s, err)
		}
		return
	}
	if a.late && a.n == 0 && a.fault == nil {
		_ = ctx.Conn().Close() // nothing was asked, so there is no answer
		return
	}
	method, api, name := a.asked()
	var e *apierror.Error
	var small *fasthttp.ErrSmallBuffer
	switch {
	case a.fault != nil:
		e = a.fault
	case errors.Is(err, fasthttp.ErrBodyTooLarge) && g.bodies.Counts(ctx.Request.Header.ContentLength()):
		e = errBodies
	case errors.Is(err, fasthttp.ErrBodyTooLarge):
		e = limited(errTooLarge, g.limits.MaxBody)
	case errors.As(err, &small):
		e = limited(errHeaderLarge, g.limits.MaxHeader)
	case a.late:
		e = errSlowRequest
		g.metrics.ClientCut.WithLabelValues("slow_request").Inc()
	case errors.Is(err, io.ErrUnexpectedEOF):
		e = errShortBody
	default:
		e = malformedBy(err)
	}
	g.nameRequest(ctx)
	g.bodies.Give(&a.Body)
	g.refuse(ctx, api, e, nil)
	g.note(ctx, method, name, a.began, a.who)
	if e != errSlowRequest {
		relay.Linger(ctx.Conn())
	}
}

// malformedBy returns errMalformed with the cause, if the error of fasthttp tells it. fasthttp
// exports no value for some of its errors, so these are known by their texts.
func malformedBy(err error) *apierror.Error {
	why, text := "", err.Error()
	_, chunk := errors.AsType[fasthttp.ErrBrokenChunk](err)
	switch {
	case chunk || strings.Contains(text, "hex number"):
		why = "a chunk of the body is not a hexadecimal length, that many bytes and CRLF (Transfer-Encoding: chunked)"
	case errors.Is(err, fasthttp.ErrDuplicateContentLength):
		why = "Content-Length is given twice"
	case strings.Contains(text, "cannot parse content-length"):
		why = "Content-Length is not a decimal number"
	case errors.Is(err, fasthttp.ErrUnsupportedTransferEncoding):
		why = "Transfer-Encoding is not chunked, which is the only one read here, and only in HTTP/1.1"
	case strings.Contains(text, "missing required host"):
		why = "Host is missing"
	case strings.Contains(text, "too many host headers"):
		why = "Host is given twice"
	default:
		return errMalformed
	}
	e := *errMalformed
	e.Message += ": " + why
	return &e
}

// limited returns a copy of e with the exceeded limit.
func limited(e *apierror.Error, bytes int) *apierror.Error {
	sized := *e
	sized.Message += ": " + strconv.Itoa(bytes) + " bytes"
	return &sized
}

// unencrypted answers a client that speaks plain HTTP to the TLS port. unencrypted ignores any
// other connection that ends before the handshake.
func (g *Gateway) unencrypted(s *secure, err error) {
	body := apierror.Body(nil, scan.Other, errNoTLS)
	if !relay.RefusePlain(s, err, errNoTLS.Status, body) {
		return
	}
	g.metrics.Rejected.WithLabelValues(errNoTLS.Code).Inc()
	g.noted(accesslog.Entry{
		Time: time.Now(), API: scan.Other.String(), End: endRefused, Cause: errNoTLS.Code,
		Status: errNoTLS.Status, Bytes: int64(len(body)),
		TTFT: -1, PromptTokens: -1, CompletionTokens: -1, CachedTokens: -1,
	})
}

const longestEcho = 256 // bytes of a path or name in an error

// noPath answers a request for an unknown path. noPath suggests the endpoint that the client may
// mean.
func (g *Gateway) noPath(ctx *fasthttp.RequestCtx, api scan.API) {
	e := *errNoPath
	r, _, _ := find(ctx.Method(), ctx.Path())
	switch meant := meantBy(ctx.Path()); {
	case meant != "":
		e.Message += "; it is " + meant
	case onAdminPort(ctx.Path()):
		e.Message += "; it is at the router's admin port, " + g.admin + " (router.admin)"
	case r == routePass:
		e = *errNotPassed
	default:
		e.Message += "; there are " + strings.Join(endpoints, ", ")
	}
	g.fail(ctx, api, &e)
}

// wrongMethod answers a request for a known path with a wrong method.
func (g *Gateway) wrongMethod(ctx *fasthttp.RequestCtx, r route, api scan.API) {
	ctx.Response.Header.Set("Allow", r.methods())
	path := ctx.Path()
	g.fail(ctx, api, &apierror.Error{
		Status: 405, Code: "method_not_allowed",
		Message: string(ctx.Method()) + " is not allowed for " + string(path[:min(len(path), longestEcho)]) +
			"; use " + r.methods(),
	})
}

// malformed answers a readable request that must not be trusted, and closes its connection.
func (g *Gateway) malformed(ctx *fasthttp.RequestCtx, api scan.API, e *apierror.Error) {
	ctx.SetConnectionClose()
	g.refuse(ctx, api, e, nil)
	relay.Linger(ctx.Conn())
}
