// Package push tells routers the load of an agent's nodes as soon as it changes: cognitora.v1.Load
// over gRPC. A router asks, and is answered when a load has changed. So at most one answer is on
// its way to a router. A slow router gets the latest load when it asks again.
package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/internal/pki"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// Bounds on the work that routers can cause.
const (
	// MinInterval is the least time between two answers with a change to one router. MinInterval is
	// shorter than the time between looks, so that looks set the pace of answers.
	MinInterval    = 40 * time.Millisecond
	keepInterval   = time.Second // longest wait for an answer; it may say that nothing has changed
	DefaultStreams = 64          // routers served at a time
)

// Options of a Server.
type Options struct {
	// Identity is for TLS; nil: plain.
	Identity *pki.Identity
	// Roles are the roles in certificates that may follow; empty: any client.
	Roles []pki.Role
	// Streams is how many routers may follow at a time. A further router gets RESOURCE_EXHAUSTED.
	// 0: 64.
	Streams int
	Logger  *slog.Logger
	Audit   *audit.Log // of refused clients; nil: none
}

// Server sends the load of an agent's nodes to routers.
type Server struct {
	pb.UnimplementedLoadServer
	o       Options
	streams chan struct{}

	mu        sync.Mutex
	followers map[*follower]struct{}
	last      []load.Reading // latest reading of every node
	lastAt    time.Time      // time of these readings; zero: there are none

	sent, coalesced, refused atomic.Uint64
}

// Stats counts the work of a Server.
type Stats struct {
	Followers                int
	Sent, Coalesced, Refused uint64
}

// New makes a server without readings.
func New(o Options) *Server {
	o.Streams, o.Logger = cmp.Or(o.Streams, DefaultStreams), cmp.Or(o.Logger, slog.Default())
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

// Offer stores the latest load of every node. All loads are read at the time at, and are in the
// same order each time. Offer returns whether any load differs from the last answer to some router.
// Offer keeps a copy, and does not block. An empty list means that no readings are made, for
// example because no router follows. Then the first router waits for the next readings.
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

// Serve answers routers on l until ctx ends. Serve closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	creds := insecure.NewCredentials()
	if s.o.Identity != nil {
		creds = audit.Credentials(credentials.NewTLS(
			s.o.Identity.ServerFor(len(s.o.Roles) > 0, []string{"h2"}, s.o.Roles...)), s.o.Audit, "push")
	}
	g := grpc.NewServer(grpc.Creds(creds), grpc.MaxRecvMsgSize(4<<10), grpc.MaxConcurrentStreams(4),
		grpc.MaxHeaderListSize(16<<10),
		grpc.ReadBufferSize(4<<10), grpc.WriteBufferSize(4<<10),
		// fixed windows: dynamic ones measure the round trip by a ping with each message
		grpc.InitialWindowSize(64<<10), grpc.InitialConnWindowSize(64<<10),
		grpc.ConnectionTimeout(10*time.Second), grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
			MinTime: 5 * time.Second, PermitWithoutStream: true,
		}))
	pb.RegisterLoadServer(g, s)
	served := make(chan error, 1)
	go func() { served <- g.Serve(netutil.LimitListener(l, 2*s.o.Streams+16)) }()
	select {
	case err := <-served:
		g.Stop()
		return fmt.Errorf("push: %w", err)
	case <-ctx.Done():
	}
	g.Stop() // every answer is complete by itself, so none need be awaited
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
			return nil // the router has left
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
