package stopwatch

import (
	"bytes"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Times are those of some streams: to each first token from when its request was sent, and the gaps before the others. Tokens that come within Joined of the one before are one
// piece with it, and gaps are those between pieces. There is none before several tokens that come at once: an engine that waits for a CPU sends what it has made meanwhile.
type Times struct{ TTFT, ITL []time.Duration }

// Completions asks the engine n times, one after the other (HTTP/1.1, no TLS) over one connection if the engine keeps it, with a body for /v1/completions that wants a stream. between, if set, is called
// before each. The reading thread has real-time priority where that is permitted.
func Completions(to netip.AddrPort, body string, n int, between func() error) (Times, error) {
	// With few of Go's processors, the thread would wait for one that another thread holds while it waits for a CPU.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(16))
	type result struct {
		Times
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with its priority
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0)
		c := client{}
		err := c.streams(to, body, n, between)
		done <- result{c.Times, err}
	}()
	r := <-done
	return r.Times, r.err
}

type client struct {
	fd     int
	closes bool // the engine has closed the connection after its answer
	Times
}

// Joined is the time within which tokens are one piece, as the programs of package bpf have it.
const Joined = 1 << 17 * time.Nanosecond

const patience = 30 * time.Second // with an engine that says nothing

func (c *client) streams(to netip.AddrPort, body string, n int, between func() error) error {
	c.fd = -1
	defer func() { _ = unix.Close(c.fd) }() // whose payload has been read
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
	return unix.Connect(c.fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()})
}

// stream asks for a stream and takes the time of each token.
func (c *client) stream(body string) error {
	request := fmt.Sprintf("POST /v1/completions HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	sent := time.Now()
	if _, err := unix.SendmsgN(c.fd, []byte(request), nil, nil, unix.MSG_NOSIGNAL); err != nil {
		return err
	}
	var buf [16 << 10]byte
	var piece, last time.Time // when the last piece began, and its last token came
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
		tokens := bytes.Count(buf[:n], []byte(`"text":"`))
		switch {
		case tokens == 0:
		case piece.IsZero():
			c.TTFT = append(c.TTFT, at.Sub(sent))
			piece = at
		case at.Sub(last) < Joined:
		default:
			if tokens == 1 {
				c.ITL = append(c.ITL, at.Sub(piece))
			}
			piece = at
		}
		if tokens > 0 {
			last = at
		}
		if bytes.Contains(got, []byte("[DONE]")) && bytes.HasSuffix(got, []byte("0\r\n\r\n")) {
			c.closes, err = c.closed()
			return err
		}
	}
	return fmt.Errorf("the stream does not end: %.1000q", got)
}

// closed tells whether the engine closes the connection, with or without having said so: it does that at once or not at all.
func (c *client) closed() (bool, error) {
	at := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN | unix.POLLRDHUP}}
	for {
		if n, err := unix.Poll(at, 20); err != unix.EINTR {
			return n > 0, err
		}
	}
}
