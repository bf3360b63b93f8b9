package relay

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
)

// captured returns the result of Capture for a response.
func captured(t *testing.T, response string, await bool, o CaptureOptions) (string, error) {
	t.Helper()
	p := newPool(t, rawServer(t, "tcp", once(response)))
	e, err := p.Send(post("{}"), soonest())
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err = e.ReadHead(soonest()); err == nil && await {
		err = e.AwaitBody(soonest())
	}
	if err != nil {
		t.Fatal(err)
	}
	b, err := Capture([]byte("before "), e, o)
	return strings.TrimPrefix(string(b), "before "), err
}

func TestCapture(t *testing.T) {
	const untilClose = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
	rewriting := func(e sse.Event, out []byte, at time.Time) ([]byte, bool) {
		if at.IsZero() {
			t.Error("an event that was read at no time")
		}
		switch string(e.Data) {
		case "drop":
			return out, false
		case "stop":
			return append(out, e.Raw...), true
		}
		return append(append(out, e.Data...), ' '), false
	}
	long := strings.Repeat("x", 100<<10)
	all, rewritten := CaptureOptions{Limit: len(long)}, CaptureOptions{Limit: 99, Event: rewriting}
	for name, c := range map[string]struct {
		response, want string
		o              CaptureOptions
		kind           Kind // kind of the failure
	}{
		"length": {withLength(long), long, all, 0},
		"chunks": {withChunks(long), long, all, 0},
		"cut":    {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", "", all, KindReset},
		"events": {sseHead + chunk("data: a\n\nda") + chunk("ta: b\n\n: c\n\n") + lastChunk,
			"data: a\n\ndata: b\n\n: c\n\n", all, 0},
		"rewritten":  {sseHead + chunk("data: a\n\ndata: drop\n\ndata: b\n") + lastChunk, "a b ", rewritten, 0},
		"enough":     {sseHead + chunk("data: a\n\ndata: stop\n\ndata: b\n\n"), "a data: stop\n\n", rewritten, 0},
		"broken":     {sseHead + chunk("data: a\n\n") + "zz\r\n", "", all, KindProtocol},
		"not closed": {untilClose + "data: a\n\n", "", all, KindReset},
		"closed":     {untilClose + "data: a\n\ndata: [DONE]\n", "data: a\n\ndata: [DONE]\n", all, 0},
		"API has a closing event": {sseHead + chunk("data: a\n\n") + lastChunk, "",
			CaptureOptions{Limit: 99, MustClose: true}, KindReset},
	} {
		for _, await := range []bool{false, true} {
			got, err := captured(t, c.response, await, c.o)
			if c.kind != 0 {
				wantError(t, err, PhaseBody, c.kind)
			} else if err != nil || got != c.want {
				t.Errorf("%s: %.60q, want %.60q, %v", name, got, c.want, err)
			}
		}
	}
}

// TestCaptureIsBounded: a body beyond the limit is not stored, and the upstream is not at fault.
func TestCaptureIsBounded(t *testing.T) {
	body := strings.Repeat("x", 100<<10)
	event := chunk("data: " + body + "\n\n")
	for _, response := range []string{withLength(body), withChunks(body), sseHead + event + lastChunk} {
		got, err := captured(t, response, false, CaptureOptions{Limit: 100<<10 - 1})
		var failed *Error
		if !errors.Is(err, ErrTooLong) || errors.As(err, &failed) || got != "" {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
}

// TestCaptureKeepsConnection: the caller still owns the exchange. After a body that was read to its
// end, its connection serves the next exchange.
func TestCaptureKeepsConnection(t *testing.T) {
	p := newPool(t, rawServer(t, "tcp", answering(sseHead+chunk("data: a\n\n")+lastChunk)))
	var kept []byte
	for range 3 {
		e, err := p.Send(post("{}"), soonest())
		if err == nil {
			err = e.ReadHead(soonest())
		}
		if err == nil {
			kept, err = Capture(kept[:0], e, CaptureOptions{Limit: 99})
		}
		if err != nil || !bytes.Equal(kept, []byte("data: a\n\n")) {
			t.Fatalf("%q, %v", kept, err)
		}
		e.Close()
	}
	if idle, open := p.Stats(); idle != 1 || open != 1 {
		t.Errorf("%d idle of %d connections", idle, open)
	}
}
