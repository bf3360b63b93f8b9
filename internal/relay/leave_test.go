package relay

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestClientLeaves: when a client leaves, the upstream's connection is closed, in each state of the
// exchange. No time limit closes the connection earlier.
func TestClientLeaves(t *testing.T) {
	for name, response := range map[string]string{
		"before head":   "",
		"silent stream": sseHead + chunk("data: a\n\n"),
		"short body":    "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello",
		"long body":     "HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\nhello",
	} {
		for _, how := range []string{"close", "reset", "half-close"} {
			t.Run(name+" "+how, func(t *testing.T) {
				leave(t, response, strings.HasPrefix(name, "silent") || strings.HasPrefix(name, "long"), how)
			})
		}
	}
}

// leave makes a client leave and waits until the upstream's connection is closed.
func leave(t *testing.T, response string, streamed bool, how string) {
	t.Helper()
	started, gone := make(chan struct{}), make(chan struct{})
	o := newObserved()
	f := newFront(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		io.WriteString(c, response)
		close(started)
		io.Copy(io.Discard, r)
		close(gone)
	}), func(f *front) { f.follower = o })
	c := dial(t, f.addr)
	io.WriteString(c.Conn, request)
	<-started
	if streamed {
		c.r.Peek(1)
	}
	switch how {
	case "reset":
		c.Conn.(*net.TCPConn).SetLinger(0)
		c.Close()
	case "close":
		c.Close()
	case "half-close":
		c.Conn.(*net.TCPConn).CloseWrite()
	}
	<-gone
	if streamed {
		o.wait(t, ClientGone)
	} else if n := f.canceled.Load(); n != 1 {
		t.Fatalf("canceled %d times", n)
	}
}

// TestHeld: the follower hears when a client that does not read holds up the stream, and when the
// client reads again.
func TestHeld(t *testing.T) {
	piece, full := chunk("data: "+strings.Repeat("x", 4000)+"\n\n"), make(chan struct{})
	o := newObserved()
	o.held = make(chan bool, 1<<20)
	f := newFront(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		io.WriteString(c, sseHead+piece)
		<-full
		for range 4000 { // more than sockets hold
			if _, err := io.WriteString(c, piece); err != nil {
				return
			}
		}
		io.WriteString(c, "0\r\n\r\n")
	}), func(f *front) { f.follower = o })
	c := dial(t, f.addr)
	io.WriteString(c.Conn, request)
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	io.CopyN(io.Discard, resp.Body, 4000)
	holds := false
	settles := func(want bool) { // without loops each write holds
		t.Helper()
		for deadline, still := soonest(), false; !still; {
			select {
			case holds = <-o.held:
			case <-time.After(100 * time.Millisecond):
				if still = holds == want; time.Now().After(deadline) {
					t.Fatalf("the client holds up the stream: %v, want %v", holds, want)
				}
			}
		}
	}
	settles(false)
	close(full)
	settles(true)
	if n, err := io.Copy(io.Discard, resp.Body); err != nil || n < 4000*4000 {
		t.Errorf("%d bytes, %v", n, err)
	}
	o.wait(t, Complete)
	settles(false)
}

// TestSlowReader: a client that does not read is cut at its time limit, while another one still
// gets everything.
func TestSlowReader(t *testing.T) {
	const patience = 500 * time.Millisecond
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
	}), func(f *front) { f.follower, f.slow = o, patience })
	slow, good := dial(t, f.addr), dial(t, f.addr)
	slow.Conn.(*net.TCPConn).SetReadBuffer(4 << 10)
	start := time.Now()
	io.WriteString(slow.Conn, request)
	io.WriteString(good.Conn, request)
	cut, read := make(chan struct{}), make(chan error)
	go func() {
		for {
			_, err := io.CopyN(io.Discard, good.r, 1<<20)
			select {
			case <-cut: // part of the bytes has arrived since
				read <- err
				return
			default:
			}
			if err != nil {
				read <- err
				return
			}
		}
	}()
	o.wait(t, SlowReader)
	if took := time.Since(start); took < patience {
		t.Errorf("cut after %v", took)
	}
	close(cut)
	if err := <-read; err != nil {
		t.Fatal("the other client:", err)
	}
	good.Close()
	o.wait(t, ClientGone)
}

// TestStreamsTornDown opens many streams at once and ends each at random in one of the possible
// ways. Every stream is accounted for.
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
			if body[1] == 'x' { // end inside the answer
				return
			}
			io.WriteString(c, "0\r\n\r\n")
		}
	}), func(f *front) { f.follower = o })
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

// TestStop: this side stops a stream while its client is connected, and the client is told.
func TestStop(t *testing.T) {
	o := newObserved()
	f := newFront(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		io.WriteString(c, sseHead+chunk("data: a\n\n"))
		io.Copy(io.Discard, r)
	}), func(f *front) { f.follower, f.aborts = o, make(chan *Abort, 1) })
	c := dial(t, f.addr)
	io.WriteString(c.Conn, request)
	c.r.Peek(1)
	a := <-f.aborts
	a.Stop()
	a.Cancel() // too late to change the reason
	if body := c.readChunked(t); body != "data: a\n\n"+o.tail {
		t.Fatalf("%q", body)
	}
	o.wait(t, UpstreamFailed)
	if !errors.Is(o.cause, ErrStopped) {
		t.Fatal(o.cause)
	}
}
