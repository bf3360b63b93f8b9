package accesslog

import (
	"strconv"
	"time"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// Entry describes a finished request. Log copies its texts and cuts them at the bounds given below.
// An empty text is left out of the line. The entry contains no prompt text and no secrets.
type Entry struct {
	Time      time.Time // when the request was accepted
	RequestID []byte    // 128 bytes
	Model     string    // 128 bytes; canonical name; "" if no node serves the model
	Asked     []byte    // 128 bytes; the client's name for the model, written if Model is ""
	Node      string    // 64 bytes; the node that answered or was asked last; "" if none was asked
	Prefill   string    // 64 bytes; the node that computed the prompt for Node; "" if Node did
	Key       string    // 64 bytes; id of the client's API key; "": none
	Tenant    string    // 128 bytes; written if Key is not ""
	User      string    // 128 bytes; whom a gateway names; "": nobody
	Method    string    // 8 bytes
	API       string    // 48 bytes; the endpoint, e.g. chat; other for unknown paths
	End       string    // 24 bytes; how the request ended: complete, client_gone, refused, shutdown, …
	// 24 bytes; how the last failed attempt failed, such as reset or protocol; "" if none failed;
	// node_set_aside if the client left first; otherwise the code of the router's own error
	Cause string

	Status   int
	TTFT     time.Duration // until the first body byte from the node; negative: there was none
	Expected time.Duration // TTFT as expected when the node was sent the request; 0: nothing was expected
	Queued   time.Duration // in the router's queue; 0: the request did not wait
	Duration time.Duration // from Time to the end
	// PrefillTime is the time that Prefill took, without meaning if Prefill is "".
	PrefillTime time.Duration

	PromptTokens, CompletionTokens, CachedTokens int64 // negative: not reported
	// prompt blocks believed to be cached on the node, of all blocks of the prompt
	OverlapMatched, OverlapTotal int
	Attempts                     int // number of nodes asked

	Cascade       string        // 128 bytes; name of the model with the cascade; "": the request is not cascaded
	CascadeStep   int           // from 1
	CascadeBefore time.Duration // time of the earlier steps

	Bytes  int64 // body bytes written to the client's connection, without head, chunks' size lines and TLS
	Stream bool
	// Resumed is a constant word for how another node went on with a broken stream; "" if none did
	Resumed string
}

// text is a short string in an array of its own.
type text[A interface {
	[8]byte | [24]byte | [48]byte | [64]byte | [128]byte
}] struct {
	b A
	n uint8
}

// record is an Entry with its own copies of the texts.
type record struct {
	entry     Entry // its texts are not set
	requestID text[[128]byte]
	model     text[[128]byte]
	cascade   text[[128]byte]
	node      text[[64]byte]
	prefill   text[[64]byte]
	key       text[[64]byte]
	tenant    text[[128]byte]
	user      text[[128]byte]
	api       text[[48]byte]
	end       text[[24]byte]
	cause     text[[24]byte]
	method    text[[8]byte]
}

func (r *record) set(e *Entry) {
	r.entry = *e
	r.entry.RequestID, r.entry.Asked, r.entry.Model, r.entry.Node = nil, nil, "", ""
	r.entry.Method, r.entry.API, r.entry.End, r.entry.Cause, r.entry.Prefill, r.entry.Cascade = "", "", "", "", "", ""
	r.entry.Key, r.entry.Tenant, r.entry.User = "", "", ""
	r.user.n = uint8(copy(r.user.b[:], e.User))
	r.key.n, r.tenant.n = uint8(copy(r.key.b[:], e.Key)), uint8(copy(r.tenant.b[:], e.Tenant))
	r.cascade.n = uint8(copy(r.cascade.b[:], e.Cascade))
	r.requestID.n = uint8(copy(r.requestID.b[:], e.RequestID))
	if r.model.n = uint8(copy(r.model.b[:], e.Model)); e.Model == "" {
		r.model.n = uint8(copy(r.model.b[:], e.Asked))
	}
	r.node.n = uint8(copy(r.node.b[:], e.Node))
	r.prefill.n = uint8(copy(r.prefill.b[:], e.Prefill))
	r.api.n = uint8(copy(r.api.b[:], e.API))
	r.end.n = uint8(copy(r.end.b[:], e.End))
	r.cause.n = uint8(copy(r.cause.b[:], e.Cause))
	r.method.n = uint8(copy(r.method.b[:], e.Method))
}

func (r *record) appendJSON(b []byte) []byte {
	e := &r.entry
	b = append(b, `{"time":"`...)
	b = e.Time.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z07:00")
	b = append(b, '"')
	b = appendText(b, "id", r.requestID.b[:r.requestID.n])
	b = appendText(b, "method", r.method.b[:r.method.n])
	b = appendText(b, "api", r.api.b[:r.api.n])
	b = appendText(b, "model", r.model.b[:r.model.n])
	b = appendText(b, "node", r.node.b[:r.node.n])
	if r.key.n > 0 {
		b = appendText(b, "key", r.key.b[:r.key.n])
		b = appendText(b, "tenant", r.tenant.b[:r.tenant.n])
	}
	b = appendText(b, "user", r.user.b[:r.user.n])
	b = appendText(b, "prefill_node", r.prefill.b[:r.prefill.n])
	b = appendInt(b, "status", int64(e.Status))
	b = appendText(b, "end", r.end.b[:r.end.n])
	b = appendText(b, "cause", r.cause.b[:r.cause.n])
	b = strconv.AppendBool(appendKey(b, "stream"), e.Stream)
	b = appendSeconds(b, "ttft_seconds", e.TTFT)
	if e.Expected > 0 {
		b = appendSeconds(b, "expected_ttft_seconds", e.Expected)
	}
	if r.prefill.n > 0 {
		b = appendSeconds(b, "prefill_seconds", e.PrefillTime)
	}
	if e.Queued > 0 {
		b = appendSeconds(b, "queued_seconds", e.Queued)
	}
	b = appendSeconds(b, "duration_seconds", e.Duration)
	b = appendInt(b, "prompt_tokens", e.PromptTokens)
	b = appendInt(b, "completion_tokens", e.CompletionTokens)
	b = appendInt(b, "cached_tokens", e.CachedTokens)
	b = appendInt(b, "overlap_matched", int64(e.OverlapMatched))
	b = appendInt(b, "overlap_total", int64(e.OverlapTotal))
	b = appendInt(b, "attempts", int64(e.Attempts))
	b = appendText(b, "resumed", []byte(e.Resumed))
	if r.cascade.n > 0 {
		b = appendText(b, "cascade", r.cascade.b[:r.cascade.n])
		b = appendInt(b, "cascade_step", int64(e.CascadeStep))
		b = appendSeconds(b, "cascade_earlier_seconds", e.CascadeBefore)
	}
	b = appendInt(b, "bytes", e.Bytes)
	return append(b, '}', '\n')
}

func appendInt(b []byte, key string, v int64) []byte {
	if v < 0 {
		return b
	}
	return strconv.AppendInt(appendKey(b, key), v, 10)
}

// appendSeconds appends a duration in seconds with six decimals, never in exponent form.
func appendSeconds(b []byte, key string, d time.Duration) []byte {
	if d < 0 {
		return b
	}
	return strconv.AppendFloat(appendKey(b, key), d.Round(time.Microsecond).Seconds(), 'f', -1, 64)
}

func appendText(b []byte, key string, v []byte) []byte {
	if len(v) == 0 {
		return b
	}
	return jsonscan.AppendQuoted(appendKey(b, key), v)
}

func appendKey(b []byte, key string) []byte {
	b = append(b, ',', '"')
	b = append(b, key...)
	return append(b, '"', ':')
}
