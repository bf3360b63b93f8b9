package events

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// pinged is a peer of ZMTP 3.minor. It answers a given number of pings, and publishes after another
// given number.
type pinged struct {
	minor         byte
	answers, says int
}

func (p pinged) serve(conn net.Conn) error {
	buf := make([]byte, greetingSize)
	if _, err := io.ReadFull(conn, buf); err != nil {
		return err
	}
	buf[11] = p.minor
	if _, err := conn.Write(buf); err != nil {
		return err
	}
	ready := appendFrame(nil, flagCommand, []byte("\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"))
	if _, err := io.ReadFull(conn, make([]byte, len(ready))); err != nil {
		return err
	}
	if _, err := conn.Write(appendFrame(nil, flagCommand,
		[]byte("\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"))); err != nil {
		return err
	}
	for n := 0; ; n++ {
		if n == p.says {
			if _, err := conn.Write(appendFrame(nil, 0, []byte("news"))); err != nil {
				return err
			}
		}
		if _, err := io.ReadFull(conn, make([]byte, len(ping))); err != nil {
			return err
		}
		if n < p.answers {
			if _, err := conn.Write(appendFrame(nil, flagCommand, []byte("\x04PONG"))); err != nil {
				return err
			}
		}
	}
}

// TestSilence checks that a publisher is given up once it stops answering pings. The kernel watches
// a publisher that never answered a ping, or is too old for pings.
func TestSilence(t *testing.T) {
	const never = 1 << 30
	for name, c := range map[string]struct {
		peer  pinged
		after time.Duration
		err   error
	}{
		"answers two pings":                    {pinged{1, 2, never}, (2 + 1 + pingsLost) * pingEvery, errSilent},
		"answers all, then publishes":          {pinged{1, never, 1000}, 1000 * pingEvery, nil},
		"answers none, then publishes":         {pinged{1, 0, 1000}, 1000 * pingEvery, nil},
		"knows no pings, publishes at once":    {pinged{0, 0, 0}, 0, nil},
		"answers two pings, publishes in time": {pinged{1, 2, 4}, 4 * pingEvery, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn, far := net.Pipe()
				served := make(chan error, 1)
				go func() { served <- c.peer.serve(far) }()
				s, err := open(conn, "SUB", "PUB")
				if err != nil {
					t.Fatal(err)
				}
				if s.pings = s.knows; s.knows != (c.peer.minor > 0) {
					t.Errorf("3.%d knows pings: %v", c.peer.minor, s.knows)
				}
				began := time.Now()
				parts, err := s.message()
				if !errors.Is(err, c.err) || err == nil && string(parts[0]) != "news" || time.Since(began) != c.after {
					t.Errorf("%q %v after %v, want %v after %v", parts, err, time.Since(began), c.err, c.after)
				}
				conn.Close()
				<-served
			})
		})
	}
}
