// Package push tells routers the load of an agent's nodes as soon as it changes: cognitora.v1.Load
// over gRPC. A router asks, and is answered when something has moved. So there is never more than
// one answer on its way to it, and a slow router is told the latest when it asks again.
package push

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/internal/pki"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// Bounds of the work that routers can make.
const (
	// MinInterval is the least time between two answers to one router that tell of a change. It is
	// shorter than the time between looks, whose rhythm answers then keep.
	MinInterval    = 40 * time.Millisecond
	keepInterval   = time.Second // after which an answer says that nothing has moved
	DefaultStreams = 64          // routers at a time
)

// Options of a Server.
type Options struct {
	// Identity makes the listener speak TLS; nil: plain.
	Identity *pki.Identity
	// Roles may follow, by certificate; empty: everybody who can connect.
	Roles []pki.Role
	// Streams is how many may follow at a time; one more is told RESOURCE_EXHAUSTED. 0: 64.
	Streams int
	Logger  *slog.Logger
}

// Server answers routers.
type Server struct {
	pb.UnimplementedLoadServer
	o       Options
	streams chan struct{}

	mu        sync.Mutex
	followers map[*follower]struct{}
	last      []load.Reading // of every node
	lastAt    time.Time      // when it was read; zero: nothing was

	sent, coalesced, refused atomic.Uint64
}

// Stats counts the work of a Server.
type Stats struct {
	Followers                int
	Sent, Coalesced, Refused uint64
}

// New makes a server that has nothing to tell before Offer.
func New(o Options) *Server {
	if o.Streams <= 0 {
		o.Streams = DefaultStreams
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return &Server{o: o, streams: make(chan struct{}, o.Streams), followers: map[*follower]struct{}{}}
}

// Stats returns the counts.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{len(s.followers), s.sent.Load(), s.coalesced.Load(), s.refused.Load()}
}

// Following tells whether any router follows.
func (s *Server) Following() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.followers) > 0
}

// Offer gives the latest load of every node, all read at the given time and in the same order each
// time, and returns whether any differs from what some router knows. It keeps a copy, and does not
// block. An empty one says that nothing is read, as while no router follows: the first router that
// does then waits for the next.
func (s *Server) Offer(at time.Time, all []load.Reading) (moved bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for f := range s.followers {
		f.offer(all, s.lastAt)
		moved = moved || f.moved
	}
	s.last, s.lastAt = append(s.last[:0], all...), at
	return moved
}

// Serve answers on l, which it closes, until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	creds := insecure.NewCredentials()
	if s.o.Identity != nil {
		creds = credentials.NewTLS(s.o.Identity.ServerFor(len(s.o.Roles) > 0, []string{"h2"}, s.o.Roles...))
	}
	g := grpc.NewServer(grpc.Creds(creds), grpc.MaxRecvMsgSize(4<<10), grpc.MaxConcurrentStreams(4),
		grpc.MaxHeaderListSize(16<<10),
		grpc.ReadBufferSize(4<<10), grpc.WriteBufferSize(4<<10),
		// fixed: no pings that measure the way with each message
		grpc.InitialWindowSize(64<<10), grpc.InitialConnWindowSize(64<<10),
		grpc.ConnectionTimeout(10*time.Second), grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: 5 * time.Second, PermitWithoutStream: true,
		}))
	pb.RegisterLoadServer(g, s)
	served := make(chan error, 1)
	go func() { served <- g.Serve(newLimited(l, s)) }()
	select {
	case err := <-served:
		g.Stop()
		return fmt.Errorf("push: %w", err)
	case <-ctx.Done():
	}
	g.Stop() // every answer is complete by itself
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("push: %w", err)
	}
	return nil
}

// Follow answers one router until it leaves.
func (s *Server) Follow(stream grpc.BidiStreamingServer[pb.FollowRequest, pb.FollowResponse]) error {
	select {
	case s.streams <- struct{}{}:
		defer func() { <-s.streams }()
	default:
		s.refused.Add(1)
		return status.Errorf(codes.ResourceExhausted, "%d routers follow this agent already", s.o.Streams)
	}
	f := s.join()
	defer s.leave(f)
	if p, ok := peer.FromContext(stream.Context()); ok {
		s.o.Logger.Debug("a router follows the nodes' load", "router", p.Addr.String())
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return nil // it has left
		}
		asked := time.Now()
		if !f.wait(stream.Context(), asked) {
			return nil
		}
		answer := f.answer(time.Now(), asked)
		s.sent.Add(1)
		if err := stream.Send(answer); err != nil {
			return nil
		}
	}
}

func (s *Server) join() *follower {
	f := &follower{server: s, wake: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.followers[f] = struct{}{}
	return f
}

func (s *Server) leave(f *follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.followers, f)
}
