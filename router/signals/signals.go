// Package signals follows what one agent tells of its nodes' load (cognitora.v1.Load): readings that come within a tenth of a second of the change, each
// with the age of the sample behind it.
package signals

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/internal/cluster"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// Bounds of a stream.
const (
	// Silence is how long an agent may say nothing: it speaks each second at least. Then what it has told does not count any more.
	Silence    = 3 * time.Second
	retryFirst = 250 * time.Millisecond
	retryLast  = 15 * time.Second
	maxMessage = 64 << 10
	maxNodes   = 256 // of one message
)

// Reading is what an agent tells of a node. What it does not know is unknown.
type Reading struct {
	Node                  string
	InFlight, Queue       cluster.Gauge
	CPUPct, EngineWaitPct cluster.Gauge
	RunqUsP99             cluster.Gauge
	SRTTUsP50, RetransPPM cluster.Gauge
	SMPct                 cluster.Gauge
	Watts, WattsAvg30     cluster.Gauge
	// When the samples were taken, by this host's clock, or a little earlier: the whole way there and back counts as their age. Zero: never.
	Kernel, SM, Power time.Time
}

// Stats counts what all streams of a router have done.
type Stats struct {
	Readings  atomic.Uint64 // taken in
	Broken    atomic.Uint64 // streams that ended and were begun again
	Malformed atomic.Uint64 // messages that were not used
	// Lag is told, of each reading in which something had moved, how long ago that may have been at most. Nil: nobody.
	Lag func(time.Duration)
}

// Options of Follow.
type Options struct {
	Address string      // host:port or unix:///path
	TLS     *tls.Config // nil: plain
	// Got is called with the readings of each answer, which are its own, and says whether they tell of any node that is asked for;
	// Lost is when there will be none for a while. Both by the goroutine of Follow.
	Got   func([]Reading) bool
	Lost  func()
	Stats *Stats
	Log   *slog.Logger
}

// Follow reads the agent's stream, again and again, until ctx ends.
func Follow(ctx context.Context, o Options) {
	conn, err := dial(&o)
	if err != nil {
		o.Log.Warn("load of an agent's nodes cannot be followed; their heartbeats tell", "address", o.Address, "error", err)
		return
	}
	defer conn.Close()
	client := pb.NewLoadClient(conn)
	for wait, said := retryFirst, codes.OK; ; wait = min(2*wait, retryLast) {
		got, err := o.stream(ctx, client)
		if ctx.Err() != nil {
			return
		}
		if got {
			o.Lost()
			wait, said = retryFirst, codes.OK
		}
		o.Stats.Broken.Add(1)
		if code := status.Code(err); code != said {
			said = code
			o.Log.Info("load of an agent's nodes is not told, their heartbeats have to do; trying on", "address", o.Address, "error", err)
		}
		timer := time.NewTimer(wait/2 + rand.N(wait/2))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

func dial(o *Options) (*grpc.ClientConn, error) {
	creds := insecure.NewCredentials()
	if o.TLS != nil {
		creds = credentials.NewTLS(o.TLS)
	}
	target := "passthrough:///" + o.Address
	if strings.HasPrefix(o.Address, "unix://") {
		target = o.Address
	}
	return grpc.NewClient(target, grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10),
		grpc.WithInitialWindowSize(maxMessage), grpc.WithInitialConnWindowSize(maxMessage), // fixed: no pings that measure the way with each message
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}))
}

// stream asks and is answered until something breaks. got tells whether a reading came.
func (o *Options) stream(ctx context.Context, client pb.LoadClient) (got bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	quiet := time.AfterFunc(Silence, cancel)
	defer quiet.Stop()
	s, err := client.Follow(ctx)
	if err != nil {
		return false, err
	}
	for {
		asked := time.Now()
		if err := s.Send(&pb.FollowRequest{}); err != nil {
			_, err = s.Recv() // says why
			return got, err
		}
		answer, err := s.Recv()
		if err != nil {
			return got, err
		}
		quiet.Reset(Silence)
		if err := o.take(answer, asked, time.Now()); err != nil {
			o.Stats.Malformed.Add(1)
			return got, err
		}
		got = true
	}
}

var errNode = errors.New("it tells of none of the nodes that name its address")

// take passes on what the answer says of the nodes.
func (o *Options) take(answer *pb.FollowResponse, asked, now time.Time) error {
	if len(answer.Nodes) > maxNodes {
		return fmt.Errorf("%d nodes, at most %d are read", len(answer.Nodes), maxNodes)
	}
	way := max(now.Sub(asked)-duration(answer.HeldUs), 0)
	all := make([]Reading, len(answer.Nodes))
	for i, n := range answer.Nodes {
		all[i] = readingOf(n, now.Add(-way))
	}
	o.Stats.Readings.Add(uint64(len(all)))
	for _, n := range answer.Nodes {
		if n.UnmovedUs != nil && o.Stats.Lag != nil {
			o.Stats.Lag(duration(*n.UnmovedUs) + way)
		}
	}
	if !o.Got(all) {
		return errNode
	}
	return nil
}

// longest is how old something can be said to be.
const longest = 24 * time.Hour

func duration(us uint64) time.Duration {
	return time.Duration(min(us, uint64(longest/time.Microsecond))) * time.Microsecond
}

// readingOf is what a message says whose ages were true at sent, or a little later.
func readingOf(n *pb.NodeLoad, sent time.Time) Reading {
	gauge := func(v *float64, most float64) cluster.Gauge {
		if v == nil || !(*v >= 0 && *v <= most) {
			return cluster.Gauge{}
		}
		return cluster.Known(*v)
	}
	at := func(us *uint64) time.Time {
		if us == nil {
			return time.Time{}
		}
		return sent.Add(-duration(*us))
	}
	return Reading{
		Node:     n.NodeId,
		InFlight: gauge(n.InFlight, 1<<20), Queue: gauge(n.QueueDepth, 1<<20),
		CPUPct: gauge(n.CpuPct, 1e6), EngineWaitPct: gauge(n.EngineWaitPct, 1e6), RunqUsP99: gauge(n.RunqUsP99, 1e12), SRTTUsP50: gauge(n.SrttUsP50, 1e12), RetransPPM: gauge(n.RetransPpm, 1e6),
		SMPct: gauge(n.SmPct, 100), Watts: gauge(n.PowerWatts, 1e7), WattsAvg30: gauge(n.PowerWattsAvg30, 1e7),
		Kernel: at(n.KernelAgeUs), SM: at(n.SmAgeUs), Power: at(n.PowerAgeUs),
	}
}
