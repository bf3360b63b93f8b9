//go:build !race

// Allocation counts have no meaning under the race detector, whose sync.Pool drops items at random.

package relay

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
	"github.com/valyala/fasthttp"
)

// instant answers each read with response and does not allocate.
func instant(response string) func(net.Conn, *bufio.Reader) {
	return func(c net.Conn, _ *bufio.Reader) {
		answer, buf := []byte(response), make([]byte, 4096)
		for {
			if _, err := c.Read(buf); err != nil {
				return
			}
			c.Write(answer)
		}
	}
}

var steadyResponses = map[string]string{
	"length":  okResponse,
	"chunked": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
	"events":  sseHead + "9\r\ndata: a\n\n\r\n9\r\ndata: b\n\n\r\n0\r\n\r\n",
}

func TestExchangeDoesNotAllocate(t *testing.T) {
	for name, response := range steadyResponses {
		p := newPool(t, rawServer(t, "tcp", instant(response)))
		req := post("{}")
		req.Abort = new(Abort)
		deadline := time.Now().Add(time.Minute)
		buf := make([]byte, 100)
		once := func() {
			e, err := p.Send(req, deadline)
			if err != nil {
				t.Fatal(err)
			}
			if err = e.ReadHead(deadline); err != nil || e.Status() != 200 {
				t.Fatal(err)
			}
			e.SetIdleTimeout(time.Minute)
			if err = e.AwaitBody(deadline); err != nil {
				t.Fatal(err)
			}
			for err == nil {
				_, err = e.Read(buf)
			}
			e.Close()
		}
		once()
		if n := testing.AllocsPerRun(300, once); n != 0 {
			t.Errorf("%s: %v allocations per request", name, n)
		}
	}
}

// TestCaptureDoesNotAllocate counts the allocations of a captured exchange.
func TestCaptureDoesNotAllocate(t *testing.T) {
	for name, response := range steadyResponses {
		p, req, kept := newPool(t, rawServer(t, "tcp", instant(response))), post("{}"), make([]byte, 0, 1024)
		once := func() {
			e, err := p.Send(req, time.Time{})
			if err == nil {
				err = e.ReadHead(time.Time{})
			}
			if err == nil {
				_, err = Capture(kept, e, CaptureOptions{Limit: 1024})
			}
			if err != nil {
				t.Fatal(err)
			}
			e.Close()
		}
		once()
		if n := testing.AllocsPerRun(300, once); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// quiet is a Follower that changes and stores nothing.
type quiet struct{ OneSource }

func (quiet) Event(e sse.Event, out []byte, _ time.Time) ([]byte, bool) {
	return append(out, e.Raw...), false
}
func (quiet) Body([]byte, bool)                                 {}
func (quiet) End(out []byte, _ Outcome, _ error) ([]byte, bool) { return out, false }
func (quiet) Done(Outcome, int64, error)                        {}

// TestProxyDoesNotAllocate counts the allocations of a whole request: fasthttp, header fields,
// Send, Reply and Watch.
func TestProxyDoesNotAllocate(t *testing.T) {
	for name, response := range steadyResponses {
		pool := newPool(t, rawServer(t, "tcp", instant(response)))
		w, err := NewWatcher()
		if err != nil {
			t.Fatal(err)
		}
		req, abort, header := post(""), new(Abort), make([]byte, 0, 1024)
		cancel := abort.Cancel
		server := &fasthttp.Server{WriteTimeout: soon, Handler: func(ctx *fasthttp.RequestCtx) {
			abort.Reset()
			stop := w.Watch(ctx.Conn(), cancel)
			req.Abort, req.Header, req.Body[0] = abort, AppendForwardHeaders(header, &ctx.Request.Header),
				ctx.PostBody()
			e, err := pool.Send(req, time.Now().Add(soon))
			if err == nil {
				err = e.ReadHead(time.Now().Add(soon))
			}
			if err != nil {
				t.Error(err)
				return
			}
			CopyHeaders(&ctx.Response.Header, e)
			if err := Reply(ctx, e, ReplyOptions{Follower: quiet{}, Stop: stop}); err != nil {
				t.Error(err)
			}
		}}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			server.Serve(w.Listen(l, ListenOptions{}))
		}()
		c := dial(t, l.Addr().String())
		ask := []byte("POST / HTTP/1.1\r\nHost: x\r\nContent-Type: a/b\r\nX-B: c\r\nContent-Length: 2\r\n\r\n{}")
		buf := make([]byte, 4096)
		size := 0
		once := func() {
			c.Conn.Write(ask)
			if size == 0 {
				size = lengthOfAnswer(t, c.Conn)
				return
			}
			if _, err := io.ReadFull(c.Conn, buf[:size]); err != nil {
				t.Fatal(err)
			}
		}
		once()
		limit := 0.0
		if name == "events" {
			limit = 1 // per stream: fasthttp's chunk writer
		}
		if n := testing.AllocsPerRun(300, once); n > limit {
			t.Errorf("%s: %v allocations per request", name, n)
		}
		c.Close()
		server.Shutdown()
		<-done
		w.Close()
	}
}

func BenchmarkExchange(b *testing.B) {
	for name, response := range steadyResponses {
		b.Run(name, func(b *testing.B) {
			p := newPool(b, rawServer(b, "tcp", instant(response)))
			req, buf := post("{}"), make([]byte, 4096)
			b.ReportAllocs()
			for b.Loop() {
				e, err := p.Send(req, time.Time{})
				if err != nil {
					b.Fatal(err)
				}
				if err = e.ReadHead(time.Time{}); err != nil {
					b.Fatal(err)
				}
				for err == nil {
					_, err = e.Read(buf)
				}
				e.Close()
			}
		})
	}
}

// lengthOfAnswer reads one answer to its end and returns its length.
func lengthOfAnswer(t *testing.T, c net.Conn) int {
	t.Helper()
	var read bytes.Buffer
	r, err := http.ReadResponse(bufio.NewReader(io.TeeReader(c, &read)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		t.Fatal(err)
	}
	return read.Len()
}
