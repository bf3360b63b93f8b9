package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Source is the origin of a Reader's figures.
type Source string

// Sources.
const (
	SourceBPF  Source = "bpf"  // programs in the kernel
	SourceProc Source = "proc" // /proc, sock_diag and cgroup files
)

// ErrUnknown is wrapped if a Reader cannot measure a figure. Missing gives the reason.
var ErrUnknown = errors.New("this reader cannot tell")

// ErrNotWatched is wrapped if a port or group is read that is not watched.
var ErrNotWatched = errors.New("it is not watched")

func notWatched(what string, number int) error {
	return fmt.Errorf("bpf: %s %d: %w", what, number, ErrNotWatched)
}

// Missing is a figure that a Reader cannot measure.
type Missing struct {
	What   string // as in "run-queue delay"
	Reason string // in plain words, with a fix if there is one
}

// Reader reads the kernel's figures. Several goroutines may call its methods at once. All counts
// grow until the programs are removed; the counts of SourceProc grow until a process or connection
// ends. Take differences.
type Reader interface {
	Source() Source
	// Missing lists the figures that this reader cannot measure, and the reasons.
	Missing() []Missing

	// WatchPort starts counting connections to a local listening port. WatchPort does nothing if
	// the port is watched already. At most 64 ports can be watched.
	WatchPort(port uint16) error
	// UnwatchPort forgets a port and its counts.
	UnwatchPort(port uint16) error
	// WatchProcesses starts counting a process, its threads and all their descendants as one group.
	// WatchProcesses does nothing if the group is watched already. At most 63 groups can be
	// watched.
	WatchProcesses(root int) error
	// UnwatchProcesses forgets a group and its counts.
	UnwatchProcesses(root int) error

	// RunDelay sets h to the waits of threads for a CPU, on the whole host. RunDelay reuses the
	// memory of h's buckets.
	RunDelay(h *Histogram) error
	// Groups returns the watched groups.
	Groups() ([]Group, error)
	// Group returns one of the watched groups, at the cost of reading one group.
	Group(root int) (Group, error)
	// Ports returns the watched ports.
	Ports() ([]Port, error)
	// Port returns one of the watched ports. With SourceBPF the call costs the reading of one port.
	Port(port uint16) (Port, error)
	// Tokens returns the timings of a watched port.
	Tokens(port uint16) (Tokens, error)
	// Drops returns the counts of losses.
	Drops() (Drops, error)

	// Close releases the reader's descriptors. Programs stay and go on counting.
	Close() error
}

// CPU is the usage of one CPU since it was first seen.
type CPU struct {
	ID       int
	Busy     time.Duration // time with a running thread
	Idle     time.Duration
	Switches uint64 // context switches
}

// Group is a watched process and its descendants.
type Group struct {
	Root  int           // the watched process
	CPU   time.Duration // CPU time used
	Delay time.Duration // time waited for a CPU
	Runs  uint64        // times that a thread of the group got a CPU
}

// Sockets counts connections to a peer or to a listening port. SourceProc sees only connections
// that are established at the time. SourceProc fills Established, Retransmits, SegmentsSent,
// RTTLooks and RTTSum.
type Sockets struct {
	Opened        uint64 // connections that were established
	Closed        uint64 // established connections that ended
	Established   uint64 // connections that are established now
	Refused       uint64 // attempts that were answered with a reset
	Unanswered    uint64 // attempts that the kernel gave up or could not send
	Abandoned     uint64 // attempts that the program gave up
	Resets        uint64 // established connections that the other side reset
	TimedOut      uint64 // established connections that ended because the other side acknowledged nothing
	Retransmits   uint64 // retransmitted segments
	Timeouts      uint64 // retransmission timeouts
	StallsSend    uint64 // times that the other side's window became zero
	StallsReceive uint64 // times that our window became zero, because the program does not read
	// payload without retransmissions; until a connection ends, its last seven outgoing packets are
	// missing in both counts
	BytesSent     uint64
	BytesReceived uint64
	SegmentsSent  uint64 // segments with payload, retransmissions included

	// smoothed, of the connection that was sampled last; a connection is sampled at its second
	// incoming packet and at each eighth after it
	RTT          time.Duration
	RTTMin       time.Duration // smallest recent round trip of the same connection
	RTTMean      time.Duration // mean of the smoothed round trips of all samples
	RTTLooks     uint64        // samples of the round trip time
	RTTSum       time.Duration // sum of these samples
	DeliveryRate uint64        // bytes/s, the kernel's last measurement
}

// Port is a watched listening port.
type Port struct {
	Port uint16
	Sockets
}

// Peer is a remote address and port that this host connects to.
type Peer struct {
	Addr netip.AddrPort
	Sockets
}

// Tokens holds the timings of a port's POST requests, measured at its packets. A stream is an
// answer of at least three pieces. A piece is data that the engine sends at once. A piece is a
// token if the engine flushes after each token. A head that is sent alone, before the first token,
// is recognised by its size or by the gap after it, and is not a token.
type Tokens struct {
	TTFT Histogram // of streams: from the first byte of the request to the first token
	ITL  Histogram // of streams: gaps between tokens

	Requests uint64 // requests that began
	Streams  uint64 // answers of at least three pieces
	// answers of one or two pieces, or with pieces of at least 4 KiB: no streams, or too short to
	// decide
	Singles     uint64
	SinglesTime time.Duration // sum of their times from the first byte of the request to the first piece

	// The counts below are not in the histograms. Unclear counts streams whose first piece may be a
	// head or contain a token. Unclear streams are in ITL from their second gap on, and not in
	// TTFT.
	Unclear uint64
	// segments that belong to the piece before: sent within 128 us of it, or written before it had
	// gone out
	Joined uint64
	// pieces at least twice as large as the smallest of their answer, hence several tokens; their
	// gaps are left out
	Coalesced      uint64
	UnmeasuredTLS  uint64 // TLS connections
	UnmeasuredHTTP uint64 // HTTP/2 connections
	// connections of another protocol, connections first seen in the middle of an exchange, and
	// connections whose first request ended the handshake
	Unmeasured uint64
}

// Drops counts losses, by the table or buffer that was full.
type Drops struct {
	Events     uint64 // events that did not fit into the ring
	Peers      uint64 // connections to new peers that are not counted
	Sockets    uint64 // sockets that are not counted
	Processes  uint64 // child processes that are not followed
	Threads    uint64 // threads without a group
	OddPackets uint64 // TCP packets whose headers could not be parsed
}
