package signals

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"math"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/agent/push"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/internal/pki"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// serve runs an agent's side until the returned function is called.
func serve(t *testing.T, o push.Options, at string) (s *push.Server, address string, end func()) {
	t.Helper()
	l, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	s = push.New(o)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	end = func() {
		if stop(); done != nil {
			if err := <-done; err != nil {
				t.Error(err)
			}
			done = nil
		}
	}
	t.Cleanup(end)
	return s, l.Addr().String(), end
}

// offer publishes the node's GPU use, and more load.
func offer(s *push.Server, pct float64, more load.Load) {
	more.GPU.SMPct = load.Known(pct)
	s.Offer(time.Now(), []load.Reading{{Node: "n", Load: more}})
}

func ago(d time.Duration) load.Taken { return load.Taken{Time: time.Now().Add(-d)} }

// following is a router's side. Both channels hold only the latest value.
type following struct {
	stats Stats
	got   chan load.Reading
	lost  chan struct{}
}

func follow(t *testing.T, at string, c *tls.Config) *following {
	f := &following{got: make(chan load.Reading, 64), lost: make(chan struct{}, 64)}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Follow(ctx, Options{
			Address: at, TLS: c, Stats: &f.stats, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Got: func(all []load.Reading) bool {
				for _, r := range all {
					select {
					case f.got <- r:
					default:
					}
				}
				return true
			},
			Lost: func() { f.lost <- struct{}{} },
		})
	}()
	t.Cleanup(func() { stop(); <-done })
	return f
}

func (f *following) await(t *testing.T, what string, ok func(load.Reading) bool) load.Reading {
	t.Helper()
	for limit := time.After(patience); ; {
		select {
		case r := <-f.got:
			if ok(r) {
				return r
			}
		case <-limit:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func isSM(pct float64) func(load.Reading) bool {
	return func(r load.Reading) bool { return r.Load.SMPct == load.Known(pct) }
}

// TestFollow checks that readings arrive with their ages, that the end of a stream is reported, and
// that the next agent is found.
func TestFollow(t *testing.T) {
	s, at, end := serve(t, push.Options{}, "127.0.0.1:0")
	offer(s, 10, load.Load{GPU: load.GPU{At: ago(time.Hour)}, Kernel: load.Kernel{At: ago(time.Minute)}})
	f := follow(t, at, nil)
	r := f.await(t, "the first reading", isSM(10))
	age := time.Since(r.Load.GPU.At.Time)
	if age < time.Hour || time.Since(r.Load.Kernel.At.Time) < time.Minute || !r.Load.Power.At.IsZero() {
		t.Errorf("%+v", r)
	}
	if _, known := r.Load.Watts.Get(); known {
		t.Error("what nobody has told is known")
	}
	offer(s, 70, load.Load{})
	f.await(t, "what has moved", isSM(70))
	end()
	select {
	case <-f.lost:
	case <-time.After(patience):
		t.Fatal("the end is not told")
	}
	s, _, _ = serve(t, push.Options{}, at)
	offer(s, 30, load.Load{})
	f.await(t, "the next agent", isSM(30))
	if f.stats.Readings.Load() < 3 || f.stats.Broken.Load() == 0 || f.stats.Malformed.Load() != 0 {
		t.Errorf("%d readings, %d breaks, %d malformed", f.stats.Readings.Load(), f.stats.Broken.Load(),
			f.stats.Malformed.Load())
	}
}

// TestOnlyRoutersFollow checks that the stream requires a certificate if the front does.
func TestOnlyRoutersFollow(t *testing.T) {
	dir := t.TempDir()
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	id, err := pki.Load(pki.FilesIn(dir, pki.Agent))
	if err != nil {
		t.Fatal(err)
	}
	s, at, _ := serve(t, push.Options{Identity: id, Roles: []pki.Role{pki.Router, pki.Ctl}}, "127.0.0.1:0")
	offer(s, 10, load.Load{})
	client := func(role pki.Role) *tls.Config {
		c, err := pki.ClientConfig(pki.FilesIn(dir, role), "", pki.Agent)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	strangers := []*following{follow(t, at, client(pki.Etcd)), follow(t, at, nil),
		follow(t, at, &tls.Config{InsecureSkipVerify: true})}
	follow(t, at, client(pki.Router)).await(t, "the router's first", isSM(10))
	offer(s, 20, load.Load{})
	for i, f := range strangers {
		select {
		case r := <-f.got:
			t.Errorf("stranger %d was told %+v", i, r)
		default:
		}
	}
	if st := s.Stats(); st.Followers != 1 {
		t.Errorf("%+v", st)
	}
}

// TestTake checks that an answer for no node, or for too many, is refused. No claim of an agent may
// make the round trip longer than the router's wait.
func TestTake(t *testing.T) {
	u := func(v uint64) *uint64 { return &v }
	now := time.Now()
	o := Options{Stats: &Stats{}, Got: func(all []load.Reading) bool { return len(all) > 0 && all[0].Node == "n" }}
	for _, nodes := range [][]*pb.NodeLoad{{{NodeId: "other"}}, make([]*pb.NodeLoad, maxNodes+1)} {
		if o.take(&pb.FollowResponse{Nodes: nodes}, now, now) == nil {
			t.Errorf("an answer of %d nodes is taken", len(nodes))
		}
	}
	var at time.Time
	var lag time.Duration
	o.Got = func(all []load.Reading) bool { at = all[0].Load.GPU.At.Time; return true }
	o.Stats.Lag = func(d time.Duration) { lag = d }
	answer := &pb.FollowResponse{HeldUs: math.MaxUint64,
		Nodes: []*pb.NodeLoad{{NodeId: "n", SmAgeUs: u(7), UnmovedUs: u(20)}}}
	err := o.take(answer, now.Add(-time.Second), now)
	if err != nil || !at.Equal(now.Add(-7*time.Microsecond)) || lag != 20*time.Microsecond {
		t.Errorf("held for longer than anything takes: %v, lag %v, %v", at, lag, err)
	}
}
