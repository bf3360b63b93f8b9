package peerevents

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/internal/listen"
)

// Conn is a connection between a router and the agent. One goroutine may send while another one
// receives.
type Conn struct {
	*net.UnixConn
	in  []byte // received, but not parsed yet
	got []byte // buffer for received bytes
	oob []byte
	out []byte
	fd  int // descriptor received for Welcome; -1: none
	m   Message
}

// NewConn returns a Conn over c. Nothing may have been read from c.
func NewConn(c *net.UnixConn) *Conn {
	return &Conn{UnixConn: c, got: make([]byte, 0, 512), oob: make([]byte, unix.CmsgSpace(8*4)), fd: -1}
}

// Dial connects to the socket at path.
func Dial(ctx context.Context, path string) (*Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return NewConn(c.(*net.UnixConn)), nil
}

// Send writes m, and with it a copy of the descriptor fd unless fd is negative.
func (c *Conn) Send(m *Message, fd int) (err error) {
	if c.out, err = Append(c.out[:0], m); err != nil {
		return err
	}
	if fd < 0 {
		_, err = c.Write(c.out)
		return err
	}
	n, _, err := c.WriteMsgUnix(c.out, unix.UnixRights(fd), nil)
	if err == nil && n < len(c.out) {
		_, err = c.Write(c.out[n:])
	}
	return err
}

// Receive reads a message, which is valid until the next call, and the descriptor that came with
// it; -1: none. The caller closes the descriptor. Only Welcome has a descriptor.
func (c *Conn) Receive() (m *Message, fd int, err error) {
	for {
		n, err := Size(c.in)
		if err != nil {
			return nil, -1, err
		}
		if n > 0 && len(c.in) >= n {
			err := Parse(c.in[:n], &c.m)
			if c.in = c.in[n:]; err != nil {
				return nil, -1, err
			}
			fd = -1
			if c.m.Type == Welcome {
				fd, c.fd = c.fd, -1
			}
			return &c.m, fd, nil
		}
		if err := c.fill(max(n, 3)); err != nil {
			return nil, -1, err
		}
	}
}

// Close closes the connection, and a descriptor that was not received. Nobody may be receiving
// meanwhile.
func (c *Conn) Close() error {
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
		c.fd = -1
	}
	return c.UnixConn.Close()
}

// fill reads more bytes, with room for a frame of n bytes.
func (c *Conn) fill(n int) error {
	if cap(c.got) < n {
		c.got = make([]byte, 0, maxFrame)
	}
	c.in = append(c.got[:0], c.in...)
	got, rights, flags, _, err := c.ReadMsgUnix(c.in[len(c.in):cap(c.in)], c.oob)
	if rights > 0 {
		fds, bad := listen.Descriptors(c.oob[:rights])
		if bad != nil || flags&unix.MSG_CTRUNC != 0 || c.fd >= 0 || len(fds) != 1 {
			listen.CloseAll(fds)
			return fmt.Errorf("%w: with descriptors that nobody has asked for", errors.Join(bad, errFrame))
		}
		c.fd = fds[0]
	}
	if err == nil && got == 0 {
		err = io.EOF
	}
	c.in = c.in[:len(c.in)+max(got, 0)]
	return err
}
