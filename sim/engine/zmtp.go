package engine

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
)

// This file is the part of ZMTP 3.0 needed by a PUB and a ROUTER socket: the NULL handshake and
// frames. https://rfc.zeromq.org/spec/23/

// These are the flags of a frame.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

// maxFrame bounds a peer's frames: subscriptions and replay requests.
const maxFrame = 64 << 10

var errZMTP = errors.New("engine: not a ZMTP 3 peer")

// peer is one ZMTP connection after its handshake.
type peer struct {
	conn net.Conn
	r    *bufio.Reader
}

// handshake exchanges greetings and READY commands as a socket of type kind.
func handshake(conn net.Conn, kind string) (*peer, error) {
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	if _, err := conn.Write(greeting); err != nil {
		return nil, err
	}
	p := &peer{conn: conn, r: bufio.NewReader(conn)}
	if _, err := io.ReadFull(p.r, greeting); err != nil {
		return nil, err
	}
	if greeting[0] != 0xff || greeting[10] < 3 || string(greeting[12:17]) != "NULL\x00" {
		return nil, errZMTP
	}
	ready := []byte("\x05READY\x0bSocket-Type")
	ready = binary.BigEndian.AppendUint32(ready, uint32(len(kind)))
	ready = append(ready, kind...)
	if _, err := conn.Write(appendFrame(nil, flagCommand, ready)); err != nil {
		return nil, err
	}
	flags, body, err := p.frame()
	if err != nil {
		return nil, err
	}
	if flags&flagCommand == 0 || !strings.HasPrefix(string(body), "\x05READY") {
		return nil, errZMTP
	}
	return p, nil
}

// frame reads one frame.
func (p *peer) frame() (flags byte, body []byte, err error) {
	if flags, err = p.r.ReadByte(); err != nil {
		return 0, nil, err
	}
	size := make([]byte, 8)
	if flags&flagLong == 0 {
		_, err = io.ReadFull(p.r, size[7:])
	} else {
		_, err = io.ReadFull(p.r, size)
	}
	if err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint64(size)
	if n > maxFrame {
		return 0, nil, fmt.Errorf("%w: frame of %d bytes", errZMTP, n)
	}
	body = make([]byte, n)
	_, err = io.ReadFull(p.r, body)
	return flags, body, err
}

// maxParts bounds the frames of a message from a peer.
const maxParts = 16

// message reads one message. A command is a message of one frame.
func (p *peer) message() (parts [][]byte, command bool, err error) {
	for len(parts) < maxParts {
		flags, body, err := p.frame()
		if err != nil {
			return nil, false, err
		}
		parts = append(parts, body)
		if flags&flagMore == 0 {
			return parts, flags&flagCommand != 0, nil
		}
	}
	return nil, false, errZMTP
}

// appendMessage appends a message with the given frames.
func appendMessage(dst []byte, parts ...[]byte) []byte {
	for i, part := range parts {
		flags := byte(0)
		if i < len(parts)-1 {
			flags = flagMore
		}
		dst = appendFrame(dst, flags, part)
	}
	return dst
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

// network splits a ZMQ endpoint into the arguments of net.Dial and net.Listen.
func network(endpoint string) (network, addr string, err error) {
	scheme, rest, _ := strings.Cut(endpoint, "://")
	switch scheme {
	case "tcp":
		return "tcp", strings.TrimPrefix(rest, "*"), nil
	case "ipc":
		return "unix", rest, nil
	}
	return "", "", fmt.Errorf("engine: endpoint %q is neither tcp:// nor ipc://", endpoint)
}

// endpointOf is the inverse of network for a bound listener.
func endpointOf(l net.Listener) string {
	if l.Addr().Network() == "unix" {
		return "ipc://" + l.Addr().String()
	}
	return "tcp://" + l.Addr().String()
}
