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

// Times are those of some streams: to each first token from when its request was sent, and the gaps
// before the others. Tokens that come within Joined of the one before are one piece with it, and
// gaps are those between pieces. There is none before several tokens that come at once: an engine
// that waits for a CPU sends what it has made meanwhile.
type Times struct{ TTFT, ITL []time.Duration }

// Streams are the times of streams as a client has read them, and as their packets came to the
// host, request and tokens, whenever the client had a CPU to read them.
type Streams struct {
	Read Times
	Came Times // none without the right to see packets (CAP_NET_RAW and CAP_NET_ADMIN)
}

// Completions asks the engine n times, one after the other (HTTP/1.1, no TLS) over one connection
// if the engine keeps it, with a body for /v1/completions that wants a stream. between, if set, is
// called before each. The reading thread has real-time priority where that is permitted.
func Completions(to netip.AddrPort, body string, n int, between func() error) (Streams, error) {
	// With few of Go's processors, the thread would wait for one that another thread holds while it
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

// urgent gives the calling goroutine a thread with real-time priority, where that is permitted,
// until the function that it returns is called. The thread lives on: were it to end, the kernel
// would kill the processes that it has started to be killed with their parent (Pdeathsig).
func urgent() (end func()) {
	runtime.LockOSThread()
	was, err := unix.SchedGetAttr(0, 0)
	if err == nil {
		err = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
	}
	return func() {
		if err == nil && unix.SchedSetAttr(0, was, 0) != nil {
			return // a thread that cannot be given back
		}
		runtime.UnlockOSThread()
	}
}

type client struct {
	fd      int
	port    uint16
	closes  bool     // the engine has closed the connection after its answer
	packets *packets // none without the right to see them
	read    pieces
	came    pieces
}

// pieces tells them apart by when tokens came.
type pieces struct {
	asked       time.Time
	piece, last time.Time // when the last piece began, and its last token came
	Times
}

// ask begins a stream.
func (p *pieces) ask(at time.Time) { p.asked, p.piece, p.last = at, time.Time{}, time.Time{} }

// tokens takes some that came at once.
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

// Joined is the time within which tokens are one piece, as the programs of package bpf have it.
const Joined = 1 << 17 * time.Nanosecond

const patience = 30 * time.Second // with an engine that says nothing

func (c *client) streams(to netip.AddrPort, body string, n int, between func() error) error {
	c.fd = -1
	defer func() { _ = unix.Close(c.fd) }() // whose payload has been read
	var err error
	if c.packets, err = watch(to.Port()); err == nil {
		defer func() { _ = unix.Close(c.packets.fd) }()
	} else if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EAFNOSUPPORT) {
		return err // neither a missing right nor a kernel without packet sockets
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

// connect replaces the connection.
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

// stream asks for a stream and takes the time of each token.
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

// closed tells whether the engine closes the connection, with or without having said so: it does
// that at once or not at all.
func (c *client) closed() (bool, error) {
	at := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN | unix.POLLRDHUP}}
	for {
		if n, err := unix.Poll(at, 20); err != unix.EINTR {
			return n > 0, err
		}
	}
}
