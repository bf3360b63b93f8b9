package resp

import (
	"bytes"
	"sync/atomic"
	"time"
)

// isHTTP tells whether a command's name belongs to an HTTP request. Web pages can make browsers
// send requests with commands in their bodies to any port of the host. Redis has the same check.
func isHTTP(name []byte) bool {
	return bytes.EqualFold(name, []byte("post")) || bytes.EqualFold(name, []byte("host:"))
}

// logPause is the least time between two log lines of one kind that clients cause.
const logPause = time.Minute

// pacer bounds the log lines of one kind. The counters count all occasions.
type pacer struct{ last atomic.Int64 } // when the last line was logged, Unix ns; 0: never

// due tells whether a line may be logged now.
func (p *pacer) due() bool {
	now, last := time.Now().UnixNano(), p.last.Load()
	return (last == 0 || now-last >= int64(logPause)) && p.last.CompareAndSwap(last, now)
}

// cross ends the connection of an HTTP client without an answer. The rest of its bytes is dropped.
func (c *conn) cross() {
	c.closing = true
	s := c.server
	s.counters.crossProtocol.Add(1)
	if s.logs.cross.due() {
		s.o.Logger.Warn("a RESP client sent an HTTP request and was cut off: perhaps a web page attacks "+
			"this port", "remote", c.stream.conn.RemoteAddr().String())
	}
}

// Bounds of linger.
const (
	lingerTime     = 5 * time.Second
	lingerBytes    = 4 * MaxValue
	lingerUnauthed = 1 << 20 // for a client that has not authenticated
)

// linger reads and drops the client's bytes after a protocol error. If the server closed at once,
// TCP would reset the connection and lose the error. linger ends when the client closes, when the
// server drains, or at its bounds.
func (c *conn) linger() {
	half, ok := c.stream.conn.(interface{ CloseWrite() error })
	if !ok || c.stream.fails != nil {
		return
	}
	_ = half.CloseWrite()
	s := c.stream
	s.waitFor(0)
	_ = s.conn.SetReadDeadline(time.Now().Add(min(lingerTime, c.server.o.Stall)))
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
