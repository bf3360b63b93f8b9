package relay

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
	"golang.org/x/sys/unix"
)

// taken waits until the other end of c has read all bytes written to c, or is closed. The socket c
// must be a socket of this process.
func taken(t testing.TB, c net.Conn) {
	t.Helper()
	from, to := c.RemoteAddr().(*net.TCPAddr).Port, c.LocalAddr().(*net.TCPAddr).Port
	for end := soonest(); unread(from, to) > 0; {
		if time.Now().After(end) {
			t.Error("what was written has not been read")
			return
		}
	}
}

// unread returns how many bytes wait in this process's socket between these ports.
func unread(local, remote int) int {
	for fd := range 512 {
		here, err := unix.Getsockname(fd)
		if a, ok := here.(*unix.SockaddrInet4); err != nil || !ok || a.Port != local {
			continue
		}
		there, err := unix.Getpeername(fd)
		if a, ok := there.(*unix.SockaddrInet4); err == nil && ok && a.Port == remote {
			n, _ := unix.IoctlGetInt(fd, unix.SIOCINQ)
			return n
		}
	}
	return 0
}

// inParts writes response in parts, cut before the bytes at, at+step, and so on. inParts writes a
// part only after the previous part has been read.
func inParts(t testing.TB, c net.Conn, response string, at, step int) error {
	for n := at; len(response) > 0; n = step {
		n = min(n, len(response))
		if _, err := io.WriteString(c, response[:n]); err != nil {
			return err
		}
		response = response[n:]
		taken(t, c)
	}
	return nil
}

// awaitLent waits until this many streams are in loops.
func (f *front) awaitLent(t testing.TB, streams int64) {
	t.Helper()
	for end := soonest(); f.parking.Loops.busy.Load() != streams; {
		if time.Now().After(end) {
			t.Fatalf("%d streams in the loops, want %d", f.parking.Loops.busy.Load(), streams)
		}
		time.Sleep(time.Millisecond)
	}
}

var cutResponses = map[string]struct{ response, want string }{
	"LF": {sseHead + chunk("data: a\n\n") + chunk("data: b\n\n: x\n\n") + chunk("data: [DONE]\n\n") + lastChunk,
		"data: a\n\ndata: b\n\n: x\n\ndata: [DONE]\n\n"},
	"CRLF": {sseHead + chunk("data: a\r\n\r\nda") + chunk("ta: b\r\ndata: c\r\n\r") + chunk("\n") + lastChunk,
		"data: a\r\n\r\ndata: b\r\ndata: c\r\n\r\n"},
	"trailers": {sseHead + "9;x=\"y\"\r\ndata: a\n\n\r\n9\ndata: b\n\n\n0;z\r\nX-Sum: 1\r\nX-More: 2\r\n\r\n",
		"data: a\n\ndata: b\n\n"},
	"length": {"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 18\r\n\r\ndata: a\n\ndata: b\n\n",
		"data: a\n\ndata: b\n\n"},
	"broken": {sseHead + chunk("data: a\n\n") + "zz\r\n", "data: a\n\n" + newObserved().tail},
}

// TestCutAnywhere: a response in two parts, cut at every byte, is relayed completely.
func TestCutAnywhere(t *testing.T) {
	for name, c := range cutResponses {
		t.Run(name, func(t *testing.T) {
			at := make(chan int, 1)
			o := newObserved()
			f := newFront(t, rawServer(t, "tcp", func(c2 net.Conn, r *bufio.Reader) {
				for {
					if _, _, err := readRequest(r); err != nil {
						return
					}
					inParts(t, c2, c.response, <-at, len(c.response))
				}
			}), func(f *front) { f.follower = o })
			client := dial(t, f.addr)
			for n := 1; n < len(c.response); n++ {
				f.await = n%2 == 0
				at <- n
				client.SetDeadline(soonest())
				io.WriteString(client.Conn, request)
				if body := client.readChunked(t); body != c.want {
					t.Fatalf("cut at %d: %q", n, body)
				}
				<-o.done
			}
		})
	}
}

// TestByteByByte: two streams on one connection, sent byte by byte, with and without TLS towards
// the upstream.
func TestByteByByte(t *testing.T) {
	config, roots := certificate(t)
	for name, c := range cutResponses {
		for _, secure := range []bool{false, true} {
			serve := func(c2 net.Conn, r *bufio.Reader) {
				for {
					if _, _, err := readRequest(r); err != nil {
						return
					}
					inParts(t, c2, c.response, 1, 1)
				}
			}
			if secure {
				serve = dripping(t, config, c.response)
			}
			target := rawServer(t, "tcp", serve)
			if secure {
				target.TLS = &tls.Config{RootCAs: roots}
			}
			o := newObserved()
			f := newFront(t, target, func(f *front) { f.follower = o })
			client := dial(t, f.addr)
			for range 2 {
				client.SetDeadline(soonest())
				io.WriteString(client.Conn, request)
				if body := client.readChunked(t); body != c.want {
					t.Fatalf("%s, TLS %v: %q", name, secure, body)
				}
				<-o.done
			}
			if idle, open := f.pool.Stats(); name != "broken" && (idle != 1 || open != 1) {
				t.Fatalf("%s, TLS %v: %d idle of %d connections", name, secure, idle, open)
			}
		}
	}
}

// drip writes to a connection in pieces of 3 bytes.
type drip struct {
	net.Conn
	t    testing.TB
	slow bool
}

func (d *drip) Write(p []byte) (n int, err error) {
	if !d.slow {
		return d.Conn.Write(p)
	}
	for n < len(p) && err == nil {
		var m int
		m, err = d.Conn.Write(p[n:min(n+3, len(p))])
		n += m
		taken(d.t, d.Conn)
	}
	return n, err
}

// dripping answers over TLS. The TLS records arrive in small pieces.
func dripping(t testing.TB, config *tls.Config, response string) func(net.Conn, *bufio.Reader) {
	return func(c net.Conn, _ *bufio.Reader) {
		d := &drip{Conn: c, t: t}
		secure := tls.Server(d, config)
		if secure.Handshake() != nil {
			return
		}
		r := bufio.NewReader(secure)
		for {
			if _, _, err := readRequest(r); err != nil {
				return
			}
			head, rest := response[:len(response)/2], response[len(response)/2:]
			d.slow = true
			io.WriteString(secure, head[:len(head)/2])
			io.WriteString(secure, head[len(head)/2:])
			io.WriteString(secure, rest)
			d.slow = false
		}
	}
}

// stepping answers each request with a stream, and writes a part for each value of parts. An empty
// part closes the connection.
func stepping(parts <-chan string) func(net.Conn, *bufio.Reader) {
	return func(c net.Conn, r *bufio.Reader) {
		for {
			if _, _, err := readRequest(r); err != nil {
				return
			}
			for part := range parts {
				if part == "" {
					return
				}
				io.WriteString(c, part)
				if strings.HasSuffix(part, lastChunk) {
					break
				}
			}
		}
	}
}

// TestConnectionsComeBack: streams and other requests alternate on one connection of the client and
// one of the upstream.
func TestConnectionsComeBack(t *testing.T) {
	parts := make(chan string)
	f := newFront(t, rawServer(t, "tcp", stepping(parts)), nil)
	c := dial(t, f.addr)
	for i := range 6 {
		go io.WriteString(c.Conn, request)
		if i%2 == 1 {
			parts <- "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk("hello") + lastChunk
			if body := c.readChunked(t); body != "hello" {
				t.Fatalf("%q", body)
			}
			continue
		}
		parts <- sseHead + chunk("data: a\n\n")
		c.r.Peek(1)
		f.awaitLent(t, 1)
		parts <- chunk("data: b\n\n") + lastChunk
		if body := c.readChunked(t); body != "data: a\n\ndata: b\n\n" {
			t.Fatalf("%q", body)
		}
		f.awaitLent(t, 0)
	}
	if idle, open := f.pool.Stats(); idle != 1 || open != 1 {
		t.Fatalf("%d idle of %d connections", idle, open)
	}
}

// TestLastOfItsConnection: the connection is closed after the stream if the client has asked for
// the close.
func TestLastOfItsConnection(t *testing.T) {
	parts := make(chan string)
	f := newFront(t, rawServer(t, "tcp", stepping(parts)), nil)
	c := dial(t, f.addr)
	io.WriteString(c.Conn, strings.Replace(request, "Host: x\r\n", "Host: x\r\nConnection: close\r\n", 1))
	parts <- sseHead + chunk("data: a\n\n")
	c.r.Peek(1)
	f.awaitLent(t, 1)
	parts <- lastChunk
	if body := c.readChunked(t); body != "data: a\n\n" {
		t.Fatalf("%q", body)
	}
	if _, err := c.r.ReadByte(); err != io.EOF {
		t.Fatal(err)
	}
}

// TestKeepAliveEnds: a connection waits in a loop only for a limited time, and its client may
// leave.
func TestKeepAliveEnds(t *testing.T) {
	parts := make(chan string)
	f := newFront(t, rawServer(t, "tcp", stepping(parts)), nil)
	f.parking.KeepAlive = 50 * time.Millisecond
	before := openFiles(t)
	for _, leaves := range []bool{false, true} {
		c := dial(t, f.addr)
		io.WriteString(c.Conn, request)
		parts <- sseHead + chunk("data: a\n\n")
		c.r.Peek(1)
		parts <- lastChunk
		c.readChunked(t)
		if leaves {
			c.Close()
		} else if _, err := c.r.ReadByte(); err != io.EOF {
			t.Fatal(err)
		}
		c.Close()
	}
	// Both ends of the upstream's connection stay open.
	for end := soonest(); openFiles(t) > before+2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors, %d before", openFiles(t), before)
		}
	}
}

// TestPipelinedBehindStream: bytes of the next requests that the server read before it parked the
// connection are not lost.
func TestPipelinedBehindStream(t *testing.T) {
	parts := make(chan string)
	f := newFront(t, rawServer(t, "tcp", stepping(parts)), nil)
	c := dial(t, f.addr)
	io.WriteString(c.Conn, request+request+request[:20])
	for range 2 {
		parts <- sseHead + chunk("data: a\n\n")
		c.r.Peek(1)
		parts <- lastChunk
		if body := c.readChunked(t); body != "data: a\n\n" {
			t.Fatalf("%q", body)
		}
	}
	io.WriteString(c.Conn, request[20:])
	parts <- sseHead + chunk("data: a\n\n")
	parts <- lastChunk
	if body := c.readChunked(t); body != "data: a\n\n" {
		t.Fatalf("%q", body)
	}
}

// TestLoopsDrain: a connection that waits for a request is closed immediately. A connection with a
// stream is closed after the stream.
func TestLoopsDrain(t *testing.T) {
	parts, idleParts := make(chan string), make(chan string, 2)
	f := newFront(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		_, body, _ := readRequest(r)
		from := parts
		if body == "[]" {
			from = idleParts
		}
		for part := range from {
			io.WriteString(c, part)
		}
	}), nil)
	idle, busy := dial(t, f.addr), dial(t, f.addr)
	io.WriteString(idle.Conn, strings.Replace(request, "{}", "[]", 1))
	idleParts <- sseHead + chunk("data: a\n\n")
	idle.r.Peek(1)
	idleParts <- lastChunk
	close(idleParts)
	idle.readChunked(t)
	f.awaitLent(t, 0)
	io.WriteString(busy.Conn, request)
	parts <- sseHead + chunk("data: a\n\n")
	busy.r.Peek(1)
	f.awaitLent(t, 1)
	f.parking.Loops.Drain()
	if _, err := idle.r.ReadByte(); err != io.EOF {
		t.Fatal("the connection that waits:", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := f.parking.Loops.Wait(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	parts <- chunk("data: b\n\n") + lastChunk
	close(parts)
	if body := busy.readChunked(t); body != "data: a\n\ndata: b\n\n" {
		t.Fatalf("%q", body)
	}
	if _, err := busy.r.ReadByte(); err != io.EOF {
		t.Fatal("after the stream:", err)
	}
	if err := f.parking.Loops.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestLoopsClose: Close cuts the remaining streams.
func TestLoopsClose(t *testing.T) {
	o := newObserved()
	f := newFront(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		io.WriteString(c, sseHead+chunk("data: a\n\n"))
		io.Copy(io.Discard, r)
	}), func(f *front) { f.follower = o })
	c := dial(t, f.addr)
	io.WriteString(c.Conn, request)
	c.r.Peek(1)
	f.awaitLent(t, 1)
	f.parking.Loops.Close()
	o.wait(t, UpstreamFailed)
	if r, err := http.ReadResponse(c.r, nil); err != nil {
		t.Fatal(err)
	} else if _, err := io.ReadAll(r.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
}

// fragile is a Follower that panics at the event "boom".
type fragile struct{ *observed }

func (f fragile) Event(e sse.Event, out []byte, at time.Time) ([]byte, bool) {
	if string(e.Data) == "boom" {
		panic("boom")
	}
	return f.observed.Event(e, out, at)
}

// TestFollowerPanics: only the follower's own stream ends.
func TestFollowerPanics(t *testing.T) {
	o := newObserved()
	parts := make(chan string)
	f := newFront(t, rawServer(t, "tcp", stepping(parts)), func(f *front) { f.follower = fragile{o} })
	told := make(chan any, 1)
	for _, l := range f.parking.Loops.all {
		l.loops.o.Panicked = func(p any) { told <- p }
	}
	for _, data := range []string{"boom", "b"} {
		c := dial(t, f.addr)
		io.WriteString(c.Conn, request)
		parts <- sseHead + chunk("data: a\n\n")
		c.r.Peek(1)
		f.awaitLent(t, 1)
		parts <- chunk("data: "+data+"\n\n") + lastChunk
		r, err := http.ReadResponse(c.r, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		if data == "boom" {
			if <-told != "boom" || !errors.Is(err, io.ErrUnexpectedEOF) || string(body) != "data: a\n\n" {
				t.Fatalf("%q %v", body, err)
			}
			o.wait(t, UpstreamFailed)
		} else if err != nil || string(body) != "data: a\n\ndata: b\n\n" {
			t.Fatalf("%q %v", body, err)
		}
		f.awaitLent(t, 0)
	}
}

// TestTotalPassesWhileTheClientDoesNotRead: after the answer's total time, the client still has
// ReplyOptions.SlowReader to take the rest.
func TestTotalPassesWhileTheClientDoesNotRead(t *testing.T) {
	o := newObserved()
	f := newFront(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		if _, _, err := readRequest(r); err != nil {
			return
		}
		io.WriteString(c, sseHead)
		for {
			if _, err := io.WriteString(c, chunk("data: "+strings.Repeat("x", 4000)+"\n\n")); err != nil {
				return
			}
		}
	}), func(f *front) { f.follower, f.total, f.slow = o, 200*time.Millisecond, 2*time.Second })
	client := dial(t, f.addr)
	client.Conn.(*net.TCPConn).SetReadBuffer(4096)
	io.WriteString(client.Conn, request)
	o.wait(t, TotalTimeout)
}

// panicking panics at the first event.
type panicking struct{ *observed }

func (panicking) Event(sse.Event, []byte, time.Time) ([]byte, bool) { panic("follower") }

// TestFollowerPanicsAtTheHandOver: the follower panics at an event that came with the head.
func TestFollowerPanicsAtTheHandOver(t *testing.T) {
	o := newObserved()
	f := newFront(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		if _, _, err := readRequest(r); err != nil {
			return
		}
		io.WriteString(c, sseHead+chunk("data: a\n\n"))
		r.ReadByte() // returns when the router closes the connection
	}), func(f *front) { f.follower, f.await = panicking{o}, true })
	told := make(chan any, 1)
	f.parking.Loops.o.Panicked = func(p any) { told <- p }
	client := dial(t, f.addr)
	io.WriteString(client.Conn, request)
	o.wait(t, UpstreamFailed)
	if p := <-told; p != "follower" {
		t.Errorf("told of %v", p)
	}
	client.SetReadDeadline(time.Now().Add(soon))
	if _, err := io.ReadAll(client.Conn); isTimeout(err) {
		t.Error("the client waits")
	}
}

// TestLoanWithoutDescriptors: a parked socket that cannot become a connection again is closed,
// once.
func TestLoanWithoutDescriptors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var parked parked
	if err := parked.reserve(c); err != nil {
		t.Fatal(err)
	}
	parked.take(c)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max})
	_, err = parked.back()
	unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	if err == nil {
		t.Fatal("there was a descriptor")
	}
	if _, err := unix.FcntlInt(uintptr(parked.fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the descriptor is still there: %v", err)
	}
	if parked.end() {
		t.Error("it would be closed again")
	}
}
