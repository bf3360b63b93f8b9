package answer

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/scan"
)

// reader is a Source that reads an answer as a leg does.
type reader struct {
	Reading
	asked bool
}

func (r *reader) Event(e sse.Event, now time.Time) bool {
	return e.IsDone() || r.Reading.Event(scan.Chat, e, now, r.asked)
}

func (r *reader) Piece(piece []byte, whole bool) {
	if whole {
		r.Document(piece)
	}
}

// exchange sends a request to a server with the handler h and reads the head of the answer.
func exchange(t *testing.T, h http.HandlerFunc) *relay.Exchange {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	pool := relay.NewPool(relay.Target{Addr: server.Listener.Addr().String()}, relay.PoolOptions{})
	t.Cleanup(pool.Close)
	ex, err := pool.Send(&relay.Request{Method: "GET", Path: "/"}, time.Time{})
	if err == nil {
		err = ex.ReadHead(time.Time{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return ex
}

const chunk = `data: {"choices":[{"delta":{"content":"x"}}]}` + "\n\n"

func stream(usage string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, ": hello\n\n"+chunk+chunk+usage+"data: [DONE]\n\n")
	}
}

// TestMemoryKeepsAStream checks that Memory keeps the events that a client would get, and that its
// source reads them.
func TestMemoryKeepsAStream(t *testing.T) {
	const report = `data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}` + "\n\n"
	for _, asked := range []bool{false, true} {
		m, r := Memory{Limit: 1 << 10}, &reader{asked: asked}
		if err := m.Take(exchange(t, stream(report)), r); err != nil {
			t.Fatal(err)
		}
		want := ": hello\n\n" + chunk + chunk + report + "data: [DONE]\n\n"
		if asked { // the router asked, so the usage is for the router only
			want = strings.Replace(want, report, "", 1)
		}
		if m.Status != 200 || string(m.Body) != want {
			t.Errorf("asked %v: status %d, %q", asked, m.Status, m.Body)
		}
		if r.Events != 3 || r.Usage.Prompt != 7 || r.Usage.Completion != 2 || r.Failed {
			t.Errorf("%+v", r.Reading)
		}
	}
}

func TestMemoryKeepsADocument(t *testing.T) {
	const doc = `{"usage":{"prompt_tokens":5,"completion_tokens":1}}`
	m, r := Memory{Limit: len(doc)}, &reader{}
	ex := exchange(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(404)
		io.WriteString(w, doc)
	})
	if err := m.Take(ex, r); err != nil || m.Status != 404 || string(m.Body) != doc || r.Usage.Prompt != 5 {
		t.Errorf("%v, %d %q, %+v", err, m.Status, m.Body, r.Usage)
	}
}

// TestMemoryIsBounded checks that Memory refuses a body over its limit and leaves the exchange to
// the caller.
func TestMemoryIsBounded(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"document": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, strings.Repeat("x", 4096)) },
		"stream":   stream(strings.Repeat(chunk, 100)),
		"torn event": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, "data: "+strings.Repeat("x", 4096))
		},
	} {
		m, ex := Memory{Limit: 1 << 10}, exchange(t, h)
		if err := m.Take(ex, &reader{}); !errors.Is(err, relay.ErrTooLong) {
			t.Errorf("%s: %v with %d bytes", name, err, len(m.Body))
		}
		ex.Close()
	}
}

// TestMemoryTellsACutAnswer checks that Memory tells a cut answer from a whole one.
func TestMemoryTellsACutAnswer(t *testing.T) {
	ex := exchange(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		io.WriteString(w, "half")
		w.(http.Flusher).Flush()
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		conn.(*net.TCPConn).Close()
	})
	defer ex.Close()
	var m Memory
	m.Limit = 1 << 10
	if err := m.Take(ex, &reader{}); err == nil || errors.Is(err, relay.ErrTooLong) {
		t.Errorf("%v, %q", err, m.Body)
	}
}

// TestFailureEvents checks that each API's own failure event counts as a failure.
func TestFailureEvents(t *testing.T) {
	for _, c := range []struct {
		api  scan.API
		e    sse.Event
		want bool
	}{
		{scan.Chat, sse.Event{Data: []byte(`{"error":{}}`)}, true},
		{scan.Chat, sse.Event{Name: []byte("error"), Data: []byte(`{}`)}, false},
		{scan.Responses, sse.Event{Name: []byte("response.failed"), Data: []byte(`{}`)}, true},
		{scan.Responses, sse.Event{Name: []byte("error"), Data: []byte(`{}`)}, true},
		{scan.Messages, sse.Event{Name: []byte("error"), Data: []byte(`{}`)}, true},
		{scan.Messages, sse.Event{Name: []byte("message_stop"), Data: []byte(`{}`)}, false},
	} {
		var r Reading
		if r.Event(c.api, c.e, time.Now(), false); r.Failed != c.want {
			t.Errorf("%v %s %s: failed %v", c.api, c.e.Name, c.e.Data, r.Failed)
		}
	}
}

func TestGaps(t *testing.T) {
	var r Reading
	at := time.Now()
	e := sse.Event{Data: []byte(`{"choices":[]}`)}
	for _, gap := range []time.Duration{0, 10, 50, 30} {
		at = at.Add(gap * time.Millisecond)
		r.Event(scan.Chat, e, at, false)
	}
	if r.Gap != 50*time.Millisecond || r.MeanGap() != 30*time.Millisecond || (&Reading{Events: 1}).MeanGap() != 0 {
		t.Errorf("longest %v, mean %v", r.Gap, r.MeanGap())
	}
}
