package relay

import (
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// AppendForwardHeaders appends to dst the fields of a client's request that are forwarded to the
// upstream, as lines for Request.Header. AppendForwardHeaders leaves out hop-by-hop, identity and
// credential headers, and the headers that every hop makes anew. All other fields are forwarded:
// traceparent, x-request-id, content-type, accept, user-agent, anthropic-version,
// openai-organization ... AppendForwardHeaders also leaves out invalid header lines, so that no
// value can start another line.
func AppendForwardHeaders(dst []byte, h *fasthttp.RequestHeader) []byte {
	named := false // true if a Connection header names the field
	for k, v := range h.All() {
		named = named || equalFold(k, "connection") && !equalFold(v, "keep-alive") && !equalFold(v, "close")
	}
	for k, v := range h.All() {
		if droppedOfRequests.has(k) || named && namedByConnection(h, k) {
			continue
		}
		if isToken(k) && isFieldValue(v) {
			dst = append(append(append(append(dst, k...), ": "...), v...), "\r\n"...)
		}
	}
	return dst
}

// AppendRank appends to dst the line in which a router names the engine's data-parallel rank, if
// the request has one. A proxy between a router and an engine calls AppendRank.
func AppendRank(dst []byte, h *fasthttp.RequestHeader) []byte {
	if v := h.Peek(RankHeader); len(v) > 0 && isFieldValue(v) {
		dst = append(append(append(append(dst, RankHeader...), ": "...), v...), "\r\n"...)
	}
	return dst
}

// DeadlineHeader says how many milliseconds a router gives an agent for a request.
const DeadlineHeader = "X-Cgn-Deadline-Ms"

// deadlineSlack is what an agent gets beyond the router's own deadline. The router thus ends the
// exchange itself, and does not take an agent that ends it for a node that has failed.
const deadlineSlack = 100 * time.Millisecond

// AppendDeadline appends to dst the line by which a router tells an agent, at now, that the answer
// must end at end.
func AppendDeadline(dst []byte, end, now time.Time) []byte {
	dst = append(append(dst, DeadlineHeader...), ": "...)
	return append(strconv.AppendInt(dst, max((end.Sub(now)+deadlineSlack).Milliseconds(), 0), 10), "\r\n"...)
}

// Deadline returns the earlier of end and the deadline in a request that came at began.
func Deadline(h *fasthttp.RequestHeader, began, end time.Time) time.Time {
	ms, err := strconv.ParseInt(string(h.Peek(DeadlineHeader)), 10, 32)
	if err != nil || ms < 0 {
		return end
	}
	if at := began.Add(time.Duration(ms) * time.Millisecond); at.Before(end) {
		return at
	}
	return end
}

func namedByConnection(h *fasthttp.RequestHeader, name []byte) bool {
	lower := strings.ToLower(string(name))
	for k, v := range h.All() {
		if equalFold(k, "connection") && hasToken(v, lower) {
			return true
		}
	}
	return false
}

// CopyHeaders copies the fields of an upstream response that are forwarded to the client.
// CopyHeaders leaves out hop-by-hop headers, Content-Length (Reply sets it), Date, Server, and
// x-cgn-*, which are for one hop only.
func CopyHeaders(dst *fasthttp.ResponseHeader, e *Exchange) {
	buf := e.c.buf
	for _, f := range e.head.fields {
		name, value := buf[f.name:f.nameEnd], buf[f.value:f.valueEnd]
		if droppedOfResponses.has(name) || e.named(name) {
			continue
		}
		dst.AddBytesKV(name, value)
	}
}

// named reports whether one of the response's Connection headers lists name.
func (e *Exchange) named(name []byte) bool {
	buf := e.c.buf
	for _, f := range e.head.fields {
		if v := buf[f.value:f.valueEnd]; equalFold(buf[f.name:f.nameEnd], "connection") &&
			!equalFold(v, "keep-alive") && !equalFold(v, "close") && hasToken(v, strings.ToLower(string(name))) {
			return true
		}
	}
	return false
}
