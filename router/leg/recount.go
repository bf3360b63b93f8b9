package leg

import (
	"bytes"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/internal/usage"
)

// A client's usage has D's counts, and the cached tokens of P, which has computed the prompt. Some
// engines repeat P's number. In the answers of others the router replaces it.

// maxRecounted is the size in bytes from which on an answer that is not a stream keeps D's number.
// The client's place reads smaller ones to their end too, before it passes anything on.
const maxRecounted = 256 << 10

// Usage returns the engine's token counts of the answer so far. The cached tokens are those of the
// node that has computed the prompt.
func (l *Leg) Usage() usage.Counts {
	u := l.Reading.Usage
	if cached, ok := l.found(); ok {
		u.Cached, u.HasCached = cached, true
	}
	return u
}

// found returns P's number of cached tokens, if P has said it and the answer is that of D.
func (l *Leg) found() (cached int64, ok bool) {
	if l.now == nil || !l.now.split {
		return 0, false
	}
	u := &l.hand.last.usage
	return u.Cached, u.HasCached
}

// Recounted returns an event of the answer with P's number of cached tokens. The event is valid
// until the next call.
func (l *Leg) Recounted(e sse.Event) sse.Event {
	cached, ok := l.found()
	if !ok || len(e.Data) == 0 {
		return e
	}
	at := bytes.Index(e.Raw, e.Data)
	if at < 0 { // data of several lines, which no engine sends
		return e
	}
	h := l.hand
	raw, changed := usage.AppendCached(append(h.event[:0], e.Raw[:at]...), e.Data, cached)
	if h.event = raw; !changed {
		return e
	}
	size := len(raw) - at
	h.event = append(raw, e.Raw[at+len(e.Data):]...)
	return sse.Event{Name: e.Name, Data: h.event[at : at+size], Raw: h.event}
}

// recount puts P's number of cached tokens into the answer in ex, which is not a stream.
func (l *Leg) recount(ex *relay.Exchange) error {
	cached, ok := l.found()
	if !ok {
		return nil
	}
	why, err := relay.Sift(ex, relay.SiftOptions{Limit: maxRecounted, MustClose: true})
	if err != nil || why != relay.SiftedWhole {
		return err
	}
	if doc, changed := usage.AppendCached(nil, ex.Held(), cached); changed {
		ex.Hold(doc)
	}
	return nil
}
