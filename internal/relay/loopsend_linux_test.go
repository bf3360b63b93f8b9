package relay

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
)

// TestLoopsDrain: a connection that waits for a request is closed at once, one
// with a stream after it.
func TestLoopsDrain(t *testing.T) {
	parts, idleParts := make(chan string), make(chan string, 2)
	f := newFront(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		_, body, _ := readRequest(r)
		from := parts
		if body == "[]" {
			from = idleParts
		}
		for part := range from {
			io.WriteString(c, part)
		}
	}), nil)
	idle, busy := dial(t, f.addr), dial(t, f.addr)
	io.WriteString(idle.Conn, strings.Replace(request, "{}", "[]", 1))
	idleParts <- sseHead + chunk("data: a\n\n")
	idle.r.Peek(1)
	idleParts <- lastChunk
	close(idleParts)
	idle.readChunked(t)
	f.awaitLent(t, 0)
	io.WriteString(busy.Conn, request)
	parts <- sseHead + chunk("data: a\n\n")
	busy.r.Peek(1)
	f.awaitLent(t, 1)
	f.lending.Loops.Drain()
	if _, err := idle.r.ReadByte(); err != io.EOF {
		t.Fatal("the connection that waits:", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := f.lending.Loops.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	parts <- chunk("data: b\n\n") + lastChunk
	close(parts)
	if body := busy.readChunked(t); body != "data: a\n\ndata: b\n\n" {
		t.Fatalf("%q", body)
	}
	if _, err := busy.r.ReadByte(); err != io.EOF {
		t.Fatal("after the stream:", err)
	}
	if err := f.lending.Loops.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestLoopsClose cuts what is left.
func TestLoopsClose(t *testing.T) {
	o := newObserved()
	f := newFront(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		io.WriteString(c, sseHead+chunk("data: a\n\n"))
		io.Copy(io.Discard, r)
	}), func(f *front) { f.follower = o })
	c := dial(t, f.addr)
	io.WriteString(c.Conn, request)
	c.r.Peek(1)
	f.awaitLent(t, 1)
	f.lending.Loops.Close()
	o.wait(t, UpstreamFailed)
	if r, err := http.ReadResponse(c.r, nil); err != nil {
		t.Fatal(err)
	} else if _, err := io.ReadAll(r.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
}

// fragile is a Follower that panics at an event "boom".
type fragile struct{ *observed }

func (f fragile) Event(e sse.Event, out []byte, at time.Time) ([]byte, bool) {
	if string(e.Data) == "boom" {
		panic("boom")
	}
	return f.observed.Event(e, out, at)
}

// TestFollowerPanics: only its own stream ends.
func TestFollowerPanics(t *testing.T) {
	o := newObserved()
	parts := make(chan string)
	f := newFront(t, rawServer(t, "tcp", stepping(parts)), func(f *front) { f.follower = fragile{o} })
	told := make(chan any, 1)
	for _, l := range f.lending.Loops.all {
		l.loops.options.Panicked = func(p any) { told <- p }
	}
	for _, data := range []string{"boom", "b"} {
		c := dial(t, f.addr)
		io.WriteString(c.Conn, request)
		parts <- sseHead + chunk("data: a\n\n")
		c.r.Peek(1)
		f.awaitLent(t, 1)
		parts <- chunk("data: "+data+"\n\n") + lastChunk
		r, err := http.ReadResponse(c.r, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		if data == "boom" {
			if <-told != "boom" || !errors.Is(err, io.ErrUnexpectedEOF) || string(body) != "data: a\n\n" {
				t.Fatalf("%q %v", body, err)
			}
			o.wait(t, UpstreamFailed)
		} else if err != nil || string(body) != "data: a\n\ndata: b\n\n" {
			t.Fatalf("%q %v", body, err)
		}
		f.awaitLent(t, 0)
	}
}
