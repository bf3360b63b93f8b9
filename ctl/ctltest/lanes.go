package ctltest

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// LaneServer answers like a daemon with RDMA.
type LaneServer struct {
	pb.UnimplementedKvServer
	Told *pb.PeersResponse // its peers and devices
}

func (s *LaneServer) Peers(context.Context, *pb.PeersRequest) (*pb.PeersResponse, error) {
	return s.Told, nil
}

func (s *LaneServer) ReleaseDevice(_ context.Context, r *pb.ReleaseDeviceRequest) (*pb.ReleaseDeviceResponse, error) {
	switch r.Device {
	case "rxe0":
	case "rxe1":
		return &pb.ReleaseDeviceResponse{WasNotOpen: true}, nil
	case "busy":
		return nil, status.Error(codes.DeadlineExceeded, "busy is not closed yet")
	default:
		return nil, status.Errorf(codes.NotFound, "this daemon does not use %s", r.Device)
	}
	return &pb.ReleaseDeviceResponse{Pairs: 3}, nil
}

// Serve serves srv on a socket until the test ends.
func Serve(t *testing.T, srv pb.KvServer) (sock string) {
	t.Helper()
	sock = filepath.Join(t.TempDir(), "kv.sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	pb.RegisterKvServer(g, srv)
	ended := make(chan error)
	go func() { ended <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		<-ended
	})
	return sock
}
