package relay

import (
	"errors"
	"net"
)

// loan is a connection's socket while a loop has it: a descriptor of its own,
// unknown to the runtime's poller.
type loan struct {
	fd  int
	out bool // fd is the only one
}

// lend makes b, if not nil, what Cancel interrupts from now on. Cancel may have
// come before.
func (e *Exchange) lend(b borrower, serial uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lent, e.serial = b, serial
}

// takeBack ends that. A connection that goes back to the pool is made an
// ordinary one again.
func (e *Exchange) takeBack() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lent = nil
	if e.canceled == nil && e.clean() && e.c.regain() != nil {
		e.spent = true
	}
}

// clean reports whether the connection can serve another exchange.
func (e *Exchange) clean() bool { return e.atEnd() && !e.spent }

// regain makes c an ordinary connection again, in the hands of its pool. It is
// one already if it has not been lent.
func (c *conn) regain() error {
	c.hand.Lock()
	defer c.hand.Unlock()
	if !c.loan.out {
		return nil
	}
	socket, err := c.loan.back()
	if err != nil {
		return err
	}
	if c.wire == nil {
		c.nc = socket
	} else {
		c.wire.Conn, c.wire.lent = socket, false
	}
	c.use(socket)
	if c.watch {
		attendAgain(socket)
	}
	c.reading.forget()
	c.writing.forget()
	return nil
}

// lendOut gives the socket to the loan that has been reserved.
func (c *conn) lendOut() {
	c.hand.Lock()
	defer c.hand.Unlock()
	c.loan.take(c.socket)
	if c.wire != nil {
		c.wire.fd, c.wire.lent, c.wire.dry, c.wire.ending = c.loan.fd, true, false, false
	}
}

// wire is the socket under a TLS connection. While it is lent it never waits:
// errNotNow says that there is nothing to read, which crypto/tls takes for
// temporary and goes on from later.
type wire struct {
	net.Conn
	fd     int
	lent   bool
	dry    bool // the last read found less than it had room for
	ending bool // the peer has shut down: a short read says nothing
}

// errNotNow is returned by a lent wire in place of waiting.
var errNotNow net.Error = notNow{}

type notNow struct{}

func (notNow) Error() string   { return "nothing to read now" }
func (notNow) Timeout() bool   { return false }
func (notNow) Temporary() bool { return true }

var errNoDescriptor = errors.New("connection has no descriptor of its own")
