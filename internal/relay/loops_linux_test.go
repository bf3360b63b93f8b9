package relay

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// taken waits until the other end of c, a socket of this process, has read all
// that was written to c, or is closed.
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

// unread is how many bytes wait in this process's socket between those ports.
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

// inParts writes response, cut before byte at, at+step, …. Nothing is written
// before the part before it has been read.
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

// awaitLent waits until that many streams are in loops.
func (f *front) awaitLent(t testing.TB, streams int64) {
	t.Helper()
	for end := soonest(); f.lending.Loops.busy.Load() != streams; {
		if time.Now().After(end) {
			t.Fatalf("%d streams in the loops, want %d", f.lending.Loops.busy.Load(), streams)
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

// TestCutAnywhere: a response that comes in two parts, cut at every byte, is
// relayed all the same.
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

// TestByteByByte: two streams on one connection, each byte by itself, with and
// without TLS towards the upstream.
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

// dripping answers over TLS whose records come in small pieces.
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

// stepping answers each request with a stream whose parts it writes when it is
// told to; an empty one closes the connection.
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

// TestConnectionsComeBack: streams and other requests take turns on one
// connection of the client and one of the upstream.
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

// TestLastOfItsConnection: the client has asked for the end of the connection.
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

// TestKeepAliveEnds: a connection does not wait in a loop for ever, and its
// client may leave.
func TestKeepAliveEnds(t *testing.T) {
	parts := make(chan string)
	f := newFront(t, rawServer(t, "tcp", stepping(parts)), nil)
	f.lending.KeepAlive = 50 * time.Millisecond
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
	// Both ends of the upstream's connection stay.
	for end := soonest(); openFiles(t) > before+2; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d descriptors, %d before", openFiles(t), before)
		}
	}
}

// TestPipelinedBehindStream: what the server has read of the next requests
// before it lent the connection is not lost.
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
