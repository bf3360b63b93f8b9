//go:build linux

package client

import (
	"context"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// pool hands out sockets, the last used one first. pool dials new ones up to a limit. Then callers
// wait.
type pool struct {
	dial  func(context.Context) (*socket, error)
	limit int

	mu      sync.Mutex
	idle    []*socket
	open    int // idle, in use or being dialled
	all     map[*socket]struct{}
	waiting []*waiter // first come, first served
	closed  bool
}

// waiter waits for one socket, or for any. waiter receives a socket, or nil to look again.
type waiter struct {
	want *socket
	turn chan *socket
}

// get hands out any socket.
func (p *pool) get(ctx context.Context) (*socket, error) {
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, ErrClosed
		}
		if n := len(p.idle); n > 0 {
			s := p.idle[n-1]
			p.idle = p.idle[:n-1]
			p.mu.Unlock()
			if s.dead.Load() {
				p.put(s)
				continue
			}
			return s, nil
		}
		if p.open < p.limit {
			p.open++
			p.mu.Unlock()
			return p.dialled(ctx)
		}
		s, err := p.wait(ctx, nil)
		if s != nil || err != nil {
			return s, err
		}
	}
}

func (p *pool) dialled(ctx context.Context) (*socket, error) {
	s, err := p.dial(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil && p.closed {
		s.kill()
		s.retire()
		err = ErrClosed
	}
	if err != nil {
		p.open--
		p.wake(nil)
		return nil, err
	}
	p.all[s] = struct{}{}
	return s, nil
}

// take hands out the socket s and no other.
func (p *pool) take(ctx context.Context, s *socket) error {
	for {
		p.mu.Lock()
		if p.closed || s.dead.Load() {
			closed := p.closed
			p.mu.Unlock()
			if closed {
				return ErrClosed
			}
			return ErrGone
		}
		if i := slices.Index(p.idle, s); i >= 0 {
			p.idle = slices.Delete(p.idle, i, i+1)
			p.mu.Unlock()
			return nil
		}
		got, err := p.wait(ctx, s)
		if got != nil || err != nil {
			return err
		}
	}
}

// wait waits for a turn. The caller holds mu; wait returns without it.
func (p *pool) wait(ctx context.Context, want *socket) (*socket, error) {
	w := &waiter{want, make(chan *socket, 1)}
	p.waiting = append(p.waiting, w)
	p.mu.Unlock()
	select {
	case s := <-w.turn:
		return s, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	i := slices.Index(p.waiting, w)
	if i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
	}
	p.mu.Unlock()
	if i < 0 { // its turn has come nevertheless
		if s := <-w.turn; s != nil {
			p.put(s)
		} else {
			p.mu.Lock()
			p.wake(nil)
			p.mu.Unlock()
		}
	}
	return nil, context.Cause(ctx)
}

// put returns a socket to the pool.
func (p *pool) put(s *socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.dead.Load() || p.closed {
		s.kill()
		if _, known := p.all[s]; known {
			delete(p.all, s)
			p.open--
			s.retire()
		}
		for p.wake(s) {
		}
		p.wake(nil)
		return
	}
	for i, w := range p.waiting {
		if w.want == nil || w.want == s {
			p.waiting = slices.Delete(p.waiting, i, i+1)
			w.turn <- s
			return
		}
	}
	p.idle = append(p.idle, s)
}

// wake makes the first waiter for s look again, or the first one for any socket if s is nil. The
// caller holds mu.
func (p *pool) wake(s *socket) bool {
	for i, w := range p.waiting {
		if w.want == s {
			p.waiting = slices.Delete(p.waiting, i, i+1)
			w.turn <- nil
			return true
		}
	}
	return false
}

// prune closes idle sockets whose daemon is gone, so that one restart causes one error.
func (p *pool) prune() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.idle = slices.DeleteFunc(p.idle, func(s *socket) bool {
		if !s.dead.Load() && !s.hungUp() {
			return false
		}
		s.kill()
		delete(p.all, s)
		p.open--
		s.retire()
		for p.wake(s) {
		}
		p.wake(nil)
		return true
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
	p.closed = true
	for s := range p.all {
		s.kill()
	}
	for _, s := range p.idle {
		delete(p.all, s)
		p.open--
		s.retire()
	}
	p.idle = nil
	for _, w := range p.waiting {
		w.turn <- nil
	}
	p.waiting = nil
}
