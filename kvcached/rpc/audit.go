package rpc

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// auditedPort is the port's name in the audit log.
const auditedPort = "grpc"

// acted records a call that has removed blocks or operated the daemon, or has tried to.
func (s *Server) acted(ctx context.Context, m *method, req any, err error) {
	p, ok := peer.FromContext(ctx)
	if s.o.Audit == nil || !ok {
		return
	}
	a := audit.Act{Action: m.name, Object: objectOf(req), Client: p.Addr.String(), Outcome: "ok"}
	switch info := p.AuthInfo.(type) {
	case process:
		a.By, a.Client = info.Peer.String(), ""
	case credentials.TLSInfo:
		a.By = pki.NameIn(&info.State)
	}
	if err != nil {
		a.Outcome = status.Code(err).String()
	}
	s.o.Audit.Act(a)
}

// objectOf says what a request changes.
func objectOf(req any) string {
	var parts []string
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, name+"="+value)
		}
	}
	switch r := req.(type) {
	case *pb.DeleteRequest:
		add("namespace", r.Namespace)
		add("blocks", fmt.Sprint(len(r.Digests)/len(block.Digest{})))
	case *pb.PurgeRequest:
		add("namespace", r.Namespace)
		add("model", r.Model)
		add("tenant", r.Tenant)
		if r.Everything {
			add("everything", "true")
		}
	case *pb.ReleaseDeviceRequest:
		add("device", r.Device)
	}
	return strings.Join(parts, " ")
}
