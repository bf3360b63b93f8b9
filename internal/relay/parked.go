package relay

import (
	"errors"
	"net"
)

// parked is a connection's socket while a loop has it: a descriptor that the runtime's poller does
// not know.
type parked struct {
	fd  int
	out bool // true if fd is the only descriptor
}

// park makes b the keeper, which a later cancel interrupts; nil: no keeper. e may have been
// canceled already.
func (e *Exchange) park(b keeper, serial uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.keeper, e.serial = b, serial
}

// takeBack ends the parking. A connection that will return to the pool becomes an ordinary one
// again.
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

// regain makes c an ordinary connection again, owned by its pool. regain does nothing if c is not
// parked.
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

// parkSocket moves the socket to c.parked, which must have been reserved.
func (c *conn) parkSocket() {
	c.hand.Lock()
	defer c.hand.Unlock()
	c.parked.take(c.socket)
	if c.wire != nil {
		c.wire.fd, c.wire.parked, c.wire.dry, c.wire.ending = c.parked.fd, true, false, false
	}
}

// wire is the socket under a TLS connection. A parked wire never blocks. A parked wire returns
// errNotNow if no bytes are available. crypto/tls treats that as a temporary error and continues
// later.
type wire struct {
	net.Conn
	fd     int
	parked bool
	dry    bool // the last read did not fill its buffer
	ending bool // the peer has shut down, so a short read does not mean that nothing is left
}

// errNotNow is the error of a parked wire that would block.
var errNotNow net.Error = notNow{}

type notNow struct{}

func (notNow) Error() string   { return "nothing to read now" }
func (notNow) Timeout() bool   { return false }
func (notNow) Temporary() bool { return true }

var errNoDescriptor = errors.New("connection has no descriptor of its own")
