package relay

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
)

const (
	sseHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
	request = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
)

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

// get does one request with net/http and returns the answer and the error at its end.
func get(t *testing.T, addr string) (status int, body string, err error) {
	t.Helper()
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: soon}
	r, err := client.Post("http://"+addr+"/", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return r.StatusCode, string(b), err
}

func TestReplyBodies(t *testing.T) {
	for _, c := range []struct {
		name   string
		size   int
		framed func(body string) string
	}{
		{"length", 10, withLength},
		{"empty", 0, withLength},
		{"at limit", wholeBodyBytes, withLength},
		{"long", 3 << 20, withLength},
		{"chunked", 10, withChunks},
		{"chunked long", 3 << 20, withChunks},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := strings.Repeat("0123456789abcdef", c.size/16+1)[:c.size]
			response := c.framed(body)
			o := newObserved()
			f := newFront(t, rawServer(t, "tcp", answering(response)), func(f *front) { f.follower = o })
			for range 2 {
				o.body = nil
				status, got, err := get(t, f.addr)
				if status != 200 || got != body || err != nil {
					t.Fatalf("%d, %d bytes, %v", status, len(got), err)
				}
				o.wait(t, Complete)
				if string(o.body) != body || o.whole != (c.size <= wholeBodyBytes) {
					t.Fatalf("observed %d bytes, whole %v", len(o.body), o.whole)
				}
			}
			if idle, open := f.pool.Stats(); idle != 1 || open != 1 {
				t.Fatalf("%d idle of %d connections", idle, open)
			}
		})
	}
}

func withLength(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func withChunks(body string) string {
	out := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for len(body) > 0 {
		n := min(len(body), 70_000)
		out, body = out+chunk(body[:n]), body[n:]
	}
	return out + "0\r\n\r\n"
}

// once answers one request on a connection and closes it.
func once(response string) func(net.Conn, *bufio.Reader) {
	return func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		io.WriteString(c, response)
	}
}

// TestTruncatedReplies: a client never takes a truncated body for complete.
func TestTruncatedReplies(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		response string
		status   int
	}{
		"short":        {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", 502},
		"short chunks": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", 502},
		"long":         {"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + long, 200},
		"long chunks":  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(long), 200},
		"events":       {sseHead + chunk("data: a\n\n"), 200},
	} {
		o := newObserved()
		o.tail = ""
		f := newFront(t, rawServer(t, "tcp", once(c.response)), func(f *front) { f.follower = o })
		status, _, err := get(t, f.addr)
		if status != c.status || status == 200 && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%s: %d %v", name, status, err)
		}
		if status == 200 {
			o.wait(t, UpstreamFailed)
		}
	}
}

// TestEngineDiesMidStream: the client gets whole events, the error event, and a proper end. The
// client's connection stays in use.
func TestEngineDiesMidStream(t *testing.T) {
	o := newObserved()
	f := newFront(t, rawServer(t, "tcp", once(sseHead+chunk("data: a\n\nda")+chunk("ta: b\n\ndata: hal"))),
		func(f *front) { f.follower = o })
	c := dial(t, f.addr)
	for range 2 {
		io.WriteString(c.Conn, request)
		if body := c.readChunked(t); body != "data: a\n\ndata: b\n\n"+o.tail {
			t.Fatalf("%q", body)
		}
		o.wait(t, UpstreamFailed)
	}
}

func TestEventsAreFiltered(t *testing.T) {
	o := newObserved()
	o.drop = "usage"
	stream := sseHead + chunk("data: a\n\n: ping\n\ndata: usa") + chunk("ge\n\ndata: [DONE]\n\n") + "0\r\n\r\n"
	for _, await := range []bool{false, true} {
		f := newFront(t, rawServer(t, "tcp", answering(stream)), func(f *front) { f.follower, f.await = o, await })
		status, body, err := get(t, f.addr)
		if status != 200 || body != "data: a\n\n: ping\n\ndata: [DONE]\n\n" || err != nil {
			t.Fatalf("%d %q %v", status, body, err)
		}
		o.wait(t, Complete)
	}
	if got := strings.Join(o.events, " "); got != "a usage [DONE] a usage [DONE]" {
		t.Fatal(got)
	}
}

// TestHugeEvents: events longer than every buffer, and longer than MaxEventBytes, are relayed.
func TestHugeEvents(t *testing.T) {
	for _, size := range []int{100 << 10, sse.MaxEventBytes + 100} {
		event := "data: " + strings.Repeat("x", size) + "\n\n"
		o := newObserved()
		f := newFront(t, rawServer(t, "tcp", answering(sseHead+chunk(event)+chunk("data: b\n\n")+"0\r\n\r\n")),
			func(f *front) { f.follower, f.await = o, true })
		_, body, err := get(t, f.addr)
		if body != event+"data: b\n\n" || err != nil {
			t.Fatalf("%d bytes, %v", len(body), err)
		}
		o.wait(t, Complete)
	}
}

// TestFirstEventIsAwaited: comments are not events. A stream without an event fails before the
// client gets an answer.
func TestFirstEventIsAwaited(t *testing.T) {
	f := newFront(t, rawServer(t, "tcp", once(sseHead+chunk(": ping\n\n")+"0\r\n\r\n")),
		func(f *front) { f.await = true })
	if status, _, _ := get(t, f.addr); status != 502 {
		t.Fatal(status)
	}
}

// client is a raw client connection.
type client struct {
	net.Conn
	r *bufio.Reader
}

func dial(t testing.TB, addr string) *client {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(soonest())
	return &client{c, bufio.NewReader(c)}
}

// readChunked reads one chunked response, which must end properly.
func (c *client) readChunked(t *testing.T) string {
	t.Helper()
	r, err := http.ReadResponse(c.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestHTTP10Client: the client gets the whole body with its length, not chunks.
func TestHTTP10Client(t *testing.T) {
	stream := sseHead + chunk("data: a\n\nda") + chunk("ta: [DONE]\n\n") + "0\r\n\r\n"
	f := newFront(t, rawServer(t, "tcp", answering(stream)), nil)
	c := dial(t, f.addr)
	io.WriteString(c.Conn, "GET / HTTP/1.0\r\n\r\n")
	b, err := io.ReadAll(c.r)
	if head, body, _ := bytes.Cut(b, []byte("\r\n\r\n")); err != nil ||
		string(body) != "data: a\n\ndata: [DONE]\n\n" || !bytes.Contains(head, []byte("Content-Length: 23")) {
		t.Fatalf("%q %v", b, err)
	}
}

// TestTooLongForHTTP10: the observer gets nothing of an endless body, or of a body that breaks off,
// because the observer may have to follow another body. Only the broken body is the upstream's
// fault.
func TestTooLongForHTTP10(t *testing.T) {
	event := "data: " + strings.Repeat("x", 64<<10) + "\n\n"
	for name, c := range map[string]struct {
		head, piece string
		endless     bool
	}{
		"events":        {sseHead, chunk(event), true},
		"chunks":        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunk(event), true},
		"until close":   {"HTTP/1.1 200 OK\r\n\r\n", event, true},
		"torn events":   {sseHead, chunk(event), false},
		"closed events": {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", event, false},
	} {
		o, errs := newObserved(), make(chan error, 1)
		f := newFront(t, rawServer(t, "tcp", func(c2 net.Conn, r *bufio.Reader) {
			readRequest(r)
			_, err := io.WriteString(c2, c.head+c.piece)
			for err == nil && c.endless {
				_, err = io.WriteString(c2, c.piece)
			}
		}), func(f *front) { f.follower, f.errs = o, errs })
		client := dial(t, f.addr)
		io.WriteString(client.Conn, "GET / HTTP/1.0\r\n\r\n")
		io.Copy(io.Discard, client.r)
		err := <-errs
		if errors.Is(err, ErrClientTooOld) != c.endless {
			t.Errorf("%s: %v", name, err)
		}
		if !c.endless {
			wantError(t, err, PhaseBody, KindReset)
		}
		if len(o.events)+len(o.body)+len(o.done) != 0 {
			t.Errorf("%s: the observer saw %d events, %d bytes", name, len(o.events), len(o.body))
		}
	}
}

// TestEventsUntilClose: the end of the connection ends a stream properly only after a closing
// event.
func TestEventsUntilClose(t *testing.T) {
	const head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n\r\n"
	const named = "event: message_stop\ndata: {}\n\n"
	o := newObserved()
	for stream, want := range map[string]string{
		"data: a\n\ndata: [DONE]\n\n":        "data: a\n\ndata: [DONE]\n\n",
		"data: a\n\ndata: [DONE]\n":          "data: a\n\ndata: [DONE]\n", // many servers send no blank line at the end
		"data: a\n\n" + named:                "data: a\n\n" + named,
		"data: {\"error\":{}}\n\n":           "data: {\"error\":{}}\n\n",
		"data: a\n\n":                        "data: a\n\n" + o.tail,
		"data: a\n\n: ping\n\ndata: [DON":    "data: a\n\n: ping\n\n" + o.tail,
		"data: a\n\n" + named[:len(named)-4]: "data: a\n\n" + o.tail,
	} {
		f := newFront(t, rawServer(t, "tcp", once(head+stream)), func(f *front) { f.follower, f.await = o, true })
		if _, body, err := get(t, f.addr); body != want || err != nil {
			t.Errorf("%q: %q %v", stream, body, err)
		}
		outcome := Complete
		if strings.HasSuffix(want, o.tail) {
			outcome = UpstreamFailed
		}
		o.wait(t, outcome)
	}
}

// TestHeadRequest: the answer has a length and no body.
func TestHeadRequest(t *testing.T) {
	o := newObserved()
	f := newFront(t, rawServer(t, "tcp", answering("HTTP/1.1 200 OK\r\nX: y\r\n\r\n")),
		func(f *front) { f.follower = o })
	c := dial(t, f.addr)
	for range 2 {
		io.WriteString(c.Conn, "HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
		r, err := http.ReadResponse(c.r, &http.Request{Method: "HEAD"})
		if err != nil || r.StatusCode != 200 || r.Header.Get("X") != "y" {
			t.Fatal(r, err)
		}
		o.wait(t, Complete)
	}
}

// TestPipelinedRequests: pipelined requests are answered in order.
func TestPipelinedRequests(t *testing.T) {
	f := newFront(t, rawServer(t, "tcp", answering(sseHead+chunk("data: a\n\n")+"0\r\n\r\n")), nil)
	c := dial(t, f.addr)
	io.WriteString(c.Conn, request+request+request)
	for range 3 {
		if body := c.readChunked(t); body != "data: a\n\n" {
			t.Fatalf("%q", body)
		}
	}
	if f.canceled.Load() != 0 {
		t.Fatal("the client was taken for gone")
	}
}

// TestStreamTimeouts: the client is told of each kind of timeout.
func TestStreamTimeouts(t *testing.T) {
	for want, setup := range map[Outcome]func(*front){
		IdleTimeout:  func(f *front) { f.idle = 50 * time.Millisecond },
		TotalTimeout: func(f *front) { f.idle, f.total = soon, 50*time.Millisecond },
	} {
		o := newObserved()
		f := newFront(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
			readRequest(r)
			io.WriteString(c, sseHead+chunk("data: a\n\n"))
			io.Copy(io.Discard, r)
		}), func(f *front) {
			f.follower = o
			setup(f)
		})
		_, body, err := get(t, f.addr)
		if body != "data: a\n\n"+o.tail || err != nil {
			t.Fatalf("%v: %q %v", want, body, err)
		}
		o.wait(t, want)
	}
}
