// Package push tells routers how the nodes of an agent are as soon as that changes: cognitora.v1.Load over gRPC. A router asks, and is answered when something has moved;
// so there is never more than one answer on its way to it, and one that is slow is told the latest when it asks again.
package push

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
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

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/pki"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// Bounds of what routers make the agent do.
const (
	MinInterval    = 40 * time.Millisecond // between two answers to one router that tell of a change; shorter than the time between looks, whose rhythm answers then keep
	keepInterval   = time.Second           // after which an answer says that nothing has moved
	DefaultStreams = 64                    // routers at a time
)

// Options of a Server.
type Options struct {
	// Identity makes the listener speak TLS; nil: plain.
	Identity *pki.Identity
	// Roles is who may follow, by certificate; empty: everybody who can connect.
	Roles []pki.Role
	// Streams is how many may follow at a time; one more is told RESOURCE_EXHAUSTED. 0: 64.
	Streams int
	Log     *slog.Logger
}

// Reading is what is measured of a node, with when the kernel, the GPU and the power were looked at; a zero time: never.
type Reading struct {
	Node                  string
	At                    time.Time // of the whole
	InFlight, Queue       cluster.Gauge
	CPUPct, EngineWaitPct cluster.Gauge
	RunqUsP99             cluster.Gauge
	SRTTUsP50, RetransPPM cluster.Gauge
	SMPct                 cluster.Gauge
	Watts, WattsAvg30     cluster.Gauge
	Kernel, SM, Power     time.Time
}

// Server answers routers.
type Server struct {
	pb.UnimplementedLoadServer
	o       Options
	streams chan struct{}

	mu        sync.Mutex
	followers map[*follower]struct{}
	last      []Reading // of every node

	sent, coalesced, refused atomic.Uint64
}

// Stats counts what a Server has done.
type Stats struct {
	Followers                int
	Sent, Coalesced, Refused uint64
}

// New makes a server that has nothing to tell before Offer.
func New(o Options) *Server {
	if o.Streams <= 0 {
		o.Streams = DefaultStreams
	}
	if o.Log == nil {
		o.Log = slog.Default()
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

// Offer gives the latest readings, one of every node, all taken at once and in the same order each time, and returns whether any differs from
// what some router knows. It keeps a copy, and does not block. An empty one says that nothing is read, as while no router follows: the first that
// does then waits for the next.
func (s *Server) Offer(all []Reading) (moved bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := time.Time{}
	if len(s.last) > 0 {
		before = s.last[0].At
	}
	for f := range s.followers {
		f.offer(all, before)
		moved = moved || f.moved
	}
	s.last = append(s.last[:0], all...)
	return moved
}

// Serve answers on l, which it closes, until ctx ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	creds := insecure.NewCredentials()
	if s.o.Identity != nil {
		creds = credentials.NewTLS(s.o.Identity.ServerFor(len(s.o.Roles) > 0, []string{"h2"}, s.o.Roles...))
	}
	g := grpc.NewServer(grpc.Creds(creds), grpc.MaxRecvMsgSize(4<<10), grpc.MaxConcurrentStreams(4), grpc.MaxHeaderListSize(16<<10),
		grpc.ReadBufferSize(4<<10), grpc.WriteBufferSize(4<<10),
		grpc.InitialWindowSize(64<<10), grpc.InitialConnWindowSize(64<<10), // fixed: no pings that measure the way with each message
		grpc.ConnectionTimeout(10*time.Second), grpc.WaitForHandlers(true),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}))
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
		s.o.Log.Debug("a router follows the nodes' load", "router", p.Addr.String())
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

// micros is an age; nil of what has never been sampled.
func micros(now, at time.Time) *uint64 {
	if at.IsZero() {
		return nil
	}
	us := uint64(max(now.Sub(at), 0) / time.Microsecond)
	return &us
}

func optional(g cluster.Gauge) *float64 {
	v, known := g.Get()
	if !known || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// message is the reading with its ages now.
func (r *Reading) message(now time.Time) *pb.NodeLoad {
	return &pb.NodeLoad{
		NodeId:   r.Node,
		InFlight: optional(r.InFlight), QueueDepth: optional(r.Queue),
		CpuPct: optional(r.CPUPct), EngineWaitPct: optional(r.EngineWaitPct), RunqUsP99: optional(r.RunqUsP99), SrttUsP50: optional(r.SRTTUsP50), RetransPpm: optional(r.RetransPPM),
		KernelAgeUs: micros(now, r.Kernel),
		SmPct:       optional(r.SMPct), SmAgeUs: micros(now, r.SM),
		PowerWatts: optional(r.Watts), PowerWattsAvg30: optional(r.WattsAvg30), PowerAgeUs: micros(now, r.Power),
	}
}
