// Package serve accepts connections for the servers of measurements.
package serve

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// Server serves each connection of a listener in a goroutine of its own, until Close.
type Server struct {
	listener net.Listener
	handle   func(net.Conn)
	wait     sync.WaitGroup

	mu     sync.Mutex
	open   map[net.Conn]bool
	closed bool
}

// Start serves the connections of l, which the Server closes. A connection is closed when handle
// returns.
func Start(l net.Listener, handle func(net.Conn)) *Server {
	s := &Server{listener: l, handle: handle, open: map[net.Conn]bool{}}
	s.wait.Go(s.accept)
	return s
}

func (s *Server) accept() {
	for {
		c, err := s.listener.Accept()
		if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			time.Sleep(10 * time.Millisecond)
			continue
		}
		if err != nil {
			return // closed
		}
		s.wait.Go(func() { s.serve(c) })
	}
}

func (s *Server) serve(c net.Conn) {
	defer c.Close()
	s.mu.Lock()
	closed := s.closed
	s.open[c] = true
	s.mu.Unlock()
	if !closed {
		s.handle(c)
	}
	s.mu.Lock()
	delete(s.open, c)
	s.mu.Unlock()
}

// Close closes the listener and all connections, and waits for their goroutines.
func (s *Server) Close() {
	_ = s.listener.Close()
	s.mu.Lock()
	s.closed = true
	for c := range s.open {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.wait.Wait()
}
