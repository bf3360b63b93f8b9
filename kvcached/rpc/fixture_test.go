package rpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/store"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a server on a Unix socket with a store of its own.
type fixture struct {
	*Server
	store     *store.Store
	residency *residency.Index
	client    pb.KvClient
	path      string
	stop      func() // ends serving and waits for it
}

func (f *fixture) dial(t testing.TB) pb.KvClient {
	t.Helper()
	return pb.NewKvClient(dial(t, "unix://"+f.path, grpc.WithTransportCredentials(insecure.NewCredentials())))
}

func dial(t testing.TB, target string, o ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	c, err := grpc.NewClient(target, append(o, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(4<<20)))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func start(t testing.TB, o Options) *fixture {
	t.Helper()
	return startWith(t, o, store.Options{})
}

func startWith(t testing.TB, o Options, so store.Options) *fixture {
	t.Helper()
	f := &fixture{residency: residency.New(residency.Options{Ring: 8192})}
	so.RAM, so.Logger = 256<<20, slog.New(slog.DiscardHandler)
	so.Changed = func(c store.Change) {
		f.residency.Apply(&residency.Change{Addr: c.Addr, Namespace: c.Namespace, Parent: c.Parent,
			Names: block.ParseNames(c.Attr), Tier: tiersOf(c.Tier), Present: c.Present})
	}
	s, err := store.Open(t.Context(), so)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	f.store = s
	ledger, err := purge.Open(t.Context(), purge.Options{Store: s})
	if err != nil {
		t.Fatal(err)
	}
	o.Store, o.Purge, o.Residency = s, ledger.Purge, f.residency
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if f.Server, err = New(o); err != nil {
		t.Fatal(err)
	}
	f.path = filepath.Join(t.TempDir(), "kv.sock")
	l, err := listen.OpenUnix(f.path, 0o660, -1)
	if err != nil {
		t.Fatal(err)
	}
	f.stop = serve(t, f.Server, l, nil)
	f.client = f.dial(t)
	return f
}

// serve serves until the returned function is called.
func serve(t testing.TB, s *Server, l net.Listener, id *pki.Identity) func() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l, id) }()
	stopped := false
	stop := func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

var llama = block.Namespace{Model: "llama", Revision: "r", DType: "bf16", Layout: "l", Tokens: 16, TP: 1,
	PP: 1}.String()

// chainOf is the digests of a prompt.
func chainOf(name string, blocks int) []block.Digest {
	d := block.Seed(name, "", "")
	out := make([]block.Digest, blocks)
	for i := range out {
		d = block.Next(d, &[block.Tokens]uint32{uint32(i)})
		out[i] = d
	}
	return out
}

// join writes digests one behind the other.
func join(digests ...block.Digest) (b []byte) {
	for i := range digests {
		b = append(b, digests[i][:]...)
	}
	return b
}

func header(d, parent block.Digest, length int) *pb.BlockHeader {
	return &pb.BlockHeader{Namespace: llama, Layer: block.LayerAll, Digest: d[:], Parent: bytesOf(parent),
		Length: uint32(length)}
}

// put sends a block through the client, in pieces.
func put(t testing.TB, c pb.KvClient, h *pb.PutHeader, payload []byte, piece int) (*pb.PutResponse, error) {
	t.Helper()
	stream, err := c.Put(t.Context())
	if err != nil {
		return nil, err
	}
	m := &pb.PutRequest{Header: h}
	for {
		n := min(piece, len(payload))
		m.Data = payload[:n]
		if err := stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if payload = payload[n:]; len(payload) == 0 {
			return stream.CloseAndRecv()
		}
		m.Header = nil
	}
}

// get receives a block through the client.
func get(t testing.TB, c pb.KvClient, r *pb.GetRequest) (*pb.BlockHeader, []byte, error) {
	t.Helper()
	stream, err := c.Get(t.Context(), r)
	if err != nil {
		return nil, nil, err
	}
	var head *pb.BlockHeader
	var data []byte
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return head, data, nil
		}
		if err != nil {
			return nil, nil, err
		}
		if m.Header != nil {
			head = m.Header
		}
		data = append(data, m.Data...)
	}
}

func wantCode(t testing.TB, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: %v (%v), want %v", what, got, err, want)
	}
}

func ok[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b[:min(n, 1<<18)] {
		b[i] = byte(i*7 + i>>8)
	}
	for done := 1 << 18; done < n; done *= 2 {
		copy(b[done:], b[:done])
	}
	return b
}

// eventually polls is until it returns true or a deadline is over.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-deadline.C:
			t.Fatalf("not in time: %s", what)
		case <-tick.C:
		}
	}
}
