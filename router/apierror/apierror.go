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
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/router/scan"
)

// Error is one error in OpenAI's terms. The type of another envelope is derived from Status. Empty
// members are null in the OpenAI envelope.
type Error struct {
	Status  int    // HTTP status
	Type    string // empty: TypeOf(Status)
	Code    string // machine-readable cause, such as model_not_found; in metrics and access log too
	Param   string // the faulty member of the request
	Message string // for a person, names the fix; may hold any bytes

	RetryAfterSeconds int    // for the header of 429 and 503; not part of the envelope
	RequestID         string // Anthropic envelope only
	Sequence          int64  // sequence_number of a Responses stream event
}

// Error returns the message with its status and code.
func (e *Error) Error() string {
	return strconv.Itoa(e.Status) + " " + e.openAIType() + ": " + e.Message
}

// FromScan is the error for a body that could not be read. A nil or foreign
// error becomes a plain 400.
func FromScan(err error) *Error {
	e := &Error{Status: 400, Code: "invalid_request", Message: "the request body could not be read"}
	if s, ok := err.(*scan.Error); ok {
		e.Code, e.Param, e.Message = s.Code, s.Param, s.Message
	}
	return e
}

// ModelNotFound is the error for a model that no node serves.
func ModelNotFound(model []byte) *Error {
	return &Error{
		Status: 404, Code: "model_not_found", Param: "model",
		Message: "the model `" + string(model) + "` does not exist here; GET /v1/models lists those that do",
	}
}

// TypeOf is the OpenAI error type of an HTTP status.
func TypeOf(status int) string {
	switch status {
	case 401:
		return "authentication_error"
	case 403:
		return "permission_error"
	case 404:
		return "not_found_error"
	case 408, 504:
		return "timeout_error"
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 502:
		return "upstream_error"
	case 503:
		return "service_unavailable"
	}
	if status >= 400 && status < 500 {
		return "invalid_request_error"
	}
	return "server_error"
}

// anthropicType is the Anthropic error type of an HTTP status.
func anthropicType(status int) string {
	switch status {
	case 401:
		return "authentication_error"
	case 403:
		return "permission_error"
	case 404:
		return "not_found_error"
	case 408, 504:
		return "timeout_error"
	case 413:
		return "request_too_large"
	case 429:
		return "rate_limit_error"
	case 503, 529:
		return "overloaded_error"
	}
	if status >= 400 && status < 500 {
		return "invalid_request_error"
	}
	return "api_error"
}

func (e *Error) openAIType() string {
	if e.Type != "" {
		return e.Type
	}
	return TypeOf(e.Status)
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
	dst = appendNullable(dst, `,"code":`, e.Code)
	return append(dst, '}')
}

// appendResponses appends an error event as the Responses API defines it, plus the error object.
// SDKs decode the event and raise on the object.
func appendResponses(dst []byte, e *Error) []byte {
	dst = append(dst, `{"type":"error"`...)
	code := e.Code
	if code == "" {
		code = e.openAIType()
	}
	dst = appendNullable(dst, `,"code":`, code)
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
	dst = append(dst, `{"type":"error","error":{"type":`...)
	dst = jsonscan.AppendQuoted(dst, anthropicType(e.Status))
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
