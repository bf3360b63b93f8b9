package resp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Server answers the connections of any number of listeners.
type Server struct {
	o        Options
	accounts map[string]*account
	began    time.Time
	counters counters

	ctx    context.Context // for every call to the store
	cancel context.CancelFunc

	buffered atomic.Int64 // bytes of arguments held, at most maxBuffered
	draining atomic.Bool
	nextID   atomic.Uint64

	logs struct{ cross, password, accept, store pacer }

	mu        sync.Mutex
	conns     map[*conn]struct{} // at most maxClients
	listeners map[net.Listener]struct{}
	closed    bool
	running   sync.WaitGroup // connections
}

// New makes a server, or fails with ErrOptions.
func New(o Options) (*Server, error) {
	if o.Store == nil {
		return nil, fmt.Errorf("%w: no store", ErrOptions)
	}
	m, err := accounts(o.Users)
	if err != nil {
		return nil, err
	}
	s := &Server{o: o.withDefaults(), accounts: m, began: time.Now(),
		conns: map[*conn]struct{}{}, listeners: map[net.Listener]struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// Serve answers l's connections until Shutdown or Close, and then returns nil. It closes l.
// Everybody who reaches l may do everything if there are no users.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.listeners[l] = struct{}{}
	s.mu.Unlock()
	for {
		nc, err := l.Accept()
		if err == nil {
			s.accept(nc)
			continue
		}
		if s.draining.Load() || errors.Is(err, net.ErrClosed) {
			return nil
		}
		var temporary interface{ Temporary() bool }
		if !errors.As(err, &temporary) || !temporary.Temporary() {
			return fmt.Errorf("resp: accept: %w", err)
		}
		s.counters.refused.Add(1)
		if s.logs.accept.due() {
			s.o.Logger.Warn("cannot accept a connection", "error", err)
		}
		select { // the process may be out of file descriptors
		case <-time.After(50 * time.Millisecond):
		case <-s.ctx.Done():
		}
	}
}

// accept starts a connection, or refuses it as redis does.
func (s *Server) accept(nc net.Conn) {
	s.mu.Lock()
	if s.closed || len(s.conns) >= s.o.maxClients {
		s.mu.Unlock()
		s.counters.refused.Add(1)
		// A client without TLS gets the reason. A short write to a new socket does not block.
		if s.o.TLS == nil {
			_ = nc.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = nc.Write([]byte("-ERR max number of clients reached\r\n"))
		}
		_ = nc.Close()
		return
	}
	c := newConn(s, nc)
	s.conns[c] = struct{}{}
	s.running.Add(1)
	s.mu.Unlock()
	s.counters.accepted.Add(1)
	go func() {
		defer s.running.Done()
		c.serve()
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
	}()
}

// wrap adds TLS to a connection if the server has it.
func (s *Server) wrap(nc net.Conn) net.Conn {
	if s.o.TLS == nil {
		return nc
	}
	return tls.Server(nc, s.o.TLS)
}

// Shutdown stops accepting and waits until each connection has executed the commands that have
// arrived. Shutdown closes the remaining connections and returns ctx's error if ctx ends first.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stopAccepting()
	s.mu.Lock()
	for c := range s.conns {
		c.stream.interrupt()
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.running.Wait(); close(done) }()
	defer func() { <-done }()
	select {
	case <-done:
		s.cancel()
		return nil
	case <-ctx.Done():
		n := s.closeConns()
		return fmt.Errorf("resp: %d connections were cut in the middle of a command or a reply: %w", n, ctx.Err())
	}
}

// Close closes every connection and waits for them.
func (s *Server) Close() error {
	s.stopAccepting()
	s.closeConns()
	s.running.Wait()
	return nil
}

func (s *Server) stopAccepting() {
	s.draining.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for l := range s.listeners {
		_ = l.Close()
	}
}

// closeConns closes all connections and returns their number.
func (s *Server) closeConns() int {
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		_ = c.stream.conn.Close()
	}
	return len(s.conns)
}
