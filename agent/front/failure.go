package front

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/relay"
)

// failure is an answer of the agent itself.
type failure struct {
	status     int
	code       string // machine-readable reason, also a label of metrics
	message    string
	retryAfter string // seconds, or ""
}

var (
	errNoPath = failure{404, "unknown_path", "the agent serves /health, /metrics and the inference paths under " +
		"/v1/ only", ""}
	errPostOnly = failure{405, "method_not_allowed", "adapters are changed with POST", ""}
	errStranger = failure{403, "not_authenticated", "adapters are changed by processes of this host, or with a " +
		"certificate of role router or ctl: set tls.ca, tls.cert and tls.key of the agent", ""}
	errAdapter = failure{400, "bad_request", "the body must be JSON with lora_name and, to load, lora_path", ""}
	errTooMany = failure{503, "agent_full", "the agent has as many requests in flight as it allows " +
		"(limits.max_requests)", "1"}
	errBody   = failure{413, "body_too_large", "the request body is larger than limits.max_body", ""}
	errBodies = failure{503, "bodies_full", "the agent holds as many bytes of request bodies as it allows " +
		"(limits.max_body_total)", "1"}
	errHeader  = failure{431, "header_too_large", "the request head is larger than limits.max_header", ""}
	errMangled = failure{400, "bad_request", "not an HTTP/1.1 request", ""}
	errFraming = failure{400, "bad_request", "the request has both Content-Length and Transfer-Encoding, so where " +
		"it ends is not clear; send one of them", ""}
	errBug   = failure{500, "agent_bug", "the agent failed to handle this request; its log says more", ""}
	errNoTLS = failure{400, "https_required", "this port speaks HTTPS; ask it for https://", ""}
	errSlow  = failure{408, "slow_request", "the request was not sent within limits.read_timeout, or too slowly " +
		"for that while others waited for its room", ""}
	errNoEngine = failure{502, "engine_unreachable", "the engine accepts no connection", ""}
	errReset    = failure{500, "engine_reset", "the engine closed the connection without an answer", ""}
	errTimeout  = failure{504, "engine_timeout", "the engine did not answer in time", ""}
	errShortage = failure{503, "engine_connections", "no further connection to the engine can be opened now", "1"}
	errTooOld   = failure{400, "http_version", "the answer has no length and is too long to be kept for an HTTP/1.0 " +
		"client; use HTTP/1.1", ""}
	errProtocol = failure{502, "engine_protocol", "the engine's answer is not valid HTTP/1.1", ""}
)

// failureOf returns the answer for a failed exchange of which nothing has reached the client. A
// reset connection becomes a 500: the request may have killed this engine, so a router tries at
// most one other node.
func failureOf(err error) failure {
	var e *relay.Error
	switch {
	case errors.Is(err, relay.ErrClientTooOld):
		return errTooOld
	case errors.Is(err, errPanic):
		return errBug
	}
	if !errors.As(err, &e) {
		return errProtocol
	}
	switch {
	case e.Kind == relay.KindLocal:
		return errShortage
	case e.Phase == relay.PhaseDial:
		return errNoEngine
	case e.Kind == relay.KindReset:
		return errReset
	case e.Kind == relay.KindTimeout:
		return errTimeout
	}
	return errProtocol
}

// write makes f the answer of ctx.
func (f failure) write(ctx *fasthttp.RequestCtx) {
	ctx.Response.Reset()
	ctx.SetStatusCode(f.status)
	ctx.SetContentType("application/json")
	if f.retryAfter != "" {
		ctx.Response.Header.Set("Retry-After", f.retryAfter)
	}
	ctx.SetBody(f.envelope(bytes.HasPrefix(ctx.Path(), []byte("/v1/messages"))))
}

// envelope returns the body in OpenAI's or Anthropic's form.
func (f failure) envelope(anthropic bool) []byte {
	kind := "invalid_request_error"
	if f.status >= http.StatusInternalServerError {
		kind = "api_error"
	}
	answer := map[string]any{"error": map[string]any{"message": f.message, "type": kind, "param": nil, "code": f.code}}
	if anthropic {
		answer = map[string]any{"type": "error", "error": map[string]any{"type": kind, "message": f.message}}
	}
	body, _ := json.Marshal(answer) // strings always encode
	return body
}
