package engine

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// door is one listener with its accepted connections.
type door struct {
	server *http.Server
	served sync.WaitGroup

	count *atomic.Int64 // of connections

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	open  sync.WaitGroup // goroutines of connections
}

type connKey struct{}

// newDoor serves l with h. count counts the open connections.
func newDoor(l net.Listener, h http.Handler, count *atomic.Int64) *door {
	d := &door{count: count, conns: make(map[net.Conn]struct{})}
	d.server = &http.Server{
		Handler:   h,
		ConnState: d.track,
		ErrorLog:  log.New(io.Discard, "", 0),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
	}
	d.served.Go(func() { _ = d.server.Serve(l) }) // returns ErrServerClosed
	return d
}

func (d *door) track(c net.Conn, state http.ConnState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch state {
	case http.StateNew:
		d.open.Add(1)
		d.count.Add(1)
		d.conns[c] = struct{}{}
	case http.StateClosed, http.StateHijacked:
		delete(d.conns, c)
		d.count.Add(-1)
		d.open.Done()
	}
}

// close closes the listener and the connections, with a reset if asked, and waits for their
// goroutines.
func (d *door) close(reset bool) {
	if reset {
		d.mu.Lock()
		for c := range d.conns {
			resetOnClose(c)
		}
		d.mu.Unlock()
	}
	_ = d.server.Close()
	d.served.Wait()
	d.open.Wait()
}

// resetOnClose makes closing a TCP connection send a reset.
func resetOnClose(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
}
