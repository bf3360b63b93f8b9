// Package apierror writes the router's own errors in the envelope of the client's API. An error
// becomes a response body, or an event in a stream that has already begun.
//
//	OpenAI     {"error":{"message","type","param","code"}}
//	           in a stream: data: {"error":{…}}, and no [DONE] after it
//	Responses  as OpenAI; in a stream: event: error with the members of its error
//	           event and the same error object, which is what makes SDKs raise
//	Anthropic  {"type":"error","error":{"type","message"},"request_id"}
//	           in a stream: event: error with the same object
package apierror

import (
	"cmp"
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/router/scan"
)

// Error is one error in OpenAI's terms. The type of another envelope is derived from Status. Empty
// members are null in the OpenAI envelope.
type Error struct {
	Status  int    // HTTP status
	Type    string // empty: derived from Status
	Code    string // machine-readable cause, such as model_not_found; in metrics and access log too
	Param   string // the faulty member of the request
	Message string // for a person, names the fix; may hold any bytes

	// NumericCode makes Status the code of the OpenAI envelope, as a number, in place of Code.
	NumericCode bool

	// Reason says why an identity is refused, as a constant word, and Key is the id of the API key
	// that was shown. Both are for the audit log, and are not sent.
	Reason, Key string

	// These are for headers, and no part of the envelope.
	RetryAfterSeconds int  // of 429 and 503; 0: not said
	RetryAfterMillis  int  // of 429, which some SDKs prefer; 0: not said
	NoRetry           bool // tells SDKs that a retry is of no use

	RequestID string // Anthropic envelope only
	Sequence  int64  // sequence_number of a Responses stream event
}

// Error returns the message with its status and code.
func (e *Error) Error() string {
	return strconv.Itoa(e.Status) + " " + e.openAIType() + ": " + e.Message
}

// FromScan is the error for a body that could not be read. A nil error, or an error of another
// package, becomes a plain 400.
func FromScan(err error) *Error {
	e := &Error{Status: 400, Code: "invalid_request", Message: "the request body could not be read"}
	if s, ok := err.(*scan.Error); ok {
		e.Code, e.Param, e.Message = s.Code, s.Param, s.Message
	}
	return e
}

// CodeModelNotFound is the code of ModelNotFound.
const CodeModelNotFound = "model_not_found"

// ModelNotFound is the error for a model that no node serves.
func ModelNotFound(model []byte) *Error {
	return &Error{
		Status: 404, Code: CodeModelNotFound, Param: "model",
		Message: "the model `" + string(model) + "` does not exist here; GET /v1/models lists those that do",
	}
}

// types are the error types of HTTP statuses, in OpenAI's envelope and in Anthropic's.
var types = map[int]struct{ openAI, anthropic string }{
	401: {"authentication_error", "authentication_error"},
	403: {"permission_error", "permission_error"},
	404: {"not_found_error", "not_found_error"},
	408: {"timeout_error", "timeout_error"},
	413: {"request_too_large", "request_too_large"},
	429: {"rate_limit_error", "rate_limit_error"},
	502: {"upstream_error", "api_error"},
	503: {"service_unavailable", "overloaded_error"},
	504: {"timeout_error", "timeout_error"},
	529: {"server_error", "overloaded_error"},
}

// typesOf returns the error types of an HTTP status.
func typesOf(status int) (openAI, anthropic string) {
	if t, known := types[status]; known {
		return t.openAI, t.anthropic
	}
	if status >= 400 && status < 500 {
		return "invalid_request_error", "invalid_request_error"
	}
	return "server_error", "api_error"
}

func (e *Error) openAIType() string {
	kind, _ := typesOf(e.Status)
	return cmp.Or(e.Type, kind)
}

func isAnthropic(api scan.API) bool { return api == scan.Messages || api == scan.CountTokens }

// Body appends the JSON document that answers a request of the given API.
func Body(dst []byte, api scan.API, e *Error) []byte {
	if isAnthropic(api) {
		return appendAnthropic(dst, e)
	}
	dst = append(dst, `{"error":`...)
	dst = appendOpenAI(dst, e)
	return append(dst, '}')
}

// StreamEvent appends the last server-sent event of a stream of the given API, with its blank line.
// Nothing may follow that event: no [DONE], no message_stop.
func StreamEvent(dst []byte, api scan.API, e *Error) []byte {
	switch {
	case isAnthropic(api):
		dst = append(dst, "event: error\ndata: "...)
		dst = appendAnthropic(dst, e)
	case api == scan.Responses:
		dst = append(dst, "event: error\ndata: "...)
		dst = appendResponses(dst, e)
	default:
		dst = append(dst, "data: "...)
		dst = Body(dst, api, e)
	}
	return append(dst, "\n\n"...)
}

// appendOpenAI appends the error object of OpenAI's envelope.
func appendOpenAI(dst []byte, e *Error) []byte {
	dst = append(dst, `{"message":`...)
	dst = jsonscan.AppendQuoted(dst, e.Message)
	dst = append(dst, `,"type":`...)
	dst = jsonscan.AppendQuoted(dst, e.openAIType())
	dst = appendNullable(dst, `,"param":`, e.Param)
	if e.NumericCode {
		dst = append(dst, `,"code":`...)
		dst = strconv.AppendInt(dst, int64(e.Status), 10)
	} else {
		dst = appendNullable(dst, `,"code":`, e.Code)
	}
	return append(dst, '}')
}

// appendResponses appends an error event as the Responses API defines it, plus the error object.
// SDKs decode the event and raise on the object.
func appendResponses(dst []byte, e *Error) []byte {
	dst = append(dst, `{"type":"error"`...)
	dst = appendNullable(dst, `,"code":`, cmp.Or(e.Code, e.openAIType()))
	dst = append(dst, `,"message":`...)
	dst = jsonscan.AppendQuoted(dst, e.Message)
	dst = appendNullable(dst, `,"param":`, e.Param)
	dst = append(dst, `,"sequence_number":`...)
	dst = strconv.AppendInt(dst, e.Sequence, 10)
	dst = append(dst, `,"error":`...)
	dst = appendOpenAI(dst, e)
	return append(dst, '}')
}

func appendAnthropic(dst []byte, e *Error) []byte {
	_, kind := typesOf(e.Status)
	dst = append(dst, `{"type":"error","error":{"type":`...)
	dst = jsonscan.AppendQuoted(dst, kind)
	dst = append(dst, `,"message":`...)
	dst = jsonscan.AppendQuoted(dst, e.Message)
	dst = append(dst, '}')
	if e.RequestID != "" {
		dst = append(dst, `,"request_id":`...)
		dst = jsonscan.AppendQuoted(dst, e.RequestID)
	}
	return append(dst, '}')
}

func appendNullable(dst []byte, member, value string) []byte {
	dst = append(dst, member...)
	if value == "" {
		return append(dst, "null"...)
	}
	return jsonscan.AppendQuoted(dst, value)
}
