package instant

import (
	"fmt"
	"strconv"
	"time"
)

const chatPath = "/v1/chat/completions"

// Model is the only model that the engine serves.
const Model = "instant"

const created = "1795244673"

// pages are the answers to GET requests, by path.
var pages = func() map[string][]byte {
	info := `{"model_path":"` + Model + `","served_model_name":"` + Model + `","tokenizer_path":"` + Model +
		`","is_generation":true,"version":"0.32.0","max_model_len":1048576,"tp_size":1,"dp_size":1}`
	gauges := ""
	for _, name := range []string{"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"} {
		gauges += "# TYPE vllm:" + name + " gauge\nvllm:" + name + `{engine="0",model_name="` + Model + "\"} 0.0\n"
	}
	pages := map[string][]byte{}
	for path, body := range map[string]string{
		"/v1/models": `{"object":"list","data":[{"id":"` + Model + `","object":"model","created":` + created +
			`,"owned_by":"vllm","root":"` + Model + `","parent":null,"max_model_len":1048576}]}`,
		"/server_info": info, "/get_server_info": info, "/model_info": info, "/get_model_info": info,
		"/version": `{"version":"0.32.0"}`,
		"/load":    `{"server_load":0}`,
	} {
		pages[path] = whole("200 OK", "application/json", body)
	}
	pages["/metrics"] = whole("200 OK", "text/plain; version=0.0.4; charset=utf-8", gauges)
	for _, path := range []string{"/health", "/ping", "/health_generate"} {
		pages[path] = whole("200 OK", "text/plain", "")
	}
	return pages
}()

var notFound = whole("404 Not Found", "application/json", `{"detail":"Not Found"}`)

// whole returns a response with its length.
func whole(status, contentType, body string) []byte {
	return fmt.Appendf(nil, "HTTP/1.1 %s\r\nserver: uvicorn\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s",
		status, contentType, len(body), body)
}

const streamHead = "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; " +
	"charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"

// appendAnswer appends a complete chat completion of about 500 bytes.
func appendAnswer(b []byte, serial uint32, q *request) []byte {
	var body [640]byte
	d := append(body[:0], `{"id":"chatcmpl-`...)
	d = appendSerial(d, serial)
	d = append(d, `","object":"chat.completion","created":`+created+`,"model":"`+Model+
		`","choices":[{"index":0,"message":{"role":"assistant","content":"fi worker Made Asked77From the instant engine, which says the same each time.",`+
		`"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":null,"finish_reason":"length","stop_reason":null}],`+
		`"service_tier":null,"system_fingerprint":"vllm-0.32.0-instant",`...)
	d = append(appendUsage(d, q), '}')
	b = append(b, "HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: "...)
	b = strconv.AppendInt(b, int64(len(d)), 10)
	return append(append(b, "\r\n\r\n"...), d...)
}

func appendUsage(b []byte, q *request) []byte {
	b = append(b, `"usage":{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(q.prompt), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(q.prompt+q.tokens), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(q.tokens), 10)
	b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(q.cached), 10)
	return append(b, "}}"...)
}

func appendSerial(b []byte, serial uint32) []byte {
	var hex [8]byte
	putHex(hex[:], uint64(serial))
	return append(b, hex[:]...)
}

func appendChunkOpen(b []byte, serial uint32) []byte {
	b = append(b, `data: {"id":"chatcmpl-`...)
	b = appendSerial(b, serial)
	return append(b, `","object":"chat.completion.chunk","created":`+created+`,"model":"`+Model+`","choices":[`...)
}

// appendFramed appends one chunk with payload.
func appendFramed(b, payload []byte) []byte {
	b = strconv.AppendUint(b, uint64(len(payload)), 16)
	b = append(b, "\r\n"...)
	return append(append(b, payload...), "\r\n"...)
}

// opening returns the head and the event with the role.
func opening(serial uint32, q *request) []byte {
	e := appendChunkOpen(nil, serial)
	e = append(e, `{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
	if q.ids {
		e = append(e, `,"prompt_token_ids":[`...)
		for range q.bytes / idBytes {
			e = append(e, `20201,`...)
		}
		e = append(e, `20201],"prompt_text":null`...)
	}
	e = append(e, "}\n\n"...)
	return appendFramed([]byte(streamHead), e)
}

// idBytes is the length of a prompt's text for which the engine sends one token id.
const idBytes = 4

// token returns the framed event of a token, and the offset of its stamp.
func token(serial uint32, ids bool) (event []byte, stampAt int) {
	e := append(appendChunkOpen(nil, serial), `{"index":0,"delta":{"content":"`...)
	at := len(e)
	e = append(e, make([]byte, StampLen)...)
	e = append(e, `"},"logprobs":null,"finish_reason":null`...)
	if ids {
		e = append(e, `,"token_ids":[20201]`...)
	}
	e = append(e, "}]}\n\n"...)
	event = appendFramed(nil, e)
	return event, at + len(event) - len(e) - len("\r\n")
}

// closing returns the last chunk of the choice, the usage if requested, and [DONE].
func closing(serial uint32, q *request) []byte {
	e := append(appendChunkOpen(nil, serial),
		`{"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"length","stop_reason":null}]}`+"\n\n"...)
	b := appendFramed(nil, e)
	if q.usage {
		e = append(appendChunkOpen(e[:0], serial), `],`...)
		e = append(appendUsage(e, q), "}\n\n"...)
		b = appendFramed(b, e)
	}
	b = appendFramed(b, []byte("data: [DONE]\n\n"))
	return append(b, "0\r\n\r\n"...)
}

func (s *streamedAnswer) stamp(now time.Time) {
	Stamp{Seq: uint32(s.sent), Stream: s.serial, Sent: now}.Put(s.event[s.stampAt:])
}
