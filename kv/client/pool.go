//go:build linux

package client

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// pool hands out sockets, the last used one first. pool dials new ones up to a limit. At the limit
// of sockets callers wait.
type pool struct {
	dial  func(context.Context) (*socket, error)
	turns chan struct{}   // holds a token for each socket in use or being dialled
	ctx   context.Context // ends before close

	mu   sync.Mutex
	idle []*socket
	all  map[*socket]struct{}
}

// get hands out a socket.
func (p *pool) get(ctx context.Context) (*socket, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if p.ctx.Err() != nil {
		return nil, ErrClosed
	}
	select {
	case p.turns <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-p.ctx.Done():
		return nil, ErrClosed
	}
	if s := p.unused(); s != nil {
		return s, nil
	}
	s, err := p.dial(ctx)
	if err != nil {
		<-p.turns
		return nil, err
	}
	p.mu.Lock()
	p.all[s] = struct{}{}
	p.mu.Unlock()
	if p.ctx.Err() != nil {
		p.put(s)
		return nil, ErrClosed
	}
	return s, nil
}

// unused removes the idle socket that was used last and is not dead, and returns it.
func (p *pool) unused() *socket {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.idle) > 0 {
		s := p.idle[len(p.idle)-1]
		p.idle = p.idle[:len(p.idle)-1]
		if !s.dead.Load() {
			return s
		}
		p.remove(s)
	}
	return nil
}

// put returns a socket to the pool.
func (p *pool) put(s *socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.dead.Load() || p.ctx.Err() != nil {
		p.remove(s)
	} else {
		p.idle = append(p.idle, s)
	}
	<-p.turns
}

// remove closes a socket that nobody uses. The caller holds mu.
func (p *pool) remove(s *socket) {
	s.kill()
	delete(p.all, s)
	s.retire()
}

// prune closes idle sockets whose daemon is gone, so that one restart causes one error.
func (p *pool) prune() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = slices.DeleteFunc(p.idle, func(s *socket) bool {
		gone := s.dead.Load() || s.hungUp()
		if gone {
			p.remove(s)
		}
		return gone
	})
}

// hungUp says whether the daemon has closed the connection.
func (s *socket) hungUp() bool {
	raw, err := s.net.SyscallConn()
	if err != nil {
		return true
	}
	gone := true
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		gone = n == 0 && err == nil || err != nil && err != unix.EAGAIN
	})
	return gone || err != nil
}

// close closes all sockets, those in use included.
func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.all {
		s.kill()
	}
	for _, s := range p.idle {
		p.remove(s)
	}
	p.idle = nil
}
