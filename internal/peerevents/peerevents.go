// Package peerevents is the protocol over a Unix socket between the agent, which has loaded the
// programs of package bpf, and the routers of its host. A router names the peers that it connects
// to. The router gets a descriptor with which it can only read the kernel's counts of peers, and is
// told about rare events on connections to its own peers.
//
// Both sides send frames. A frame has the length of the rest (2 bytes, big-endian as all numbers),
// its type (1 byte), and its content. The router begins with Hello. The answer is Welcome, which
// has the descriptor (SCM_RIGHTS), or Rejected. Then the router sends Watch whenever its peers have
// changed. The router gets Told for each event, and Alive once a second.
package peerevents

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Version is the version of the protocol. The version changes when an older process could not
// understand it.
const Version = 1

// Bounds of the protocol.
const (
	MaxPeers  = 1024            // peers of one router, and peers of all routers of a host
	Every     = time.Second     // time between two Beats
	Silence   = 3 * time.Second // after this time without a message, the other end counts as gone
	maxReason = 1024            // bytes of a reason
	peerSize  = 18
	maxFrame  = 3 + MaxPeers*peerSize // bytes of a frame, including its length
)

// Kind is the kind of an event on a connection to a peer.
type Kind uint8

// Kinds of events.
const (
	Timeout    Kind = 1 + iota // a retransmission timeout
	Recovered                  // a packet came in after retransmission timeouts
	Reset                      // the peer reset an established connection
	TimedOut                   // the kernel gave up an established connection
	Refused                    // the peer refused a connection
	Unanswered                 // the kernel gave up an attempt to connect
	Closed                     // the peer closed an established connection before this host did
	Kinds                      // number of kinds, plus one
)

var kindNames = [Kinds]string{"", "timeout", "recovered", "reset", "timed_out", "refused", "unanswered", "closed"}

func (k Kind) String() string { return kindNames[k] }

// Event is a rare event on a connection of this host.
type Event struct {
	Kind      Kind
	Peer      netip.AddrPort
	LocalPort uint16
	Timeouts  uint16        // retransmission timeouts in a row, including this one
	Age       time.Duration // age of the event when it was sent, in µs; at most 71 minutes
}

// Beat is a sign of life, with the number of losses.
type Beat struct {
	Lost    uint64 // events for this router that were dropped because it was too slow
	Ring    uint64 // events for any reader that did not fit into the kernel's ring
	LeftOut uint32 // peers of this router that are not watched because the table is full
}

// Type is the type of a frame.
type Type uint8

// Types of frames.
const (
	Hello Type = 1 + iota
	Welcome
	Rejected
	Watch
	Told
	Alive
)

// Message is the content of a frame. Only the fields of its type are used.
type Message struct {
	Type    Type
	Version uint16           // Hello, Welcome
	Layout  uint64           // Welcome: bpf.PeersLayout of the descriptor
	Reason  string           // Rejected
	Peers   []netip.AddrPort // Watch: all peers to watch from now on
	Event   Event            // Told
	Beat    Beat             // Alive
}

var (
	magic = []byte("cgn-peers")

	errFrame = errors.New("a frame that is not understood")
)

// Append appends the frame of m to dst. Append fails if m does not fit into a frame.
func Append(dst []byte, m *Message) ([]byte, error) {
	at := len(dst)
	dst = append(dst, 0, 0, byte(m.Type))
	be := binary.BigEndian
	switch m.Type {
	case Hello:
		dst = be.AppendUint16(append(dst, magic...), m.Version)
	case Welcome:
		dst = be.AppendUint64(be.AppendUint16(append(dst, magic...), m.Version), m.Layout)
	case Rejected:
		dst = append(dst, m.Reason[:min(len(m.Reason), maxReason)]...)
	case Watch:
		if len(m.Peers) > MaxPeers {
			return dst[:at], fmt.Errorf("%d peers, at most %d can be watched", len(m.Peers), MaxPeers)
		}
		for _, p := range m.Peers {
			dst = appendPeer(dst, p)
		}
	case Told:
		e := &m.Event
		dst = appendPeer(append(dst, byte(e.Kind)), e.Peer)
		dst = be.AppendUint16(be.AppendUint16(dst, e.LocalPort), e.Timeouts)
		dst = be.AppendUint32(dst, uint32(min(max(e.Age, 0)/time.Microsecond, 1<<32-1)))
	case Alive:
		dst = be.AppendUint64(be.AppendUint64(dst, m.Beat.Lost), m.Beat.Ring)
		dst = be.AppendUint32(dst, m.Beat.LeftOut)
	default:
		return dst[:at], errFrame
	}
	be.PutUint16(dst[at:], uint16(len(dst)-at-2))
	return dst, nil
}

func appendPeer(dst []byte, p netip.AddrPort) []byte {
	addr := p.Addr().As16()
	return binary.BigEndian.AppendUint16(append(dst, addr[:]...), p.Port())
}

// Size returns the length of the frame that b begins with; 0: more bytes are needed. An error means
// that the frame is invalid.
func Size(b []byte) (int, error) {
	if len(b) < 2 {
		return 0, nil
	}
	n := int(binary.BigEndian.Uint16(b)) + 2
	if n < 3 || n > maxFrame {
		return 0, fmt.Errorf("%w: of %d bytes", errFrame, n)
	}
	return n, nil
}

// Parse parses a complete frame into m, and reuses m.Peers. If a Hello or Welcome has another
// version, Parse parses only the version.
func Parse(frame []byte, m *Message) error {
	n, err := Size(frame)
	if err != nil {
		return err
	}
	if n == 0 || n != len(frame) {
		return errFrame
	}
	*m = Message{Type: Type(frame[2]), Peers: m.Peers[:0]}
	body, be := frame[3:], binary.BigEndian
	switch {
	case m.Type == Hello || m.Type == Welcome:
		return m.greeting(body)
	case m.Type == Rejected && len(body) <= maxReason:
		m.Reason = string(body)
	case m.Type == Watch && len(body)%peerSize == 0:
		for ; len(body) > 0; body = body[peerSize:] {
			m.Peers = append(m.Peers, peerOf(body))
		}
	case m.Type == Told && len(body) == 1+peerSize+8:
		m.Event = Event{
			Kind: Kind(body[0]), Peer: peerOf(body[1:]), LocalPort: be.Uint16(body[19:]),
			Timeouts: be.Uint16(body[21:]),
			Age:      time.Duration(be.Uint32(body[23:])) * time.Microsecond,
		}
		if m.Event.Kind == 0 || m.Event.Kind >= Kinds {
			return errFrame
		}
	case m.Type == Alive && len(body) == 20:
		m.Beat = Beat{be.Uint64(body), be.Uint64(body[8:]), be.Uint32(body[16:])}
	default:
		return errFrame
	}
	return nil
}

func (m *Message) greeting(body []byte) error {
	if len(body) < len(magic)+2 || string(body[:len(magic)]) != string(magic) {
		return errFrame
	}
	body = body[len(magic):]
	m.Version = binary.BigEndian.Uint16(body)
	body = body[2:]
	switch {
	case m.Version != Version:
		return nil
	case m.Type == Hello && len(body) == 0:
		return nil
	case m.Type == Welcome && len(body) == 8:
		m.Layout = binary.BigEndian.Uint64(body)
		return nil
	}
	return errFrame
}

func peerOf(b []byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[:16])).Unmap(), binary.BigEndian.Uint16(b[16:]))
}

// Mismatch returns the error for a peer with another version.
func Mismatch(theirs uint16) error {
	return fmt.Errorf("it speaks version %d of this protocol, this program %d; run both of one release", theirs,
		Version)
}
