package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf/ringbuf"
)

// EventKind says what happened to a watched peer.
type EventKind uint32

// Kinds of events.
const (
	Timeout    = EventKind(socketsEventKindEVENT_TIMEOUT)    // a retransmission timeout
	Recovered  = EventKind(socketsEventKindEVENT_RECOVERED)  // a packet came in after timeouts
	Reset      = EventKind(socketsEventKindEVENT_RESET)      // the peer reset an established connection
	TimedOut   = EventKind(socketsEventKindEVENT_TIMED_OUT)  // the kernel gave an established connection up
	Refused    = EventKind(socketsEventKindEVENT_REFUSED)    // the peer refused a connection
	Unanswered = EventKind(socketsEventKindEVENT_UNANSWERED) // the kernel gave an attempt to connect up
)

var kindNames = map[EventKind]string{Timeout: "timeout", Recovered: "recovered", Reset: "reset", TimedOut: "timed out", Refused: "refused", Unanswered: "unanswered"}

func (k EventKind) String() string {
	if name, ok := kindNames[k]; ok {
		return name
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// Event is a rare fact about a watched peer.
type Event struct {
	At        time.Duration // CLOCK_MONOTONIC
	Age       time.Duration // when it was read
	ID        uint64        // as given to WatchPeer
	Peer      netip.AddrPort
	Kind      EventKind
	Timeouts  int    // retransmission timeouts in a row, with this one
	LocalPort uint16 // of the connection
}

// Events reads the ring of events. There can be one reader of a ring; what a reader leaves there, the next one finds.
type Events struct {
	ring *ringbuf.Reader
}

// Events opens the ring. What it cannot hold is counted in Drops.
func (s *Set) Events() (*Events, error) {
	m := s.maps["cgn_events"]
	if m == nil {
		return nil, errors.New("bpf: events are read by who has loaded the programs")
	}
	r, err := ringbuf.NewReader(m)
	if err != nil {
		return nil, fmt.Errorf("bpf: open the ring of events: %w", err)
	}
	return &Events{r}, nil
}

// Next waits for an event; until the deadline, if that is not zero. Its error wraps os.ErrDeadlineExceeded then, and os.ErrClosed after Close.
func (e *Events) Next(deadline time.Time) (Event, error) {
	e.ring.SetDeadline(deadline)
	record, err := e.ring.Read()
	if err != nil {
		return Event{}, err
	}
	return decode(record.RawSample)
}

// errEvent is an event of another length than ours.
var errEvent = errors.New("bpf: an event has a length that is not known")

func decode(b []byte) (Event, error) {
	var v socketsEvent
	if len(b) < binary.Size(v) {
		return Event{}, errEvent
	}
	if err := binary.Read(bytes.NewReader(b), binary.LittleEndian, &v); err != nil {
		return Event{}, errEvent
	}
	e := Event{At: time.Duration(v.TimeNs), ID: v.Id, Peer: v.Peer.addr(), Kind: EventKind(v.Kind), Timeouts: int(v.Timeouts), LocalPort: uint16(v.LocalPort)}
	if n := now(); n > v.TimeNs {
		e.Age = time.Duration(n - v.TimeNs)
	}
	return e, nil
}

// Close ends the reader and a Next that waits.
func (e *Events) Close() error { return e.ring.Close() }
