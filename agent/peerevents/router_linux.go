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

// serve tells one router about events until it leaves or ctx ends.
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
		// a failure means that the router has gone
		_ = c.Send(&wire.Message{Type: wire.Rejected, Reason: err.Error()}, -1)
		return
	}
	defer s.leave(r)
	err = r.send(&wire.Message{Type: wire.Welcome, Version: wire.Version, Layout: s.o.Layout}, fd)
	_ = unix.Close(fd)
	if err != nil || ctx.Err() != nil { // SetReadDeadline above may have removed the deadline that the end of ctx set
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

// greet checks who has connected and makes an allowed client one of the routers. fd lets the router
// read counts; the caller closes it.
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
	_ = c.SetReadDeadline(time.Time{}) // under mu, because the end of the source sets another deadline
	return r, fd, nil
}

func (s *Server) leave(r *router) {
	s.watch(r, nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.routers, r)
}

// watch replaces the peers of r, and makes the kernel report them.
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
	for p := range r.peers { // removing first makes room
		if _, stays := next[p]; !stays {
			s.drop(p)
		}
	}
	for p := range next {
		s.add(p, r)
	}
	r.peers = next
}

// drop undoes one add.
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
		_ = s.source.Unwatch(p) // on failure, events of the unwanted peer go on coming
	}
}

// add watches a peer for r, if there is room.
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

// retry watches r's left-out peers that now find room, and returns how many are still left out.
func (s *Server) retry(r *router) (leftOut uint32) {
	for p := range r.peers {
		w := s.peers[p]
		if w.in {
			continue
		}
		if leftOut == 0 { // if this peer finds no room, the others find none
			w.in = s.source.Watch(p, 0) == nil
		}
		if !w.in {
			leftOut++
		}
	}
	return leftOut
}

// write sends the queued events and periodic beats, until left is closed or the router stops
// reading. At the end, write makes reads from the router fail.
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

// beat makes a sign of life for r. beat first tries to watch r's left-out peers again.
func (s *Server) beat(r *router) wire.Beat {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := wire.Beat{Lost: r.lost}
	if s.source != nil {
		b.LeftOut = s.retry(r)
		b.Ring, _ = s.source.Dropped() // 0: unknown
	}
	return b
}
