package rpc

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/listen/listentest"
	"github.com/cognitora/dataplane/internal/pki"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

func tcp(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestEveryMethodHasARight holds the table to the service.
func TestEveryMethodHasARight(t *testing.T) {
	n := 0
	service := "/" + pb.Kv_ServiceDesc.ServiceName + "/"
	for _, m := range pb.Kv_ServiceDesc.Methods {
		if needs[service+m.MethodName] == 0 {
			t.Errorf("%s needs no right", m.MethodName)
		}
		n++
	}
	for _, m := range pb.Kv_ServiceDesc.Streams {
		if needs[service+m.StreamName] == 0 {
			t.Errorf("%s needs no right", m.StreamName)
		}
		n++
	}
	if n != len(needs) {
		t.Errorf("%d methods, %d rights", n, len(needs))
	}
}

// TestRoles calls every method with every role's certificate.
func TestRoles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	id, err := pki.Load(pki.FilesIn(dir, pki.KVCached))
	if err != nil {
		t.Fatal(err)
	}
	f := start(t, Options{})
	l := tcp(t)
	serve(t, f.Server, l, id)
	for role, rights := range map[pki.Role]right{pki.Router: read, pki.Agent: read | write, pki.KVCached: read | write,
		pki.Ctl: read | write | remove | operate, pki.Etcd: 0} {
		config, err := pki.ClientConfig(pki.FilesIn(dir, role), "127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		config.NextProtos = []string{"h2"}
		c := dial(t, l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(config)))
		for name, need := range needs {
			code := status.Code(try(t, c, name))
			if denied := code == codes.PermissionDenied; denied != (rights&need == 0) {
				t.Errorf("%s calls %s: %v", role, short(name), code)
			}
			if code == codes.Unavailable {
				t.Errorf("%s calls %s: no connection", role, short(name))
			}
		}
	}
	if f.Server.Stats().Refused == 0 {
		t.Error("nothing is counted")
	}
	strangers := filepath.Join(t.TempDir(), "pki")
	if err := pki.Bootstrap(strangers, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	mixed := pki.FilesIn(strangers, pki.Ctl)
	mixed.CA = pki.FilesIn(dir, pki.Ctl).CA
	for name, files := range map[string]pki.Files{"another CA's": mixed, "none": {CA: mixed.CA}} {
		config, err := pki.ClientConfig(files, "127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		config.NextProtos = []string{"h2"}
		c := dial(t, l.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(config)))
		wantCode(t, name, try(t, c, pb.Kv_Stats_FullMethodName), codes.Unavailable)
	}
}

// try calls a method with an empty message, and ends streams.
func try(t *testing.T, c *grpc.ClientConn, name string) error {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := c.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, name)
	if err != nil {
		return err
	}
	_ = stream.SendMsg(new(emptypb.Empty))
	_ = stream.CloseSend()
	return stream.RecvMsg(new(emptypb.Empty))
}

func TestPlainTCP(t *testing.T) {
	f := start(t, Options{})
	if err := f.Serve(t.Context(), tcp(t), nil); !errors.Is(err, ErrPlain) {
		t.Errorf("loopback: %v", err)
	}
	f = start(t, Options{Insecure: true})
	all, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Serve(t.Context(), all, nil); !errors.Is(err, ErrPlain) {
		t.Errorf("all addresses: %v", err)
	}
	l := tcp(t)
	serve(t, f.Server, l, nil)
	c := pb.NewKvClient(dial(t, l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))
	ok[*pb.StatsResponse](t)(c.Stats(t.Context(), &pb.StatsRequest{}))
}

func TestUnknownMethod(t *testing.T) {
	f := start(t, Options{})
	c := dial(t, "unix://"+f.path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	wantCode(t, "unknown", try(t, c, "/cognitora.v1.Kv/Nothing"), codes.Unimplemented)
}

// TestTooManyConnections: connections beyond the bound are closed. A new one is accepted when one
// has ended.
func TestTooManyConnections(t *testing.T) {
	f := start(t, Options{MaxConnections: 2})
	ok[*pb.StatsResponse](t)(f.client.Stats(t.Context(), &pb.StatsRequest{}))
	c := dial(t, "unix://"+f.path, grpc.WithTransportCredentials(insecure.NewCredentials()))
	ok[*pb.StatsResponse](t)(pb.NewKvClient(c).Stats(t.Context(), &pb.StatsRequest{}))
	_, err := f.dial(t).Stats(t.Context(), &pb.StatsRequest{})
	wantCode(t, "one too many", err, codes.Unavailable)
	if n := f.Server.Stats().TurnedAway; n == 0 {
		t.Error("nobody was turned away")
	}
	c.Close()
	eventually(t, "there is room again", func() bool { return f.Server.Stats().Connections == 1 })
	ok[*pb.StatsResponse](t)(f.dial(t).Stats(t.Context(), &pb.StatsRequest{}, grpc.WaitForReady(true)))
}

func TestCaller(t *testing.T) {
	a, b, err := socketPair(t)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	defer b.Close()
	s := start(t, Options{}).Server
	_, info, err := peerCredentials{server: s}.ServerHandshake(&counted{Conn: a})
	if err != nil {
		t.Fatal(err)
	}
	p := info.(process)
	if int(p.PID) != os.Getpid() || int(p.UID) != os.Getuid() || int(p.GID) != os.Getgid() {
		t.Errorf("%+v", p)
	}
	ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: p})
	if text := caller(ctx); !strings.Contains(text, "uid ") {
		t.Error(text)
	}
	if _, _, err := (peerCredentials{server: s}).ServerHandshake(nil); err == nil {
		t.Error("something that is no Unix socket")
	}
}

// TestStrangers: a process that may connect by the file's mode is refused for its user and groups.
func TestStrangers(t *testing.T) {
	f := start(t, Options{})
	if os.Geteuid() != 0 {
		t.Skip("needs root, to connect as another user")
	}
	l, err := listen.OpenUnix(filepath.Join(t.TempDir(), "kv.sock"), 0o660, 4343)
	if err != nil {
		t.Fatal(err)
	}
	serve(t, f.Server, l, nil)
	stats := func(uid, gid int, groups ...uint32) error {
		conn := listentest.DialAs(t, l.Addr().String(), uid, gid, groups...)
		to := func(context.Context, string) (net.Conn, error) { return conn, nil }
		c := dial(t, "passthrough:///kv", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(to))
		_, err := pb.NewKvClient(c).Stats(t.Context(), &pb.StatsRequest{})
		return err
	}
	wantCode(t, "a stranger", stats(4242, 4242, 77), codes.Unavailable)
	if n := f.Server.Stats().Denied; n == 0 {
		t.Error("nobody was denied")
	}
	for _, err := range []error{stats(4242, 4343), stats(4242, 4242, 77, 4343)} {
		if err != nil {
			t.Error("a member of the group:", err)
		}
	}
}

func socketPair(t *testing.T) (a, b net.Conn, err error) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	if b, err = net.Dial("unix", l.Addr().String()); err != nil {
		return nil, nil, err
	}
	a, err = l.Accept()
	return a, b, err
}
