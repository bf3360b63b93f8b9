package peerevents

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/internal/listen"
	wire "github.com/cognitora/dataplane/internal/peerevents"
)

var errEnough = errors.New("as many routers are told as can be")

// serve tells one router until it leaves or ctx ends.
func (s *Server) serve(ctx context.Context, c *wire.Conn, may *listen.Access) {
	defer c.Close()
	hang := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer hang()
	r, fd, err := s.greet(c, may)
	if err != nil {
		s.mu.Lock()
		s.stats.Refused++
		s.mu.Unlock()
		s.o.Logger.Warn("a router is not told of events of the kernel", "error", err)
		_ = c.SetWriteDeadline(time.Now().Add(writeLimit))
		_ = c.Send(&wire.Message{Type: wire.Rejected, Reason: err.Error()}, -1) // it has gone otherwise
		return
	}
	defer s.leave(r)
	err = r.send(&wire.Message{Type: wire.Welcome, Version: wire.Version, Layout: s.o.Layout}, fd)
	_ = unix.Close(fd)
	if err != nil || ctx.Err() != nil { // the deadline that the end of ctx has set may have been taken back
		return
	}
	left := make(chan struct{})
	var writing sync.WaitGroup
	defer writing.Wait()
	writing.Go(func() { r.write(s, left) })
	defer close(left)
	for {
		m, _, err := c.Receive()
		if err != nil || m.Type != wire.Watch {
			return
		}
		s.watch(r, m.Peers)
	}
}

// greet finds out who has connected and, if it may, makes it one of the routers. fd, the caller's
// to close, is what it can read counts by.
func (s *Server) greet(c *wire.Conn, may *listen.Access) (r *router, fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, -1, err
	}
	peer, allowed, err := may.Check(raw)
	if err != nil {
		return nil, -1, err
	}
	if !allowed {
		return nil, -1, fmt.Errorf("user %d is neither root nor the one of this process, and not in the group of "+
			"the socket", peer.UID)
	}
	_ = c.SetReadDeadline(time.Now().Add(helloLimit))
	m, _, err := c.Receive()
	switch {
	case err != nil:
		return nil, -1, err
	case m.Type != wire.Hello:
		return nil, -1, errors.New("it does not begin with a greeting")
	case m.Version != wire.Version:
		return nil, -1, wire.Mismatch(m.Version)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.source == nil {
		return nil, -1, s.why
	}
	if len(s.routers) >= MaxRouters {
		return nil, -1, errEnough
	}
	if fd, err = unix.FcntlInt(uintptr(s.source.PeersFD()), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return nil, -1, fmt.Errorf("duplicate the descriptor of its peers' counts: %w", err)
	}
	r = &router{Conn: c, events: make(chan told, queue), peers: map[netip.AddrPort]struct{}{}}
	s.routers[r] = struct{}{}
	_ = c.SetReadDeadline(time.Time{}) // with mu held: the end of the source sets another one
	return r, fd, nil
}

func (s *Server) leave(r *router) {
	s.watch(r, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.routers, r)
}

// watch makes peers those of r, and has the kernel tell of them.
func (s *Server) watch(r *router, peers []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.source == nil {
		return
	}
	next := make(map[netip.AddrPort]struct{}, len(peers))
	for _, p := range peers {
		next[p] = struct{}{}
	}
	for p := range r.peers { // first: it makes room
		if _, stays := next[p]; !stays {
			s.drop(p)
		}
	}
	for p := range next {
		s.add(p, r)
	}
	r.peers = next
}

// drop takes back one add.
func (s *Server) drop(p netip.AddrPort) {
	w := s.peers[p]
	if w == nil {
		return
	}
	if w.routers--; w.routers > 0 {
		return
	}
	delete(s.peers, p)
	if w.in {
		_ = s.source.Unwatch(p) // it tells of a peer that nobody asks for, otherwise
	}
}

// add has a peer of r watched, if there is room.
func (s *Server) add(p netip.AddrPort, r *router) {
	w := s.peers[p]
	if w == nil {
		w = &watched{}
		s.peers[p] = w
	}
	if _, has := r.peers[p]; !has {
		w.routers++
	}
	if !w.in {
		w.in = s.source.Watch(p, 0) == nil
	}
}

// retry has those of r's peers watched that were left out, as far as others have made room, and
// returns how many still are.
func (s *Server) retry(r *router) (leftOut uint32) {
	for p := range r.peers {
		w := s.peers[p]
		if w.in {
			continue
		}
		if leftOut == 0 { // else there is no room for the others either
			w.in = s.source.Watch(p, 0) == nil
		}
		if !w.in {
			leftOut++
		}
	}
	return leftOut
}

// write sends what is queued, and a sign of life, until left is closed or the router does not take
// it. Then nothing is received from it any more.
func (r *router) write(s *Server, left <-chan struct{}) {
	defer func() { _ = r.SetDeadline(time.Unix(1, 0)) }()
	tick := time.NewTicker(wire.Every)
	defer tick.Stop()
	m := &wire.Message{}
	for {
		select {
		case <-left:
			return
		case t := <-r.events:
			m.Type, m.Event = wire.Told, t.Event
			m.Event.Age += time.Since(t.at)
			s.sent.Add(1)
		case <-tick.C:
			m.Type, m.Beat = wire.Alive, s.beat(r)
		}
		if r.send(m, -1) != nil {
			return
		}
	}
}

func (r *router) send(m *wire.Message, fd int) error {
	if err := r.SetWriteDeadline(time.Now().Add(writeLimit)); err != nil {
		return err
	}
	return r.Send(m, fd)
}

// beat is a sign of life for r, whose peers that were left out are tried again with each.
func (s *Server) beat(r *router) wire.Beat {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := wire.Beat{Lost: r.lost}
	if s.source != nil {
		b.LeftOut = s.retry(r)
		b.Ring, _ = s.source.Dropped() // 0: it cannot be told
	}
	return b
}
