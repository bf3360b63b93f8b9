//go:build !race

package relay

import (
	"bufio"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

const firstEvent = "data: a\n\n"

// allocSite is one client of a server that relays streams of a backend. The test chooses the
// backend's bytes.
type allocSite struct {
	*testing.T
	parking *Parking
	server  *fasthttp.Server
	client  net.Conn
	parts   chan []byte // parts for the backend to send; lastChunk ends an answer
	buf     []byte
	served  chan struct{}
}

func newAllocSite(t *testing.T) *allocSite {
	s := &allocSite{T: t, parts: make(chan []byte), buf: make([]byte, 4096), served: make(chan struct{})}
	pool := newPool(t, rawServer(t, "tcp", s.answer))
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	s.parking = parkingIn(t, func(c net.Conn) { s.server.ServeConn(c) })
	t.Cleanup(s.parking.Loops.Close)
	s.server = &fasthttp.Server{WriteTimeout: soon, NoDefaultDate: true, Handler: s.handler(pool, w)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.served)
		s.server.Serve(w.Listen(l, ListenOptions{}))
	}()
	s.client = dial(t, l.Addr().String()).Conn
	return s
}

// answer is the backend.
func (s *allocSite) answer(c net.Conn, _ *bufio.Reader) {
	buf := make([]byte, 4096)
	for {
		if _, err := c.Read(buf); err != nil {
			return
		}
		for part := range s.parts {
			c.Write(part)
			if len(part) == len(lastChunk) {
				break
			}
		}
	}
}

func (s *allocSite) handler(pool *Pool, w *Watcher) fasthttp.RequestHandler {
	req, abort := post("{}"), new(Abort)
	cancel := abort.Cancel
	return func(ctx *fasthttp.RequestCtx) {
		abort.Reset()
		stop := w.Watch(ctx.Conn(), cancel)
		req.Abort = abort
		e, err := pool.Send(req, time.Now().Add(soon))
		if err == nil {
			err = e.ReadHead(time.Now().Add(soon))
		}
		if err != nil {
			s.Error(err)
			return
		}
		CopyHeaders(&ctx.Response.Header, e)
		if err := Reply(ctx, e, ReplyOptions{Follower: quiet{}, Stop: stop, Parking: s.parking}); err != nil {
			s.Error(err)
		}
	}
}

// begin asks for a stream and reads it up to its first event.
func (s *allocSite) begin(ask, head []byte) {
	s.client.Write(ask)
	s.parts <- head
	for n := 0; n < len(chunk(firstEvent)) || string(s.buf[n-4:n]) != "\n\n\r\n"; {
		m, err := s.client.Read(s.buf[n:])
		if n += m; err != nil {
			s.Fatal(err)
		}
	}
}

// pass sends a part and reads it.
func (s *allocSite) pass(part []byte) {
	s.parts <- part
	if _, err := io.ReadFull(s.client, s.buf[:len(part)]); err != nil {
		s.Fatal(err)
	}
}

// end ends the stream and waits until all its resources are released.
func (s *allocSite) end(last []byte) {
	s.pass(last)
	for s.parking.Loops.busy.Load() > 0 {
		runtime.Gosched()
	}
}

func (s *allocSite) stop() {
	s.client.Close()
	s.parking.Loops.Drain()
	s.server.Shutdown()
	<-s.served
}

// TestLoopDoesNotAllocate counts the allocations of one event on its way through a loop, and of one
// stream, for which the connections move to a loop and back.
func TestLoopDoesNotAllocate(t *testing.T) {
	ask := []byte("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
	head, event, last := []byte(sseHead+chunk(firstEvent)), []byte(chunk("data: b\n\n")), []byte(lastChunk)
	s := newAllocSite(t)
	defer s.stop()
	s.begin(ask, head)
	if n := testing.AllocsPerRun(1000, func() { s.pass(event) }); n != 0 {
		t.Errorf("%v allocations per event", n)
	}
	s.end(last)
	const limit = 40 // two connections are made again from their descriptors
	if n := testing.AllocsPerRun(300, func() { s.begin(ask, head); s.end(last) }); n > limit {
		t.Errorf("%v allocations per stream", n)
	} else {
		t.Logf("%v allocations per stream", n)
	}
}
