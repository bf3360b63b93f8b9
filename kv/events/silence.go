package events

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// A silent publisher may be idle or unreachable. ZMTP 3.1 has a ping, which all libzmq sockets
// answer. For an older peer the kernel's keepalive checks whether its host exists.
const (
	pingEvery = time.Second // of silence; after pingsLost pings without an answer the connection is given up
	pingsLost = 3
	frameTime = 5 * time.Second // time for the next MiB of a frame
)

// errSilent says that a publisher has stopped answering pings.
var errSilent = errors.New("kvevents: the publisher answers no pings")

// probing makes the kernel check on an idle connection whether the peer's host exists. The kernel
// gives up a little later than the pings.
var probing = net.KeepAliveConfig{Enable: true, Idle: pingEvery, Interval: pingEvery, Count: pingsLost + 1}

// attend sets the kernel's keepalive and timeouts for a connection.
func attend(conn net.Conn) {
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.SetKeepAliveConfig(probing)
		limitUnacknowledged(c, probing.Idle+time.Duration(probing.Count)*probing.Interval)
	}
}

// ping is a frame that asks for a PONG. Its TTL of 0 asks the peer to set no timeout.
var ping = appendFrame(nil, flagCommand, []byte("\x04PING\x00\x00"))

// awaitFrame returns when a frame begins. A peer that knows pings gets one after pingEvery of
// silence. A peer that has answered a ping must answer each further one.
func (s *socket) awaitFrame() error {
	if !s.pings {
		return nil
	}
	for asked := 0; ; asked++ {
		_ = s.conn.SetReadDeadline(time.Now().Add(pingEvery))
		_, err := s.r.Peek(1)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if asked >= pingsLost && s.pongs {
			return fmt.Errorf("%w for %v", errSilent, pingEvery*pingsLost)
		}
		if err := s.write(ping); err != nil {
			return err
		}
	}
}

// withinFrame bounds the time of the next read in a begun frame.
func (s *socket) withinFrame() {
	if s.pings {
		_ = s.conn.SetReadDeadline(time.Now().Add(frameTime))
	}
}
