package events

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// A publisher that says nothing may have nothing to say, or be out of reach. ZMTP 3.1 has a ping
// for that, which libzmq answers in all its sockets; of an older peer the kernel asks whether its
// host is there.
const (
	pingEvery = time.Second     // of silence; after that many pings without an answer the connection is given up:
	pingsLost = 3               //
	frameTime = 5 * time.Second // for the next MiB of a frame that has begun
)

// errSilent says that a publisher which answered pings does so no more.
var errSilent = errors.New("kvevents: the publisher answers no pings")

// probing has the kernel ask over an idle connection whether the peer's host is there. It gives up
// after as long as pings do, and a little more.
var probing = net.KeepAliveConfig{Enable: true, Idle: pingEvery, Interval: pingEvery, Count: pingsLost + 1}

// attend has the kernel watch over a connection.
func attend(conn net.Conn) {
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.SetKeepAliveConfig(probing)
		limitUnacknowledged(c, probing.Idle+time.Duration(probing.Count)*probing.Interval)
	}
}

// ping is a frame that asks for a PONG; the peer is to take no time-out for itself from it.
var ping = appendFrame(nil, flagCommand, []byte("\x04PING\x00\x00"))

// awaitFrame returns when a frame begins. A peer that knows pings gets one after pingEvery of
// silence; one that has answered once has to answer.
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

// withinFrame bounds the time for what is read next of a frame that has begun.
func (s *socket) withinFrame() {
	if s.pings {
		_ = s.conn.SetReadDeadline(time.Now().Add(frameTime))
	}
}
