//go:build !race

package relay

import (
	"bufio"
	"io"
	"net"
	"testing"
	"time"

	"github.com/valyala/fasthttp"
)

// TestLoopDoesNotAllocate counts what one event costs on its way through a
// loop, and what one stream does: the connections' way there and back.
func TestLoopDoesNotAllocate(t *testing.T) {
	ask := []byte("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
	head, event := []byte(sseHead+chunk("data: a\n\n")), []byte(chunk("data: b\n\n"))
	last := []byte(lastChunk)
	parts := make(chan []byte)
	pool := newPool(t, rawServer(t, "tcp", func(c net.Conn, _ *bufio.Reader) {
		buf := make([]byte, 4096)
		for {
			if _, err := c.Read(buf); err != nil {
				return
			}
			for part := range parts {
				c.Write(part)
				if len(part) == len(last) {
					break
				}
			}
		}
	}))
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	var server *fasthttp.Server
	lending := lendingTo(t, func(c net.Conn) { server.ServeConn(c) })
	defer lending.Loops.Close()
	req, abort := post("{}"), new(Abort)
	cancel := abort.Cancel
	server = &fasthttp.Server{WriteTimeout: soon, NoDefaultDate: true, Handler: func(ctx *fasthttp.RequestCtx) {
		abort.Reset()
		stop := w.Watch(ctx.Conn(), cancel)
		req.Abort = abort
		e, err := pool.Send(req, time.Now().Add(soon))
		if err == nil {
			err = e.ReadHead(time.Now().Add(soon))
		}
		if err != nil {
			t.Error(err)
			return
		}
		CopyHeaders(&ctx.Response.Header, e)
		if err := Reply(ctx, e, ReplyOptions{Observer: quiet{}, Stop: stop, Lending: lending}); err != nil {
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
	c, buf := dial(t, l.Addr().String()), make([]byte, 4096)
	read := func(n int) {
		if _, err := io.ReadFull(c.Conn, buf[:n]); err != nil {
			t.Fatal(err)
		}
	}
	begin := func() {
		c.Conn.Write(ask)
		parts <- head
		n := 0
		for n < len(chunk("data: a\n\n")) || string(buf[n-4:n]) != "\n\n\r\n" {
			m, err := c.Conn.Read(buf[n:])
			if n += m; err != nil {
				t.Fatal(err)
			}
		}
	}
	end := func() {
		parts <- last
		read(len(last))
		for lending.Loops.busy.Load() > 0 {
			time.Sleep(10 * time.Microsecond)
		}
	}
	begin()
	one := func() {
		parts <- event
		read(len(event))
	}
	if n := testing.AllocsPerRun(1000, one); n != 0 {
		t.Errorf("%v allocations per event", n)
	}
	end()
	whole := func() {
		begin()
		end()
	}
	const limit = 40 // two connections that are made anew from their descriptors
	if n := testing.AllocsPerRun(300, whole); n > limit {
		t.Errorf("%v allocations per stream", n)
	} else {
		t.Logf("%v allocations per stream", n)
	}
	c.Close()
	lending.Loops.Drain()
	server.Shutdown()
	<-done
}
