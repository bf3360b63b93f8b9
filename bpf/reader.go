package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Source says where a Reader has its numbers from.
type Source string

// Sources.
const (
	SourceBPF  Source = "bpf"  // programs in the kernel
	SourceProc Source = "proc" // /proc, sock_diag and cgroup files
)

// ErrUnknown is wrapped where a Reader cannot tell what was asked; Missing says why.
var ErrUnknown = errors.New("this reader cannot tell")

// ErrNotWatched is wrapped where one port or group is asked for that nobody has asked to watch.
var ErrNotWatched = errors.New("it is not watched")

func notWatched(what string, number int) error {
	return fmt.Errorf("bpf: %s %d: %w", what, number, ErrNotWatched)
}

// Missing is something that a Reader cannot tell.
type Missing struct {
	What   string // as in "run-queue delay"
	Reason string // in plain words, with what to do where something can be done
}

// Reader tells what the kernel knows. Its methods may be called by several goroutines at once. All
// counts grow until the programs are removed, or, of SourceProc, until a process or connection
// ends; take differences.
type Reader interface {
	Source() Source
	// Missing lists what this reader cannot tell, and why.
	Missing() []Missing

	// WatchPort has connections to a local listening port counted. It does nothing if they are
	// already. At most 64.
	WatchPort(port uint16) error
	// UnwatchPort forgets a port and its counts.
	UnwatchPort(port uint16) error
	// WatchProcesses has a process, its threads, and all their descendants counted as one group. It
	// does nothing if they are already. At most 63 groups.
	WatchProcesses(root int) error
	// UnwatchProcesses forgets a group and its counts.
	UnwatchProcesses(root int) error

	// CPUs returns the utilisation of each CPU that has run something.
	CPUs() ([]CPU, error)
	// RunDelay sets h to how long threads waited for a CPU, on the whole host. The memory of its
	// buckets is used again.
	RunDelay(h *Histogram) error
	// Groups returns the watched groups.
	Groups() ([]Group, error)
	// Group returns one of them, at the cost of one.
	Group(root int) (Group, error)
	// Ports returns the watched ports.
	Ports() ([]Port, error)
	// Port returns one of them, at the cost of one where SourceBPF.
	Port(port uint16) (Port, error)
	// Peers returns what this host connects to; of SourceBPF, at most the 8192 used last.
	Peers() ([]Peer, error)
	// Tokens returns the timings of a watched port.
	Tokens(port uint16) (Tokens, error)
	// Drops returns what the programs could not count.
	Drops() (Drops, error)

	// Close gives back what the reader holds. Programs stay and count on.
	Close() error
}

// CPU is what one CPU did since it was first seen.
type CPU struct {
	ID       int
	Busy     time.Duration // something ran
	Idle     time.Duration
	Switches uint64 // context switches; 0 if SourceProc
}

// Group is a watched process and its descendants.
type Group struct {
	Root  int           // the process that was watched
	CPU   time.Duration // CPU time used
	Delay time.Duration // waited for a CPU
	Runs  uint64        // how often a thread of the group got a CPU
}

// Sockets counts connections to a peer or to a listening port. SourceProc sees only those that are
// established now: it fills Established, Retransmits, bytes and the path's figures.
type Sockets struct {
	Opened        uint64 // connections established
	Closed        uint64 // of these, ended
	Established   uint64 // of these, not ended
	Refused       uint64 // attempts that were answered with a reset
	Unanswered    uint64 // attempts that the kernel gave up, or could not send
	Abandoned     uint64 // attempts that the program gave up
	Resets        uint64 // established connections that the other side reset
	TimedOut      uint64 // established connections that ended because nothing was acknowledged
	Retransmits   uint64 // segments sent again
	Timeouts      uint64 // retransmission timeouts
	StallsSend    uint64 // the other side's window became zero
	StallsReceive uint64 // our own window became zero: the program does not read
	// payload, each byte once; both are behind by a connection's last seven packets out, until it
	// ends
	BytesSent     uint64
	BytesReceived uint64
	SegmentsSent  uint64 // with payload, retransmitted ones included

	// smoothed, of the connection that was looked at last: at its second packet that comes in, and
	// each eighth after it
	RTT          time.Duration
	RTTMin       time.Duration // smallest recent one of the same connection
	RTTMean      time.Duration // of the smoothed ones, over all looks
	RTTLooks     uint64        // looks at a round trip time
	RTTSum       time.Duration // what they saw, together
	DeliveryRate uint64        // bytes/s, as the kernel measured last
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

// Tokens are the timings of a port's POST requests, as its wire sees them. A stream is an answer of
// at least three pieces; a piece is what the engine sends at once, which is a token as long as it
// flushes each. A head that goes out alone, before the first token, is told by its size, or by the
// gap after it, and is none.
type Tokens struct {
	TTFT Histogram // of streams: first byte of the request in, to first token out
	ITL  Histogram // of streams: gaps between tokens

	Requests uint64 // that began
	Streams  uint64 // answers of at least three pieces
	// answers of one or two pieces, or of pieces of 4 KiB and more: no streams, or too short to
	// tell
	Singles     uint64
	SinglesTime time.Duration // sum of their times from the first byte in to the first piece out

	// What is not in the histograms.
	// streams whose first piece may be a head or have a token: they are in ITL from their second
	// gap on, and not in TTFT
	Unclear uint64
	// segments within 128 us of the one before, or written before that had gone out: the same piece
	Joined uint64
	// pieces as large as two of the smallest of their answer: several tokens, their gap is left out
	Coalesced      uint64
	UnmeasuredTLS  uint64 // connections
	UnmeasuredHTTP uint64 // HTTP/2 connections
	// connections that are neither of these nor HTTP/1, were in the middle of something, or whose
	// first request ended the handshake
	Unmeasured uint64
}

// Drops counts what was lost, by what was full.
type Drops struct {
	Events     uint64 // events: the ring was full
	Peers      uint64 // connections to new peers
	Sockets    uint64 // sockets that count nowhere
	Processes  uint64 // children that are not followed
	Threads    uint64 // threads in no group
	OddPackets uint64 // TCP packets whose headers were not understood
}
