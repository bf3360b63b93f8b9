package push

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/internal/load"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// offer offers a GPU utilisation of the node.
func offer(s *Server, pct float64) (moved bool) {
	return s.Offer(time.Now(), []load.Reading{{Node: "n", Load: load.Load{
		GPU: load.GPU{At: load.Taken{Time: time.Now()}, SMPct: load.Known(pct)},
	}}})
}

// TestAnswers: the first answer comes as soon as there are readings. A change is sent 40 ms after
// the previous change. Without a change an answer comes after a second.
func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		offer(s, 5)
		s.Offer(time.Time{}, nil) // from here on no readings are made
		f := s.join()
		defer s.leave(f)
		ask := func() (*pb.NodeLoad, *pb.FollowResponse, time.Duration) {
			start := time.Now()
			if !f.wait(t.Context(), start) {
				t.Fatal("no answer")
			}
			a := f.answer(time.Now(), start)
			return a.Nodes[0], a, time.Since(start)
		}
		expect := func(what string, pct float64, unmoved *uint64, took time.Duration, coalesced uint64) {
			t.Helper()
			n, a, waited := ask()
			wrong := n.GetSmPct() != pct || (n.UnmovedUs == nil) != (unmoved == nil) ||
				n.GetUnmovedUs() != value(unmoved)
			if wrong || waited != took || a.HeldUs != uint64(took.Microseconds()) || a.Coalesced != coalesced {
				t.Errorf("%s: after %v: %v, held for %d us, %d coalesced", what, waited, n, a.HeldUs, a.Coalesced)
			}
		}
		us := func(d time.Duration) *uint64 { v := uint64(d.Microseconds()); return &v }
		go func() {
			time.Sleep(20 * time.Millisecond)
			offer(s, 10)
		}()
		expect("the first to follow, with the next readings", 10, nil, 20*time.Millisecond, 0)
		second := s.join()
		defer s.leave(second)
		if left, due := second.due(time.Now(), time.Now()); !due {
			t.Errorf("the second to follow waits for %v", left)
		}
		expect("nothing moves", 10, nil, time.Second, 0)
		offer(s, 10.5)
		expect("too little", 10.5, nil, time.Second, 0)
		offer(s, 10.5)
		go func() {
			time.Sleep(20 * time.Millisecond)
			offer(s, 20)
		}()
		expect("what moves after an answer that told of nothing, at once", 20, us(20*time.Millisecond),
			20*time.Millisecond, 0)
		go func() {
			time.Sleep(20 * time.Millisecond)
			offer(s, 25)
			time.Sleep(10 * time.Millisecond)
			offer(s, 30)
		}()
		expect("the later of two, 40 ms after what moved before", 30, us(40*time.Millisecond), 40*time.Millisecond, 1)
		go func() {
			time.Sleep(20 * time.Millisecond)
			offer(s, 90)
			time.Sleep(10 * time.Millisecond)
			offer(s, 30)
		}()
		expect("moved and back", 30, nil, time.Second, 1)
		s.Offer(time.Now(), []load.Reading{{Node: "n"}})
		n, _, _ := ask()
		if n.SmPct != nil || n.SmAgeUs != nil || n.KernelAgeUs != nil || n.InFlight != nil {
			t.Errorf("what is not known any more: %v", n)
		}
	})
}

func value(v *uint64) uint64 {
	if v == nil {
		return 0
	}
	return *v
}

// follow opens a stream to the server.
func follow(t *testing.T, at string) grpc.BidiStreamingClient[pb.FollowRequest, pb.FollowResponse] {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	stream, err := pb.NewLoadClient(conn).Follow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

// TestBounds: a stream too many is refused, a stream that ends makes room, and a router that never
// asks again occupies only its place.
func TestBounds(t *testing.T) {
	s := New(Options{Streams: 1})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	slow := follow(t, l.Addr().String())
	if err := slow.Send(&pb.FollowRequest{}); err != nil {
		t.Fatal(err)
	}
	if a, err := slow.Recv(); err != nil || len(a.Nodes) != 0 { // there were no readings
		t.Fatal(a, err)
	}
	for i := range 1000 { // the router does not ask again
		offer(s, float64(i%100))
	}
	if st := s.Stats(); st.Followers != 1 || st.Sent != 1 || st.Coalesced < 900 {
		t.Errorf("%+v", st)
	}
	second := follow(t, l.Addr().String())
	_ = second.Send(&pb.FollowRequest{})
	if _, err := second.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one too many: %v", err)
	}
	if err := slow.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := slow.Recv(); err == nil {
		t.Fatal("an answer that nobody asked for")
	}
	third := follow(t, l.Addr().String())
	if err := third.Send(&pb.FollowRequest{}); err != nil {
		t.Fatal(err)
	}
	if a, err := third.Recv(); err != nil || a.Nodes[0].NodeId != "n" || a.Nodes[0].GetSmPct() != 99 {
		t.Errorf("after one has left: %v, %v", a, err)
	}
	if st := s.Stats(); st.Refused != 1 {
		t.Errorf("%+v", st)
	}
}

// TestOfferAllocates: Offer allocates nothing, with or without a change.
func TestOfferAllocates(t *testing.T) {
	for _, nodes := range []int{1, 3} {
		s := New(Options{})
		f := s.join()
		f.answer(time.Now(), time.Now())
		all, pct := make([]load.Reading, nodes), 0.0
		offer := func() bool {
			for i := range all {
				all[i] = load.Reading{Node: "n", Load: load.Load{GPU: load.GPU{SMPct: load.Known(pct)}}}
			}
			return s.Offer(time.Now(), all)
		}
		if !offer() { // the router was told before anything was known
			t.Error("it has moved")
		}
		if n := testing.AllocsPerRun(100, func() {
			pct += 0.5
			offer()
		}); n != 0 {
			t.Errorf("of %d nodes: %g allocations", nodes, n)
		}
		f.answer(time.Now(), time.Now())
		pct += 0.5
		if offer() {
			t.Error("it has not moved")
		}
		s.leave(f)
	}
}
