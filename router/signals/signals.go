// Package signals receives the load that an agent reports for its nodes (cognitora.v1.Load). A
// reading comes within a tenth of a second of the change, with the age of each sample.
package signals

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/load"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// These constants bound a stream.
const (
	// Silence is the longest silence of an agent, which sends at least once a second. After Silence
	// an agent's readings no longer count.
	Silence    = 3 * time.Second
	retryFirst = 250 * time.Millisecond
	retryLast  = 15 * time.Second
	maxMessage = 64 << 10
	maxNodes   = 256 // nodes of one message
)

// Stats are the counts of all streams of a router.
type Stats struct {
	Readings  atomic.Uint64 // accepted readings
	Broken    atomic.Uint64 // streams that ended and were begun again
	Malformed atomic.Uint64 // refused messages
	// Lag is called for each reading with a change. The argument is the largest possible age of the
	// change. Lag may be nil.
	Lag func(time.Duration)
}

// Options are the settings of Follow.
type Options struct {
	Address string      // host:port or unix:///path
	TLS     *tls.Config // nil: plain text
	// Got is called with the readings of each answer, and may keep them. Got returns true if one of
	// them is for a node of interest. Lost is called when readings stop for a while. Got and Lost
	// run on the goroutine of Follow.
	Got    func([]load.Reading) bool
	Lost   func()
	Stats  *Stats
	Logger *slog.Logger
}

// Follow reads the agent's stream until ctx ends. Follow connects again after each loss.
func Follow(ctx context.Context, o Options) {
	conn, err := dial(&o)
	if err != nil {
		o.Logger.Warn("load of an agent's nodes cannot be followed; their heartbeats tell", "address", o.Address,
			"error", err)
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
			o.Logger.Info("load of an agent's nodes is not told, their heartbeats have to do; trying on", "address",
				o.Address, "error", err)
		}
		if !await.About(ctx, wait) {
			return
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
	return grpc.NewClient(target, grpc.WithTransportCredentials(creds),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10),
		// Fixed windows: otherwise gRPC pings with each message to measure the bandwidth.
		grpc.WithInitialWindowSize(maxMessage), grpc.WithInitialConnWindowSize(maxMessage),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}))
}

// stream sends requests and receives answers until a failure. got says that a reading came.
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
			_, err = s.Recv() // returns the reason
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

// take passes on the readings of an answer. A sample's age includes the whole round trip.
func (o *Options) take(answer *pb.FollowResponse, asked, now time.Time) error {
	if len(answer.Nodes) > maxNodes {
		return fmt.Errorf("%d nodes, at most %d are read", len(answer.Nodes), maxNodes)
	}
	way := max(now.Sub(asked)-load.Duration(answer.HeldUs), 0)
	all := make([]load.Reading, len(answer.Nodes))
	for i, n := range answer.Nodes {
		all[i] = load.FromMessage(n, now.Add(-way))
	}
	o.Stats.Readings.Add(uint64(len(all)))
	for _, n := range answer.Nodes {
		if n.UnmovedUs != nil && o.Stats.Lag != nil {
			o.Stats.Lag(load.Duration(*n.UnmovedUs) + way)
		}
	}
	if !o.Got(all) {
		return errNode
	}
	return nil
}
