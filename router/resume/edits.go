package resume

import (
	"bytes"

	"github.com/cognitora/dataplane/internal/sse"
)

// edits are replacements in the data of one event, at most maxEdits, sorted by place.
type edits struct {
	n   int
	all [maxEdits]replacement
}

const maxEdits = 12

// replacement puts with in the place of data[at.from:at.to].
type replacement struct {
	at   span
	with []byte
}

// put adds a replacement, which must not overlap another one.
func (e *edits) put(at span, with []byte) {
	if e.n == maxEdits {
		return // cannot happen: a chunk has fewer places
	}
	i := e.n
	for ; i > 0 && e.all[i-1].at.from > at.from; i-- {
		e.all[i] = e.all[i-1]
	}
	e.all[i] = replacement{at, with}
	e.n++
}

var (
	null    = []byte("null")
	before  = []byte("data: ")
	newline = []byte("\n\n")
)

// framed returns what stands behind the data of an event in its bytes, if only a field name stands
// before the data.
func framed(e sse.Event) []byte {
	rest, ok := bytes.CutPrefix(e.Raw, before)
	if !ok || len(rest) <= len(e.Data) || len(e.Data) == 0 || &rest[0] != &e.Data[0] {
		return newline
	}
	return rest[len(e.Data):]
}

// replace appends the event with the one replacement to out.
func replace(e sse.Event, at span, with, out []byte) []byte {
	const n = len("data: ")
	if raw := e.Raw; len(raw) > n+len(e.Data) && &raw[n] == &e.Data[0] && string(raw[:n]) == string(before) {
		return append(append(append(out, raw[:n+at.from]...), with...), raw[n+at.to:]...)
	}
	out = append(append(out, before...), e.Data[:at.from]...)
	return append(append(append(out, with...), e.Data[at.to:]...), framed(e)...)
}

// show appends the event with its replacements to out.
func (e *edits) show(event sse.Event, out []byte) []byte {
	data := event.Data
	out = append(out, before...)
	from := 0
	for i := range e.all[:e.n] {
		r := &e.all[i]
		out = append(append(out, data[from:r.at.from]...), r.with...)
		from = r.at.to
	}
	return append(append(out, data[from:]...), framed(event)...)
}
