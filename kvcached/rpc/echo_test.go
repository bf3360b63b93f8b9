package rpc

import (
	"context"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cognitora/dataplane/kv/block"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// echoServer is a bare grpc-go server whose one method answers every message with the same bytes.
func echoServer(t *testing.T, answer int) *grpc.ClientConn {
	response := wrapperspb.Bytes(make([]byte, answer))
	desc := &grpc.ServiceDesc{ServiceName: "echo", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Echo",
		Handler: func(_ any, _ context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return response, dec(new(wrapperspb.BytesValue))
		},
	}}}
	path := filepath.Join(t.TempDir(), "echo.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	g.RegisterService(desc, struct{}{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(l)
	}()
	t.Cleanup(func() {
		g.Stop()
		<-done
	})
	return dial(t, "unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// TestAgainstEcho measures lookups beside a bare grpc-go echo of equal message sizes on a Unix
// socket: CGN_BENCH=1.
func TestAgainstEcho(t *testing.T) {
	if os.Getenv("CGN_BENCH") == "" {
		t.Skip("a measurement: run it with CGN_BENCH=1 on a quiet machine")
	}
	f := start(t, Options{})
	chain := chainOf("p", 1000)
	for i, d := range chain {
		if i%10 != 9 {
			ok[*pb.PutResponse](t)(put(t, f.client, &pb.PutHeader{Block: header(d, block.Digest{}, 100_000)},
				pattern(100_000), 1<<20))
		}
	}
	ok[*pb.ReportResponse](t)(f.client.Report(t.Context(), &pb.ReportRequest{Engine: "node-1", Epoch: 1, Fresh: true,
		Events: []*pb.ReportEvent{
			{Kind: pb.ReportEvent_KIND_STORED, Namespace: llama, Medium: pb.Tier_TIER_DEVICE, Digests: join(chain[:500]...)},
		}}))
	one := &pb.LookupRequest{Namespace: llama, Layer: block.LayerAll, Digest: chain[3][:]}
	many := &pb.BatchLookupRequest{Namespace: llama, Layer: block.LayerAll, Digests: join(chain...)}
	ctx := t.Context()
	lookup := func() error { _, err := f.client.Lookup(ctx, one); return err }
	lookups := func() error { _, err := f.client.BatchLookup(ctx, many); return err }
	for _, c := range []struct {
		name     string
		request  proto.Message
		response proto.Message
		call     func() error
		target   float64
		calls    int
	}{
		{"Lookup", one, ok[*pb.LookupResponse](t)(f.client.Lookup(ctx, one)), lookup, 1.2, 1000},
		{"BatchLookup of 1,000", many, ok[*pb.BatchLookupResponse](t)(f.client.BatchLookup(ctx, many)), lookups, 3, 300},
	} {
		echo := echoServer(t, proto.Size(c.response))
		message := wrapperspb.Bytes(make([]byte, proto.Size(c.request)))
		bare := func() error { return echo.Invoke(ctx, "/echo/Echo", message, new(wrapperspb.BytesValue)) }
		var ratios, ours, theirs []float64
		for i := range 41 {
			a, b := c.call, bare
			if i%2 == 1 { // who goes first
				a, b = b, a
			}
			x, y := perCall(t, a, c.calls), perCall(t, b, c.calls)
			if i%2 == 1 {
				x, y = y, x
			}
			if i == 0 {
				continue // warming up
			}
			ratios, ours, theirs = append(ratios, x/y), append(ours, x), append(theirs, y)
		}
		low, median, high := interval(ratios)
		_, us, _ := interval(ours)
		_, them, _ := interval(theirs)
		t.Logf("%s: %d and %d bytes, %.1f us, echo %.1f us; median ratio %.3f, 95%% interval %.3f to %.3f, target "+
			"%.1f, %d pairs",
			c.name, proto.Size(c.request), proto.Size(c.response), us, them, median, low, high, c.target, len(ratios))
		if low > c.target {
			t.Errorf("%s misses its target", c.name)
		}
	}
}

// perCall is the microseconds that a call takes.
func perCall(t *testing.T, call func() error, calls int) float64 {
	began := time.Now()
	for range calls {
		if err := call(); err != nil {
			t.Fatal(err)
		}
	}
	return float64(time.Since(began).Microseconds()) / float64(calls)
}

// interval is the median with the 95 % interval that the order of the values gives.
func interval(v []float64) (low, median, high float64) {
	slices.Sort(v)
	n := float64(len(v))
	half := 0.98 * math.Sqrt(n)
	at := func(i float64) float64 { return v[int(min(max(i, 0), n-1))] }
	return at(math.Floor(n/2 - half)), at(n / 2), at(math.Ceil(n/2 + half))
}
