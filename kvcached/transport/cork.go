package transport

import (
	"crypto/tls"
	"net"
	"sync"
)

// corkSize is how many bytes of TLS records go to the kernel at once. Without a cork, crypto/tls
// writes each record of up to 16 KiB by itself.
const corkSize = 128 << 10

// corked is a TLS connection that writes several records at once.
type corked struct {
	*tls.Conn
	out *cork
}

// cork is the connection under a TLS connection. Only the writer of the TLS connection uses it.
type cork struct {
	net.Conn
	held *[]byte // records that wait for flush; nil: records are written at once
}

// corks keeps the buffers.
var corks = sync.Pool{New: func() any { b := make([]byte, 0, corkSize+32<<10); return &b }}

// Write writes all of p. No record waits when it returns.
func (c *corked) Write(p []byte) (int, error) {
	if len(p) <= 16<<10 {
		return c.Conn.Write(p)
	}
	c.out.held = corks.Get().(*[]byte)
	n, err := c.Conn.Write(p)
	if flushed := c.out.flush(); err == nil {
		err = flushed
	}
	corks.Put(c.out.held)
	c.out.held = nil
	return n, err
}

func (c *cork) Write(p []byte) (int, error) {
	if c.held == nil {
		return c.Conn.Write(p)
	}
	*c.held = append(*c.held, p...)
	if len(*c.held) < corkSize {
		return len(p), nil
	}
	return len(p), c.flush()
}

// flush writes the waiting records.
func (c *cork) flush() error {
	b := *c.held
	*c.held = b[:0]
	if len(b) == 0 {
		return nil
	}
	_, err := c.Conn.Write(b)
	return err
}
