package bpf

import (
	"fmt"
	"net/netip"
	"time"
)

// EventKind is the kind of an event of a watched peer.
type EventKind uint32

// Kinds of events.
const (
	Timeout    = EventKind(socketsEventKindEVENT_TIMEOUT)    // a retransmission timeout
	Recovered  = EventKind(socketsEventKindEVENT_RECOVERED)  // a packet came in after retransmission timeouts
	Reset      = EventKind(socketsEventKindEVENT_RESET)      // the peer reset an established connection
	TimedOut   = EventKind(socketsEventKindEVENT_TIMED_OUT)  // the kernel gave up an established connection
	Refused    = EventKind(socketsEventKindEVENT_REFUSED)    // the peer refused a connection
	Unanswered = EventKind(socketsEventKindEVENT_UNANSWERED) // the kernel gave up an attempt to connect
	// the peer closed an established connection before this host did
	Closed = EventKind(socketsEventKindEVENT_CLOSED)
)

var kindNames = map[EventKind]string{Timeout: "timeout", Recovered: "recovered", Reset: "reset", TimedOut: "timed out",
	Refused: "refused", Unanswered: "unanswered", Closed: "closed"}

func (k EventKind) String() string {
	if name, ok := kindNames[k]; ok {
		return name
	}
	return fmt.Sprintf("kind %d", uint32(k))
}

// Event is a rare event on a connection to a watched peer.
type Event struct {
	At        time.Duration // CLOCK_MONOTONIC
	Age       time.Duration // age when it was read
	ID        uint64        // id from the call of Watch
	Peer      netip.AddrPort
	Kind      EventKind
	Timeouts  int    // retransmission timeouts in a row, including this one
	LocalPort uint16 // local port of the connection
}
