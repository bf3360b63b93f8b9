package events

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/feed"
	"github.com/cognitora/dataplane/kv/residency"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// maxWatchers bounds the routers that watch at once. A further one gets RESOURCE_EXHAUSTED.
const maxWatchers = 64

// Serve answers the Watch of cognitora.v1.Kv for an index on l until ctx ends, and closes l. It is
// for a host without cgn-kvcached. Routers must show a certificate of the fleet if there is an
// identity. Otherwise l should be a Unix socket. refused records those who show another one; nil:
// nobody does.
func Serve(ctx context.Context, l net.Listener, x *residency.Index, id *pki.Identity, refused *audit.Log) error {
	creds := insecure.NewCredentials()
	if id != nil && l.Addr().Network() != "unix" {
		creds = audit.Credentials(credentials.NewTLS(id.Mutual("h2")), refused, auditedPort)
	}
	g := grpc.NewServer(
		grpc.Creds(creds), grpc.MaxRecvMsgSize(64<<10), grpc.MaxConcurrentStreams(4), grpc.MaxHeaderListSize(16<<10),
		grpc.ConnectionTimeout(10*time.Second),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}),
		grpc.WaitForHandlers(true),
	)
	pb.RegisterKvServer(g, &server{x: x, watchers: make(chan struct{}, maxWatchers), refused: refused})
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	select {
	case err := <-served:
		g.Stop()
		return err
	case <-ctx.Done():
	}
	g.Stop() // a router's Watch would never end by itself
	<-served
	return nil
}

// server answers Watch and refuses everything else.
type server struct {
	pb.UnimplementedKvServer
	x        *residency.Index
	watchers chan struct{}
	refused  *audit.Log // nil: off
}

// auditedPort is the port's name in the audit log.
const auditedPort = "kv_events"

// Watch streams the engine's blocks.
func (s *server) Watch(r *pb.WatchRequest, stream pb.Kv_WatchServer) error {
	if p, ok := peer.FromContext(stream.Context()); ok {
		if info, secured := p.AuthInfo.(credentials.TLSInfo); secured {
			if role := pki.RoleOf(info.State.PeerCertificates[0]); role != pki.Router && role != pki.Ctl {
				why := fmt.Sprintf("a certificate with the role %q may not watch; use that of a router", role)
				s.refused.Refuse(audit.Refusal{Reason: audit.ReasonRole, Detail: why, Key: pki.NameIn(&info.State),
					Client: p.Addr.String(), Port: auditedPort, Asked: "Watch"})
				return status.Error(codes.PermissionDenied, why)
			}
		}
	}
	select {
	case s.watchers <- struct{}{}:
		defer func() { <-s.watchers }()
	default:
		return status.Errorf(codes.ResourceExhausted, "there are %d watchers already", maxWatchers)
	}
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	w := feed.NewReader(s.x, r)
	defer w.Close()
	for {
		m, err := w.Next(stream.Context())
		if err != nil {
			return err
		}
		if err := stream.Send(m); err != nil {
			return err
		}
	}
}
