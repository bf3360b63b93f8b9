package resp

import (
	"bytes"
	"time"
)

// isHTTP tells whether a command's first word shows that a web page, not a redis client, speaks:
// browsers send to any port of the host what they are told to, and of a request whatever is no
// command would be passed over until its body is. Redis does the same.
func isHTTP(name []byte) bool {
	return bytes.EqualFold(name, []byte("post")) || bytes.EqualFold(name, []byte("host:"))
}

// crossLog is how far apart in time two log lines about HTTP are, at least.
const crossLog = time.Minute

// cross ends the connection without an answer, so that nothing which follows is executed.
func (c *conn) cross() {
	c.closing = true
	s := c.server
	s.counters.crossProtocol.Add(1)
	now := time.Now().UnixNano()
	if last := s.crossLogged.Load(); (last == 0 || now-last >= int64(crossLog)) && s.crossLogged.CompareAndSwap(last,
		now) {
		s.options.Logger.Warn("a RESP client sent an HTTP request and was cut off: perhaps a web page attacks "+
			"this port", "remote", c.stream.conn.RemoteAddr().String())
	}
}

// What linger waits for, at most.
const (
	lingerTime     = 5 * time.Second
	lingerBytes    = 4 * MaxValue
	lingerUnauthed = 1 << 20 // of a client that has not authenticated
)

// linger reads and drops what a client still sends after the error that ends its connection: closed
// before that, the connection would be reset, and the error lost on its way. It is over when the
// client closes, past its bounds, or when the server drains.
func (c *conn) linger() {
	half, ok := c.stream.conn.(interface{ CloseWrite() error })
	if !ok || c.stream.fails != nil {
		return
	}
	_ = half.CloseWrite()
	s := c.stream
	s.waitFor(0)
	_ = s.conn.SetReadDeadline(time.Now().Add(min(lingerTime, c.server.options.Stall)))
	if c.server.draining.Load() {
		return
	}
	left := lingerBytes
	if !c.authed() {
		left = lingerUnauthed
	}
	s.r, s.w = 0, 0
	s.buffer()
	for left > 0 {
		n, err := s.conn.Read(s.in[:])
		if left -= n; err != nil {
			return
		}
	}
}
