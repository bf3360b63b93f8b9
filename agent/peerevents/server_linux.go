package peerevents

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/listen"
	wire "github.com/cognitora/dataplane/internal/peerevents"
)

// Server tells the routers of this host about events of their peers.
type Server struct {
	o    Options
	sent atomic.Uint64

	mu      sync.Mutex
	source  Source // nil: the reason is in why
	why     error
	routers map[*router]struct{}
	peers   map[netip.AddrPort]*watched
	stats   Stats
}

// watched is a peer that at least one router asks for.
type watched struct {
	routers int
	in      bool // the kernel reports this peer
}

// router is a connected router.
type router struct {
	*wire.Conn
	events chan told
	peers  map[netip.AddrPort]struct{}
	lost   uint64 // guarded by Server.mu, as peers is
}

// told is an event, and the time when it was read.
type told struct {
	wire.Event
	at time.Time
}

// Open listens at path for routers that run as root, as the user of this process, or in the group
// with this id; -1: no group.
func Open(path string, group int) (*net.UnixListener, error) {
	return listen.OpenUnix(path, 0o660, group)
}

// New makes a server.
func New(o Options) *Server {
	return &Server{o: o, routers: map[*router]struct{}{}, peers: map[netip.AddrPort]*watched{}}
}

// Stats returns the server's counts.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Routers, st.Sent = len(s.routers), s.sent.Load()
	for _, w := range s.peers {
		if w.in {
			st.Watched++
		} else {
			st.LeftOut++
		}
	}
	if s.source != nil {
		st.RingFull, _ = s.source.Dropped() // 0: unknown
	}
	return st
}

// Serve serves the routers that connect to l until ctx ends. Serve closes l.
func (s *Server) Serve(ctx context.Context, l *net.UnixListener) {
	var all sync.WaitGroup
	defer all.Wait()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	tried := make(chan struct{})
	all.Go(func() { s.read(ctx, sync.OnceFunc(func() { close(tried) })) })
	<-tried // clients that connect meanwhile wait
	may := listen.AccessTo(l.Addr().String(), nil, nil)
	room := make(chan struct{}, 2*MaxRouters) // further clients wait to be accepted
	for {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return
		}
		c, err := l.AcceptUnix()
		switch {
		case err == nil:
			all.Go(func() {
				s.serve(ctx, wire.NewConn(c), &may)
				<-room
			})
		case ctx.Err() != nil:
			return
		default:
			<-room
			s.o.Logger.Warn("no router can connect for a second", "error", err)
			await.For(ctx, time.Second)
		}
	}
}

// read passes events on until ctx ends. read calls tried once it knows whether the source opens.
func (s *Server) read(ctx context.Context, tried func()) {
	defer tried()
	for said := ""; ctx.Err() == nil; {
		source, err := s.o.Open()
		if err == nil {
			said = ""
			err = s.pass(ctx, source, tried)
		}
		if ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		s.why = err
		s.mu.Unlock()
		tried()
		if err.Error() != said {
			said = err.Error()
			s.o.Logger.Warn("routers are not told of events of the kernel; trying on", "error", err)
		}
		await.For(ctx, openEvery)
	}
}

// pass reads events from source until that fails or ctx ends. pass closes source and disconnects
// the routers.
func (s *Server) pass(ctx context.Context, source Source, ready func()) (err error) {
	s.mu.Lock()
	s.source, s.why = source, nil
	s.mu.Unlock()
	ready()
	defer func() {
		s.mu.Lock()
		s.source = nil
		clear(s.peers)
		for r := range s.routers {
			clear(r.peers)
			_ = r.SetDeadline(time.Unix(1, 0))
		}
		s.mu.Unlock()
		err = errors.Join(err, source.Close())
	}()
	stop := context.AfterFunc(ctx, source.Interrupt)
	defer stop()
	for ctx.Err() == nil {
		e, err := source.Next(time.Time{})
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		s.dispatch(&e, time.Now())
	}
	return nil
}

// kinds maps the kernel's kinds of events to the wire's.
var kinds = map[bpf.EventKind]wire.Kind{
	bpf.Timeout: wire.Timeout, bpf.Recovered: wire.Recovered, bpf.Reset: wire.Reset, bpf.TimedOut: wire.TimedOut,
	bpf.Refused: wire.Refused, bpf.Unanswered: wire.Unanswered, bpf.Closed: wire.Closed,
}

// dispatch queues an event for the routers that asked for its peer.
func (s *Server) dispatch(e *bpf.Event, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.Age > stale {
		s.stats.Stale++
		return
	}
	kind, known := kinds[e.Kind]
	if !known {
		return // a kind of a later version
	}
	t := told{wire.Event{Kind: kind, Peer: e.Peer, LocalPort: e.LocalPort, Timeouts: uint16(min(e.Timeouts, 1<<16-1)),
		Age: e.Age}, now}
	for r := range s.routers {
		if _, its := r.peers[e.Peer]; !its {
			continue
		}
		select {
		case r.events <- t:
		default:
			r.lost++
			s.stats.Lost++
		}
	}
}
