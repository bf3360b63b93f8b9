package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kvcached/store"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// right is a permission that a method needs.
type right uint8

const (
	read right = 1 << iota
	write
	remove
	operate
)

func (r right) String() string {
	return map[right]string{read: "read", write: "write", remove: "delete", operate: "operate the daemon"}[r]
}

// needs has the right for each method. Promote needs only read, as Get has the same effect.
var needs = map[string]right{
	pb.Kv_Lookup_FullMethodName:        read,
	pb.Kv_Peers_FullMethodName:         read,
	pb.Kv_ReleaseDevice_FullMethodName: operate,
	pb.Kv_BatchLookup_FullMethodName:   read,
	pb.Kv_Get_FullMethodName:           read,
	pb.Kv_Promote_FullMethodName:       read,
	pb.Kv_List_FullMethodName:          read,
	pb.Kv_Stats_FullMethodName:         read,
	pb.Kv_Watch_FullMethodName:         read,
	pb.Kv_Put_FullMethodName:           write,
	pb.Kv_Push_FullMethodName:          write,
	pb.Kv_Pull_FullMethodName:          write,
	pb.Kv_Pin_FullMethodName:           write,
	pb.Kv_Unpin_FullMethodName:         write,
	pb.Kv_Report_FullMethodName:        write,
	pb.Kv_TellChunks_FullMethodName:    write,
	pb.Kv_ChunkParts_FullMethodName:    read,
	pb.Kv_Delete_FullMethodName:        remove,
	pb.Kv_Purge_FullMethodName:         remove,
}

// may has the rights of each certificate's role.
var may = map[pki.Role]right{
	pki.Router:   read,
	pki.Agent:    read | write,
	pki.KVCached: read | write,
	pki.Ctl:      read | write | remove | operate,
}

// method is a row of needs with its counters.
type method struct {
	right  right
	name   string
	calls  atomic.Uint64
	failed atomic.Uint64
}

func methods() map[string]*method {
	all := map[string]*method{}
	for name, r := range needs {
		all[name] = &method{right: r, name: short(name)}
	}
	return all
}

// enter lets a call in, or returns the reason against it. On sockets without TLS every caller may
// do everything.
func (s *Server) enter(ctx context.Context, fullMethod string) (*method, error) {
	m := s.methods[fullMethod]
	if m == nil {
		return nil, status.Errorf(codes.Unimplemented, "%s is not a method of this daemon", fullMethod)
	}
	m.calls.Add(1)
	p, ok := peer.FromContext(ctx)
	if !ok {
		return m, status.Error(codes.PermissionDenied, "nobody is calling")
	}
	info, secured := p.AuthInfo.(credentials.TLSInfo)
	if !secured {
		return m, nil
	}
	var role pki.Role
	if certs := info.State.PeerCertificates; len(certs) > 0 {
		role = pki.RoleOf(certs[0])
	}
	if may[role]&m.right == 0 {
		s.stats.refused.Add(1)
		why := fmt.Sprintf("a certificate with the role %q may not %s; %s takes one that may", role, m.right, m.name)
		s.o.Audit.Refuse(audit.Refusal{Reason: audit.ReasonRole, Detail: why, Key: pki.NameIn(&info.State),
			Client: p.Addr.String(), Port: auditedPort, Asked: m.name})
		return m, status.Error(codes.PermissionDenied, why)
	}
	return m, nil
}

func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	m, err := s.enter(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	out, err := next(ctx, req)
	err = s.leave(m, err)
	if m.right&(remove|operate) != 0 {
		s.acted(ctx, m, req, err)
	}
	return out, err
}

func (s *Server) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	m, err := s.enter(stream.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return s.leave(m, next(srv, stream))
}

// leave counts the end of a call, and gives errors a code.
func (s *Server) leave(m *method, err error) error {
	if err == nil {
		return nil
	}
	m.failed.Add(1)
	told := coded(err)
	var disk *store.DiskError
	if c := status.Code(told); c == codes.Internal || c == codes.DataLoss || errors.As(err, &disk) {
		s.log.Error("gRPC call failed", "method", m.name, "error", err)
	}
	return told
}

// tap bounds the time of transfers. The end of that time also ends reads and writes of the stream.
func (s *Server) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	if info.FullMethodName == pb.Kv_Put_FullMethodName || info.FullMethodName == pb.Kv_Get_FullMethodName {
		timed, cancel := context.WithTimeout(ctx, s.o.TransferTime)
		context.AfterFunc(ctx, cancel)
		return timed, nil
	}
	return ctx, nil
}

// caller names the caller, for the log.
func caller(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return "unknown"
	}
	switch a := p.AuthInfo.(type) {
	case process:
		return a.Peer.String()
	case credentials.TLSInfo:
		if certs := a.State.PeerCertificates; len(certs) > 0 {
			return fmt.Sprintf("%s at %s", certs[0].Subject.CommonName, p.Addr)
		}
	}
	return p.Addr.String()
}
