package stopwatch

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Times holds the times of several streams: from each request to its first token, and the gaps
// before later tokens. Tokens within Joined of the previous token are one piece with it, and gaps
// are between pieces. A gap before several tokens together does not count, because an engine that
// waits for a CPU then sends all tokens made meanwhile.
type Times struct{ TTFT, ITL []time.Duration }

// Streams holds the times at which a client has read the streams, and the times at which the
// packets with request and tokens arrived. Packet times do not depend on when the client had a CPU.
type Streams struct {
	Read Times
	Came Times // empty without the right to see packets (CAP_NET_RAW and CAP_NET_ADMIN)
}

// Completions sends n streaming requests to the engine's /v1/completions, one after the other
// (HTTP/1.1, no TLS). Completions uses one connection if the engine keeps it. between, if set, is
// called before each. The reading thread has real-time priority, if that is permitted.
func Completions(to netip.AddrPort, body string, n int, between func() error) (Streams, error) {
	// With a small GOMAXPROCS, this thread could wait for a P of the Go scheduler whose thread
	// waits for a CPU.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(16))
	type result struct {
		Streams
		err error
	}
	done := make(chan result)
	go func() {
		end := urgent()
		c := client{}
		err := c.streams(to, body, n, between)
		end()
		done <- result{Streams{c.read.Times, c.came.Times}, err}
	}()
	r := <-done
	return r.Streams, r.err
}

// urgent gives the calling goroutine a thread with real-time priority, if that is permitted, until
// end is called. The thread must not end, because the kernel would then kill the processes that it
// has started with Pdeathsig.
func urgent() (end func()) {
	runtime.LockOSThread()
	was, err := unix.SchedGetAttr(0, 0)
	if err == nil {
		err = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	}
	return func() {
		if err == nil && unix.SchedSetAttr(0, was, 0) != nil {
			return // the thread cannot return to normal priority
		}
		runtime.UnlockOSThread()
	}
}

type client struct {
	fd      int
	port    uint16
	closes  bool     // the engine closes the connection after each answer
	packets *packets // nil without the right to see them
	read    pieces
	came    pieces
}

// pieces groups tokens into pieces by their times.
type pieces struct {
	asked       time.Time
	piece, last time.Time // when the last piece began, and when its last token came
	Times
}

// ask records a request for a stream.
func (p *pieces) ask(at time.Time) { p.asked, p.piece, p.last = at, time.Time{}, time.Time{} }

// tokens records n tokens that came together.
func (p *pieces) tokens(at time.Time, n int) {
	switch {
	case n == 0:
		return
	case p.piece.IsZero():
		p.TTFT = append(p.TTFT, at.Sub(p.asked))
		p.piece = at
	case at.Sub(p.last) >= Joined:
		if n == 1 {
			p.ITL = append(p.ITL, at.Sub(p.piece))
		}
		p.piece = at
	}
	p.last = at
}

var token = []byte(`"text":"`) // every token of a completion has it once

// Joined is the time within which tokens form one piece. The time is the same as in the programs of
// package bpf.
const Joined = 1 << 17 * time.Nanosecond

const patience = 30 * time.Second // time without a byte from the engine

func (c *client) streams(to netip.AddrPort, body string, n int, between func() error) error {
	c.fd = -1
	defer func() { _ = unix.Close(c.fd) }() // its payload has been read
	var err error
	if c.packets, err = watch(to.Port()); err == nil {
		defer func() { _ = unix.Close(c.packets.fd) }()
	} else if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EAFNOSUPPORT) {
		return err // neither a missing right nor a missing feature of the kernel
	}
	for range n {
		if between != nil {
			if err := between(); err != nil {
				return err
			}
		}
		if c.fd < 0 || c.closes {
			if err := c.connect(to); err != nil {
				return err
			}
		}
		if err := c.stream(body); err != nil {
			return err
		}
		if c.packets != nil {
			if err := c.packets.stream(&c.came, to.Port(), c.port); err != nil {
				return err
			}
		}
	}
	return nil
}

// connect opens a new connection in place of the last.
func (c *client) connect(to netip.AddrPort) (err error) {
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
	}
	if c.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	wait := unix.NsecToTimeval(int64(patience))
	if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return err
	}
	if err := unix.Connect(c.fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err != nil {
		return err
	}
	own, err := unix.Getsockname(c.fd)
	if in, ok := own.(*unix.SockaddrInet4); ok {
		c.port = uint16(in.Port)
	}
	return err
}

// stream requests a stream and records the time of each token.
func (c *client) stream(body string) error {
	request := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: engine\r\nContent-Type: "+
		"application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	c.read.ask(time.Now())
	if _, err := unix.SendmsgN(c.fd, []byte(request), nil, nil, unix.MSG_NOSIGNAL); err != nil {
		return err
	}
	var buf [16 << 10]byte
	var got []byte
	for len(got) < 1<<24 {
		n, err := unix.Read(c.fd, buf[:])
		at := time.Now()
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return fmt.Errorf("the stream ended: %d bytes, %v, %.1000q", n, err, got)
		}
		got = append(got, buf[:n]...)
		c.read.tokens(at, bytes.Count(buf[:n], token))
		if bytes.Contains(got, []byte("[DONE]")) && bytes.HasSuffix(got, []byte("0\r\n\r\n")) {
			c.closes, err = c.closed()
			return err
		}
	}
	return fmt.Errorf("the stream does not end: %.1000q", got)
}

// closed tells whether the engine closes the connection, announced or not. The engine closes
// immediately or not at all.
func (c *client) closed() (bool, error) {
	at := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN | unix.POLLRDHUP}}
	for {
		if n, err := unix.Poll(at, 20); err != unix.EINTR {
			return n > 0, err
		}
	}
}
