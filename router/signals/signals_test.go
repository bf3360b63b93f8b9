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
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/pki"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 30 * time.Second

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

func offer(s *push.Server, r push.Reading) {
	r.Node = "n"
	s.Offer([]push.Reading{r})
}

// following is a router's side; both channels have the latest only.
type following struct {
	stats Stats
	got   chan Reading
	lost  chan struct{}
}

func follow(t *testing.T, at string, c *tls.Config) *following {
	f := &following{got: make(chan Reading, 64), lost: make(chan struct{}, 64)}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		Follow(ctx, Options{
			Address: at, TLS: c, Stats: &f.stats, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Got: func(all []Reading) bool {
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

func (f *following) await(t *testing.T, what string, ok func(Reading) bool) Reading {
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

func isSM(pct float64) func(Reading) bool {
	return func(r Reading) bool { return r.SMPct == cluster.Known(pct) }
}

// TestFollow: what an agent tells arrives with its age, the end of a stream is told, and the next agent is found.
func TestFollow(t *testing.T) {
	s, at, end := serve(t, push.Options{}, "127.0.0.1:0")
	offer(s, push.Reading{At: time.Now(), SMPct: cluster.Known(10), SM: time.Now().Add(-time.Hour), Kernel: time.Now().Add(-time.Minute)})
	f := follow(t, at, nil)
	r := f.await(t, "the first reading", isSM(10))
	if age := time.Since(r.SM); age < time.Hour || age > time.Hour+patience || time.Since(r.Kernel) < time.Minute || !r.Power.IsZero() {
		t.Errorf("%+v", r)
	}
	if _, known := r.Watts.Get(); known {
		t.Error("what nobody has told is known")
	}
	offer(s, push.Reading{At: time.Now(), SMPct: cluster.Known(70)})
	f.await(t, "what has moved", isSM(70))
	end()
	select {
	case <-f.lost:
	case <-time.After(patience):
		t.Fatal("the end is not told")
	}
	s, _, _ = serve(t, push.Options{}, at)
	offer(s, push.Reading{At: time.Now(), SMPct: cluster.Known(30)})
	f.await(t, "the next agent", isSM(30))
	if f.stats.Readings.Load() < 3 || f.stats.Broken.Load() == 0 || f.stats.Malformed.Load() != 0 {
		t.Errorf("%d readings, %d breaks, %d malformed", f.stats.Readings.Load(), f.stats.Broken.Load(), f.stats.Malformed.Load())
	}
}

// TestOnlyRoutersFollow: where the front asks for certificates, so does the stream.
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
	offer(s, push.Reading{At: time.Now(), SMPct: cluster.Known(10)})
	client := func(role pki.Role) *tls.Config {
		c, err := pki.ClientConfig(pki.FilesIn(dir, role), "", pki.Agent)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	strangers := []*following{follow(t, at, client(pki.Etcd)), follow(t, at, nil), follow(t, at, &tls.Config{InsecureSkipVerify: true})}
	follow(t, at, client(pki.Router)).await(t, "the router's first", isSM(10))
	offer(s, push.Reading{At: time.Now(), SMPct: cluster.Known(20)})
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

// TestAbsurd: what cannot be is not known, and ages neither overflow nor lie in the future.
func TestAbsurd(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	u := func(v uint64) *uint64 { return &v }
	now := time.Now()
	r := readingOf(&pb.NodeLoad{
		SmPct: f(101), CpuPct: f(math.NaN()), RunqUsP99: f(math.Inf(1)), EngineWaitPct: f(2e6), SrttUsP50: f(-1), RetransPpm: f(2e6), PowerWatts: f(1e30), InFlight: f(1e18),
		KernelAgeUs: u(math.MaxUint64), SmAgeUs: u(0),
	}, now)
	for what, g := range map[string]cluster.Gauge{"sm": r.SMPct, "cpu": r.CPUPct, "runq": r.RunqUsP99, "engine wait": r.EngineWaitPct, "srtt": r.SRTTUsP50, "retrans": r.RetransPPM, "watts": r.Watts, "in flight": r.InFlight} {
		if v, known := g.Get(); known {
			t.Errorf("%s is %g", what, v)
		}
	}
	if !r.Kernel.Equal(now.Add(-longest)) || !r.SM.Equal(now) {
		t.Errorf("kernel %v, sm %v, now %v", r.Kernel, r.SM, now)
	}
	o := Options{Stats: &Stats{}, Got: func(all []Reading) bool { return len(all) > 0 && all[0].Node == "n" }}
	if o.take(&pb.FollowResponse{Nodes: []*pb.NodeLoad{{NodeId: "other"}}}, now, now) == nil || o.take(&pb.FollowResponse{Nodes: make([]*pb.NodeLoad, maxNodes+1)}, now, now) == nil {
		t.Error("taken")
	}
	var way time.Time
	var lag time.Duration
	o.Got = func(all []Reading) bool { way = all[0].SM; return true }
	o.Stats.Lag = func(d time.Duration) { lag = d }
	answer := &pb.FollowResponse{HeldUs: math.MaxUint64, Nodes: []*pb.NodeLoad{{NodeId: "n", SmAgeUs: u(7), UnmovedUs: u(20)}}}
	if err := o.take(answer, now.Add(-time.Second), now); err != nil || !way.Equal(now.Add(-7*time.Microsecond)) || lag != 20*time.Microsecond {
		t.Errorf("held for longer than anything takes: %v, lag %v, %v", way, lag, err)
	}
}
