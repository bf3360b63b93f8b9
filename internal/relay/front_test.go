package relay

import (
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
	"github.com/valyala/fasthttp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Goroutines of fasthttp: its cleaner of idle workers sleeps for up to 10 s after Shutdown, and
	// its clock never ends.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

// observed is a Follower that records its calls.
type observed struct {
	OneSource
	mu     sync.Mutex
	events []string
	body   []byte
	whole  bool
	drop   string
	tail   string
	done   chan Outcome
	cause  error
	sent   int64
	held   chan bool // gets what Held tells, if set
}

func newObserved() *observed {
	return &observed{tail: "data: {\"error\":1}\n\n", done: make(chan Outcome, 8)}
}

func (o *observed) Event(e sse.Event, out []byte, _ time.Time) ([]byte, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, string(e.Data))
	if o.drop != "" && string(e.Data) == o.drop {
		return out, false
	}
	return append(out, e.Raw...), false
}

func (o *observed) Held(held bool, _ time.Time) {
	if o.held != nil {
		o.held <- held
	}
}

func (o *observed) Body(piece []byte, whole bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.body, o.whole = append(o.body, piece...), whole
}

func (o *observed) End(out []byte, how Outcome, _ error) ([]byte, bool) {
	if how == Complete {
		return out, false
	}
	return append(out, o.tail...), false
}

func (o *observed) Done(outcome Outcome, sent int64, err error) {
	o.mu.Lock()
	o.cause, o.sent = err, sent
	o.mu.Unlock()
	o.done <- outcome
}

func (o *observed) wait(t *testing.T, want Outcome) {
	t.Helper()
	select {
	case got := <-o.done:
		if got != want {
			t.Fatalf("outcome %v (%v), want %v", got, o.cause, want)
		}
	case <-time.After(soon):
		t.Fatalf("no outcome, want %v", want)
	}
}

// front is a proxy for one upstream.
type front struct {
	addr     string
	pool     *Pool
	follower Follower
	follow   func(*Abort) Follower // makes the follower of each request, if set
	secure   *tls.Config           // clients must use TLS, if set
	slow     time.Duration
	idle     time.Duration
	total    time.Duration
	await    bool
	sift     *SiftOptions // Sift the answer first, if set
	replace  []byte       // hold this in place of the sifted body, if set
	aborts   chan *Abort  // gets the Abort of each request, if set
	errs     chan error   // gets the error of each relayed request, if set
	canceled atomic.Int32
	parking  *Parking // nil: no loops
	close    func()
}

// parkStreams makes fronts park their connections in loops.
var parkStreams = true

// TestWithoutLoops runs the tests of streams again, without loops.
func TestWithoutLoops(t *testing.T) {
	parkStreams = false
	defer func() { parkStreams = true }()
	for name, test := range map[string]func(*testing.T){
		"ClientLeaves": TestClientLeaves, "SlowReader": TestSlowReader, "Held": TestHeld,
		"StreamsTornDown": TestStreamsTornDown, "Stop": TestStop, "TruncatedReplies": TestTruncatedReplies,
		"EngineDiesMidStream": TestEngineDiesMidStream, "HugeEvents": TestHugeEvents,
		"EventsAreFiltered": TestEventsAreFiltered, "EventsUntilClose": TestEventsUntilClose,
		"StreamTimeouts": TestStreamTimeouts, "PipelinedRequests": TestPipelinedRequests,
	} {
		t.Run(name, test)
	}
}

func newFront(t testing.TB, target Target, setup func(*front)) *front {
	t.Helper()
	f := &front{pool: newPool(t, target), slow: soon}
	if setup != nil {
		setup(f)
	}
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = l.Addr().String()
	server := &fasthttp.Server{
		Handler:               func(ctx *fasthttp.RequestCtx) { f.serve(ctx, w) },
		NoDefaultServerHeader: true, NoDefaultDate: true,
		WriteTimeout: soon,
		Logger:       discardLogger{},
	}
	if parkStreams {
		f.parking = parkingIn(t, func(c net.Conn) { server.ServeConn(c) })
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		accepted := w.Listen(l, ListenOptions{SendBufferBytes: 32 << 10})
		if f.secure != nil {
			accepted = tls.NewListener(accepted, f.secure)
		}
		server.Serve(accepted)
	}()
	f.close = sync.OnceFunc(func() {
		if f.parking != nil {
			f.parking.Loops.Drain()
			defer f.parking.Loops.Close()
		}
		server.Shutdown()
		<-done
		w.Close()
		f.pool.Close()
	})
	t.Cleanup(f.close)
	return f
}

// parkingIn makes loops that return connections to serve.
func parkingIn(t testing.TB, serve func(net.Conn)) *Parking {
	t.Helper()
	loops, err := NewLoops(LoopsOptions{Panicked: func(p any) { t.Error("panic:", p) }})
	if err != nil {
		t.Fatal(err)
	}
	return &Parking{Loops: loops, Serve: serve, KeepAlive: soon}
}

type discardLogger struct{}

func (discardLogger) Printf(string, ...any) {}

func (f *front) serve(ctx *fasthttp.RequestCtx, w *Watcher) {
	var abort Abort
	stop := w.Watch(ctx.Conn(), func() {
		f.canceled.Add(1)
		abort.Cancel()
	})
	if f.aborts != nil {
		f.aborts <- &abort
	}
	err := f.relay(ctx, &abort, stop)
	if f.errs != nil {
		f.errs <- err
	}
	if err != nil {
		stop()
		ctx.Error(err.Error(), fasthttp.StatusBadGateway)
	}
}

func (f *front) relay(ctx *fasthttp.RequestCtx, abort *Abort, stop func()) error {
	e, err := f.pool.Send(&Request{
		Method: string(ctx.Method()), Path: "/", Body: [][]byte{ctx.PostBody()}, Abort: abort,
	}, soonest())
	if err != nil {
		return err
	}
	if err = e.ReadHead(soonest()); err == nil && f.await {
		err = e.AwaitBody(soonest())
	}
	if err == nil {
		ctx.SetStatusCode(e.Status())
		CopyHeaders(&ctx.Response.Header, e)
		e.SetIdleTimeout(f.idle)
		if f.total > 0 {
			e.SetReadDeadline(time.Now().Add(f.total))
		}
		if f.sift != nil {
			_, err = Sift(e, *f.sift)
		}
		if f.replace != nil {
			e.Hold(f.replace)
		}
		follower := f.follower
		if f.follow != nil {
			follower = f.follow(abort)
		}
		if err == nil {
			err = Reply(ctx, e, ReplyOptions{SlowReader: f.slow, Follower: follower, Stop: stop, Parking: f.parking})
		}
	}
	if err != nil {
		e.Close()
	}
	return err
}
