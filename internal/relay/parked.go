package relay

import (
	"errors"
	"net"
)

// parked is a connection's socket while a loop has it: a descriptor of its own,
// unknown to the runtime's poller.
type parked struct {
	fd  int
	out bool // fd is the only one
}

// park makes b, if not nil, what Cancel interrupts from now on. Cancel may have
// come before.
func (e *Exchange) park(b keeper, serial uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.keeper, e.serial = b, serial
}

// takeBack ends that. A connection that goes back to the pool is made an
// ordinary one again.
func (e *Exchange) takeBack() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.keeper = nil
	if e.canceled == nil && e.clean() && e.c.regain() != nil {
		e.spent = true
	}
}

// clean reports whether the connection can serve another exchange.
func (e *Exchange) clean() bool { return e.atEnd() && !e.spent }

// regain makes c an ordinary connection again, in the hands of its pool. It is
// one already if it has not been parked.
func (c *conn) regain() error {
	c.hand.Lock()
	defer c.hand.Unlock()
	if !c.parked.out {
		return nil
	}
	socket, err := c.parked.back()
	if err != nil {
		return err
	}
	if c.wire == nil {
		c.nc = socket
	} else {
		c.wire.Conn, c.wire.parked = socket, false
	}
	c.use(socket)
	if c.watch {
		attendAgain(socket)
	}
	c.reading.forget()
	c.writing.forget()
	return nil
}

// parkSocket gives the socket to c.parked, for which it has been reserved.
func (c *conn) parkSocket() {
	c.hand.Lock()
	defer c.hand.Unlock()
	c.parked.take(c.socket)
	if c.wire != nil {
		c.wire.fd, c.wire.parked, c.wire.dry, c.wire.ending = c.parked.fd, true, false, false
	}
}

// wire is the socket under a TLS connection. While it is parked it never waits:
// errNotNow says that there is nothing to read, which crypto/tls takes for
// temporary and goes on from later.
type wire struct {
	net.Conn
	fd     int
	parked bool
	dry    bool // the last read found less than it had room for
	ending bool // the peer has shut down: a short read says nothing
}

// errNotNow is returned by a parked wire in place of waiting.
var errNotNow net.Error = notNow{}

type notNow struct{}

func (notNow) Error() string   { return "nothing to read now" }
func (notNow) Timeout() bool   { return false }
func (notNow) Temporary() bool { return true }

var errNoDescriptor = errors.New("connection has no descriptor of its own")
