package events

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// The flags of a frame. https://rfc.zeromq.org/spec/23/
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
	flagsKnown  = flagMore | flagLong | flagCommand
)

// Bounds on a peer's messages.
const (
	maxMessage = 32 << 20 // bytes of all frames in a message
	maxParts   = 8        // frames in a message
	maxCommand = 4 << 10  // bytes of a command
	growBy     = 1 << 20  // memory is allocated at most this many bytes ahead of their arrival
)

// greetingSize is the size of each side's greeting.
const greetingSize = 64

// errZMTP says that the peer violates the protocol.
var errZMTP = errors.New("kvevents: not a ZMTP 3 peer of this kind")

// socket is a ZMTP connection. One goroutine reads and writes.
type socket struct {
	conn net.Conn
	r    *bufio.Reader
	buf  []byte   // the last message
	ends []int    // ends of the message's frames in buf
	part [][]byte // frames of the message
	out  []byte

	knows bool // the peer knows pings
	pings bool // the peer gets pings while it is silent
	pongs bool // the peer has answered a ping
}

// open exchanges greetings as a socket of type kind. It checks that the peer has one of the given
// types.
func open(conn net.Conn, kind string, peers ...string) (*socket, error) {
	s := &socket{conn: conn, r: bufio.NewReaderSize(conn, 64<<10)}
	var greeting [greetingSize]byte
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3 // version 3.0: subscriptions are messages
	copy(greeting[12:], "NULL")
	if _, err := conn.Write(greeting[:]); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(s.r, greeting[:]); err != nil {
		return nil, err
	}
	if greeting[0] != 0xff || greeting[9]&1 == 0 || greeting[10] < 3 {
		return nil, fmt.Errorf("%w: its greeting is of another protocol or an older version", errZMTP)
	}
	if mechanism, _, _ := bytes.Cut(greeting[12:32], []byte{0}); string(mechanism) != "NULL" {
		return nil, fmt.Errorf("%w: it asks for the security mechanism %.20q, only NULL is known", errZMTP, mechanism)
	}
	s.knows = greeting[10] > 3 || greeting[11] > 0
	ready := append([]byte("\x05READY\x0bSocket-Type"), 0, 0, 0, byte(len(kind)))
	s.out = appendFrame(s.out[:0], flagCommand, append(ready, kind...))
	if _, err := conn.Write(s.out); err != nil {
		return nil, err
	}
	flags, err := s.frame()
	if err != nil {
		return nil, err
	}
	if flags&flagCommand == 0 {
		return nil, fmt.Errorf("%w: it begins with a message", errZMTP)
	}
	return s, checkReady(s.buf, peers)
}

// checkReady reads the peer's READY command.
func checkReady(command []byte, peers []string) error {
	name, rest := property(command)
	if string(name) == "ERROR" {
		reason, _ := property(rest)
		return fmt.Errorf("%w: it refuses: %.100q", errZMTP, reason)
	}
	if string(name) != "READY" {
		return fmt.Errorf("%w: no READY", errZMTP)
	}
	for len(rest) > 0 {
		var key []byte
		if key, rest = property(rest); key == nil || len(rest) < 4 {
			break
		}
		n := binary.BigEndian.Uint32(rest)
		if rest = rest[4:]; uint64(n) > uint64(len(rest)) {
			break
		}
		if string(key) == "Socket-Type" {
			if !slices.Contains(peers, string(rest[:n])) {
				return fmt.Errorf("%w: it is a %.20q socket, wanted is one of %q", errZMTP, rest[:n], peers)
			}
			return nil
		}
		rest = rest[n:]
	}
	return fmt.Errorf("%w: its READY names no socket type", errZMTP)
}

// property reads a value behind a byte with its length. It returns nil if the value is incomplete.
func property(b []byte) (value, rest []byte) {
	if len(b) == 0 || int(b[0]) > len(b)-1 {
		return nil, nil
	}
	return b[1 : 1+b[0]], b[1+int(b[0]):]
}

// frame reads a frame and appends its body to buf.
func (s *socket) frame() (flags byte, err error) {
	if err := s.awaitFrame(); err != nil {
		return 0, err
	}
	s.withinFrame()
	if flags, err = s.r.ReadByte(); err != nil {
		return 0, err
	}
	var head [8]byte
	size := head[7:]
	if flags&flagLong != 0 {
		size = head[:]
	}
	if _, err = io.ReadFull(s.r, size); err != nil {
		return 0, unexpected(err)
	}
	n, most := binary.BigEndian.Uint64(head[:]), uint64(maxMessage-len(s.buf))
	if flags&flagCommand != 0 {
		most = maxCommand
	}
	if flags&^flagsKnown != 0 || flags&flagCommand != 0 && flags&flagMore != 0 || n > most {
		return 0, fmt.Errorf("%w: a frame with flags %#x of %d bytes", errZMTP, flags, n)
	}
	for left := int(n); left > 0; {
		step := min(left, growBy)
		at := len(s.buf)
		s.buf = slices.Grow(s.buf, step)[:at+step]
		s.withinFrame()
		if _, err = io.ReadFull(s.r, s.buf[at:]); err != nil {
			return 0, unexpected(err)
		}
		left -= step
	}
	return flags, nil
}

// unexpected turns an end of the connection within a frame into io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// message reads the next message. Its frames are valid until the next call. message answers pings
// on the way and ignores other commands.
func (s *socket) message() ([][]byte, error) {
	if cap(s.buf) > 4*growBy {
		s.buf = nil // a message of this size is rare
	}
	s.buf, s.ends, s.part = s.buf[:0], s.ends[:0], s.part[:0]
	for {
		flags, err := s.frame()
		if err != nil {
			return nil, err
		}
		start := 0
		if n := len(s.ends); n > 0 {
			start = s.ends[n-1]
		}
		if flags&flagCommand != 0 {
			if err := s.command(s.buf[start:]); err != nil {
				return nil, err
			}
			s.buf = s.buf[:start]
			continue
		}
		if len(s.ends) == maxParts {
			return nil, fmt.Errorf("%w: a message of more than %d frames", errZMTP, maxParts)
		}
		if s.ends = append(s.ends, len(s.buf)); flags&flagMore == 0 {
			break
		}
	}
	start := 0
	for _, end := range s.ends {
		s.part = append(s.part, s.buf[start:end])
		start = end
	}
	return s.part, nil
}

// command answers a ping with the ping's context, and notes answers to this side's pings.
func (s *socket) command(body []byte) error {
	name, rest := property(body)
	s.pongs = s.pongs || string(name) == "PONG"
	if string(name) != "PING" || len(rest) < 2 {
		return nil
	}
	pong := append([]byte("\x04PONG"), rest[2:min(len(rest), 2+16)]...)
	s.out = appendFrame(s.out[:0], flagCommand, pong)
	return s.write(s.out)
}

const writeWithin = 5 * time.Second

func (s *socket) write(b []byte) error {
	_ = s.conn.SetWriteDeadline(time.Now().Add(writeWithin))
	_, err := s.conn.Write(b)
	return err
}

// subscribe subscribes to messages whose first frame begins with topic.
func (s *socket) subscribe(topic string) error {
	s.out = appendFrame(s.out[:0], 0, append([]byte{1}, topic...))
	return s.write(s.out)
}

func appendFrame(dst []byte, flags byte, body []byte) []byte {
	if len(body) < 256 {
		dst = append(dst, flags, byte(len(body)))
	} else {
		dst = append(dst, flags|flagLong)
		dst = binary.BigEndian.AppendUint64(dst, uint64(len(body)))
	}
	return append(dst, body...)
}
