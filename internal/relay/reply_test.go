package relay

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
	"github.com/valyala/fasthttp"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// fasthttp's cleaner of idle workers sleeps for up to 10 s after Shutdown;
	// its clock runs for ever.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
}

// observed is an Observer that records.
type observed struct {
	mu     sync.Mutex
	events []string
	body   []byte
	whole  bool
	drop   string
	tail   string
	done   chan Outcome
	cause  error
}

func newObserved() *observed {
	return &observed{tail: "data: {\"error\":1}\n\n", done: make(chan Outcome, 8)}
}

func (o *observed) Event(e sse.Event) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.events = append(o.events, string(e.Data))
	return o.drop == "" || string(e.Data) != o.drop
}

func (o *observed) Body(piece []byte, whole bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.body, o.whole = append(o.body, piece...), whole
}

func (o *observed) Tail(dst []byte, _ Outcome, _ error) []byte { return append(dst, o.tail...) }

func (o *observed) Done(outcome Outcome, err error) {
	o.mu.Lock()
	o.cause = err
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

// front is a proxy before one upstream.
type front struct {
	addr     string
	pool     *Pool
	observer Observer
	slow     time.Duration
	idle     time.Duration
	total    time.Duration
	await    bool
	canceled atomic.Int32
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
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(w.Listen(l, ListenOptions{SendBufferBytes: 32 << 10}))
	}()
	t.Cleanup(func() {
		server.Shutdown()
		<-done
		w.Close()
	})
	return f
}

type discardLogger struct{}

func (discardLogger) Printf(string, ...any) {}

func (f *front) serve(ctx *fasthttp.RequestCtx, w *Watcher) {
	var abort Abort
	stop := w.Watch(ctx.Conn(), func() {
		f.canceled.Add(1)
		abort.Cancel()
	})
	if err := f.relay(ctx, &abort, stop); err != nil {
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
		err = Reply(ctx, e, ReplyOptions{SlowReader: f.slow, Observer: f.observer, Stop: stop})
	}
	if err != nil {
		e.Close()
	}
	return err
}

const (
	sseHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
	request = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
)

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }

// get does one request with net/http and returns what came and how it ended.
func get(t *testing.T, addr string) (status int, body string, err error) {
	t.Helper()
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: soon}
	r, err := client.Post("http://"+addr+"/", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return r.StatusCode, string(b), err
}

func TestReplyBodies(t *testing.T) {
	for _, c := range []struct {
		name   string
		size   int
		framed func(body string) string
	}{
		{"length", 10, withLength},
		{"empty", 0, withLength},
		{"at limit", wholeBodyBytes, withLength},
		{"long", 3 << 20, withLength},
		{"chunked", 10, withChunks},
		{"chunked long", 3 << 20, withChunks},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := strings.Repeat("0123456789abcdef", c.size/16+1)[:c.size]
			response := c.framed(body)
			o := newObserved()
			f := newFront(t, rawServer(t, "tcp", answering(response)), func(f *front) { f.observer = o })
			for range 2 {
				o.body = nil
				status, got, err := get(t, f.addr)
				if status != 200 || got != body || err != nil {
					t.Fatalf("%d, %d bytes, %v", status, len(got), err)
				}
				o.wait(t, Complete)
				if string(o.body) != body || o.whole != (c.size <= wholeBodyBytes) {
					t.Fatalf("observed %d bytes, whole %v", len(o.body), o.whole)
				}
			}
			if idle, open := f.pool.Stats(); idle != 1 || open != 1 {
				t.Fatalf("%d idle of %d connections", idle, open)
			}
		})
	}
}

func withLength(body string) string {
	return fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
}

func withChunks(body string) string {
	out := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for len(body) > 0 {
		n := min(len(body), 70_000)
		out, body = out+chunk(body[:n]), body[n:]
	}
	return out + "0\r\n\r\n"
}

// once answers one request on a connection and closes it.
func once(response string) func(net.Conn, *bufio.Reader) {
	return func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		io.WriteString(c, response)
	}
}

// TestTruncatedReplies: a client never sees a clean end that is none.
func TestTruncatedReplies(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		response string
		status   int
	}{
		"short":        {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", 502},
		"short chunks": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", 502},
		"long":         {"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + long, 200},
		"long chunks":  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(long), 200},
		"events":       {sseHead + chunk("data: a\n\n"), 200},
	} {
		o := newObserved()
		o.tail = ""
		f := newFront(t, rawServer(t, "tcp", once(c.response)), func(f *front) { f.observer = o })
		status, _, err := get(t, f.addr)
		if status != c.status || status == 200 && !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%s: %d %v", name, status, err)
		}
		if status == 200 {
			o.wait(t, UpstreamFailed)
		}
	}
}

// TestEngineDiesMidStream: whole events, then the error event, then a proper
// end, on a connection that goes on being used.
func TestEngineDiesMidStream(t *testing.T) {
	o := newObserved()
	f := newFront(t, rawServer(t, "tcp", once(sseHead+chunk("data: a\n\nda")+chunk("ta: b\n\ndata: hal"))),
		func(f *front) { f.observer = o })
	c := dial(t, f.addr)
	for range 2 {
		io.WriteString(c.Conn, request)
		if body := c.readChunked(t); body != "data: a\n\ndata: b\n\n"+o.tail {
			t.Fatalf("%q", body)
		}
		o.wait(t, UpstreamFailed)
	}
}

func TestEventsAreFiltered(t *testing.T) {
	o := newObserved()
	o.drop = "usage"
	stream := sseHead + chunk("data: a\n\n: ping\n\ndata: usa") + chunk("ge\n\ndata: [DONE]\n\n") + "0\r\n\r\n"
	for _, await := range []bool{false, true} {
		f := newFront(t, rawServer(t, "tcp", answering(stream)), func(f *front) { f.observer, f.await = o, await })
		status, body, err := get(t, f.addr)
		if status != 200 || body != "data: a\n\n: ping\n\ndata: [DONE]\n\n" || err != nil {
			t.Fatalf("%d %q %v", status, body, err)
		}
		o.wait(t, Complete)
	}
	if got := strings.Join(o.events, " "); got != "a usage [DONE] a usage [DONE]" {
		t.Fatal(got)
	}
}

// TestHugeEvents: longer than every buffer, and longer than what is inspected.
func TestHugeEvents(t *testing.T) {
	for _, size := range []int{100 << 10, sse.MaxEventBytes + 100} {
		event := "data: " + strings.Repeat("x", size) + "\n\n"
		o := newObserved()
		f := newFront(t, rawServer(t, "tcp", answering(sseHead+chunk(event)+chunk("data: b\n\n")+"0\r\n\r\n")),
			func(f *front) { f.observer, f.await = o, true })
		_, body, err := get(t, f.addr)
		if body != event+"data: b\n\n" || err != nil {
			t.Fatalf("%d bytes, %v", len(body), err)
		}
		o.wait(t, Complete)
	}
}

// TestFirstEventIsAwaited: comments do not count, a stream without an event is
// a failure that can still be answered otherwise.
func TestFirstEventIsAwaited(t *testing.T) {
	f := newFront(t, rawServer(t, "tcp", once(sseHead+chunk(": ping\n\n")+"0\r\n\r\n")),
		func(f *front) { f.await = true })
	if status, _, _ := get(t, f.addr); status != 502 {
		t.Fatal(status)
	}
}

// client is a raw client connection.
type client struct {
	net.Conn
	r *bufio.Reader
}

func dial(t testing.TB, addr string) *client {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(soonest())
	return &client{c, bufio.NewReader(c)}
}

// readChunked reads one chunked response to its proper end.
func (c *client) readChunked(t *testing.T) string {
	t.Helper()
	r, err := http.ReadResponse(c.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestClientLeaves: whatever the exchange is waiting for, the upstream sees
// its connection closed within 100 ms of the client's departure.
func TestClientLeaves(t *testing.T) {
	for name, response := range map[string]string{
		"before head":   "",
		"silent stream": sseHead + chunk("data: a\n\n"),
		"short body":    "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
		"long body":     "HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\nhello",
	} {
		for _, how := range []string{"close", "reset", "half-close"} {
			t.Run(name+" "+how, func(t *testing.T) {
				started, gone := make(chan struct{}), make(chan time.Time)
				o := newObserved()
				f := newFront(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
					readRequest(r)
					io.WriteString(c, response)
					close(started)
					io.Copy(io.Discard, r)
					gone <- time.Now()
				}), func(f *front) { f.observer = o })
				c := dial(t, f.addr)
				io.WriteString(c.Conn, request)
				<-started
				streamed := strings.HasPrefix(name, "silent") || strings.HasPrefix(name, "long")
				if streamed {
					c.r.Peek(1)
				}
				left := time.Now()
				switch how {
				case "reset":
					c.Conn.(*net.TCPConn).SetLinger(0)
					c.Close()
				case "close":
					c.Close()
				case "half-close":
					c.Conn.(*net.TCPConn).CloseWrite()
				}
				if took := (<-gone).Sub(left); took > 100*time.Millisecond {
					t.Fatalf("upstream closed after %v", took)
				}
				if streamed {
					o.wait(t, ClientGone)
				}
			})
		}
	}
}

// TestSlowReader: a client that does not read is cut at its bound, while
// another one gets everything.
func TestSlowReader(t *testing.T) {
	piece := chunk("data: " + strings.Repeat("x", 4000) + "\n\n")
	o := newObserved()
	f := newFront(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		io.WriteString(c, sseHead)
		for {
			if _, err := io.WriteString(c, piece); err != nil {
				return
			}
		}
	}), func(f *front) { f.observer, f.slow = o, 300*time.Millisecond })
	slow, good := dial(t, f.addr), dial(t, f.addr)
	slow.Conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	start := time.Now()
	io.WriteString(slow.Conn, request)
	io.WriteString(good.Conn, request)
	read := make(chan int64)
	go func() {
		n, _ := io.CopyN(io.Discard, good.r, 64<<20)
		read <- n
	}()
	o.wait(t, SlowReader)
	if took := time.Since(start); took > 2*time.Second {
		t.Fatalf("cut after %v", took)
	}
	if n := <-read; n != 64<<20 {
		t.Fatalf("the other client got %d bytes", n)
	}
	good.Close()
	o.wait(t, ClientGone)
}

// TestHTTP10Client gets the whole body with its length, not chunks.
func TestHTTP10Client(t *testing.T) {
	stream := sseHead + chunk("data: a\n\nda") + chunk("ta: [DONE]\n\n") + "0\r\n\r\n"
	f := newFront(t, rawServer(t, "tcp", answering(stream)), nil)
	c := dial(t, f.addr)
	io.WriteString(c.Conn, "GET / HTTP/1.0\r\n\r\n")
	b, err := io.ReadAll(c.r)
	if head, body, _ := bytes.Cut(b, []byte("\r\n\r\n")); err != nil ||
		string(body) != "data: a\n\ndata: [DONE]\n\n" || !bytes.Contains(head, []byte("Content-Length: 23")) {
		t.Fatalf("%q %v", b, err)
	}
}

// TestHeadRequest has a length and no body.
func TestHeadRequest(t *testing.T) {
	o := newObserved()
	f := newFront(t, rawServer(t, "tcp", answering("HTTP/1.1 200 OK\r\nX: y\r\n\r\n")), func(f *front) { f.observer = o })
	c := dial(t, f.addr)
	for range 2 {
		io.WriteString(c.Conn, "HEAD / HTTP/1.1\r\nHost: x\r\n\r\n")
		r, err := http.ReadResponse(c.r, &http.Request{Method: "HEAD"})
		if err != nil || r.StatusCode != 200 || r.Header.Get("X") != "y" {
			t.Fatal(r, err)
		}
		o.wait(t, Complete)
	}
}

// TestPipelinedRequests are answered one after the other.
func TestPipelinedRequests(t *testing.T) {
	f := newFront(t, rawServer(t, "tcp", answering(sseHead+chunk("data: a\n\n")+"0\r\n\r\n")), nil)
	c := dial(t, f.addr)
	io.WriteString(c.Conn, request+request+request)
	for range 3 {
		if body := c.readChunked(t); body != "data: a\n\n" {
			t.Fatalf("%q", body)
		}
	}
	if f.canceled.Load() != 0 {
		t.Fatal("the client was taken for gone")
	}
}

// TestStreamTimeouts: the client is told, whichever timeout it was.
func TestStreamTimeouts(t *testing.T) {
	for want, setup := range map[Outcome]func(*front){
		IdleTimeout:  func(f *front) { f.idle = 50 * time.Millisecond },
		TotalTimeout: func(f *front) { f.idle, f.total = soon, 50*time.Millisecond },
	} {
		o := newObserved()
		f := newFront(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
			readRequest(r)
			io.WriteString(c, sseHead+chunk("data: a\n\n"))
			io.Copy(io.Discard, r)
		}), func(f *front) {
			f.observer = o
			setup(f)
		})
		_, body, err := get(t, f.addr)
		if body != "data: a\n\n"+o.tail || err != nil {
			t.Fatalf("%v: %q %v", want, body, err)
		}
		o.wait(t, want)
	}
}

// TestStreamsTornDown opens many streams at once and ends each in one of the
// ways that there are, at random: every one is accounted for.
func TestStreamsTornDown(t *testing.T) {
	const streams = 200
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	o := newObserved()
	o.done = make(chan Outcome, streams)
	f := newFront(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		for {
			_, body, err := readRequest(r)
			if err != nil {
				return
			}
			events := int(body[0])
			io.WriteString(c, sseHead+strings.Repeat(chunk("data: a\n\n"), events))
			if body[1] == 'x' { // die
				return
			}
			io.WriteString(c, "0\r\n\r\n")
		}
	}), func(f *front) { f.observer = o })
	var clients sync.WaitGroup
	for range streams {
		events, die, early := byte(1+random.IntN(100)), "x-"[random.IntN(2)], random.IntN(2) == 0
		c := dial(t, f.addr)
		clients.Go(func() {
			fmt.Fprintf(c.Conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n%c%c", events, die)
			c.r.Peek(1)
			if early {
				c.Close()
				return
			}
			want := strings.Repeat("data: a\n\n", int(events))
			if die == 'x' {
				want += o.tail
			}
			if r, err := http.ReadResponse(c.r, nil); err != nil {
				t.Error(err)
			} else if body, err := io.ReadAll(r.Body); err != nil || string(body) != want {
				t.Errorf("%d bytes of %d: %v", len(body), len(want), err)
			}
		})
	}
	clients.Wait()
	for range streams {
		select {
		case <-o.done:
		case <-time.After(soon):
			t.Fatal("a stream has not ended")
		}
	}
	if idle, open := f.pool.Stats(); idle != open {
		t.Fatalf("%d idle of %d connections", idle, open)
	}
}
