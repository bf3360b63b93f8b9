// Package wire is the codec of cgn-kv/1, the protocol in which cache daemons ask each other for
// blocks.
//
// A message is the head of a Frame and then, of the length that the head states, a body. The head
// has the fixed little-endian layout that bincode gives a struct: fields in order, integers of
// fixed width, strings and byte strings as a u64 length followed by the bytes. A request and its
// answer have the same form.
//
// Everything here works on memory or on a reader that it is given; a length is checked before
// memory is taken for it.
package wire

import (
	"strconv"

	"github.com/cognitora/dataplane/kv/block"
)

// Version is the version of the protocol that this package speaks, and ALPN its name in handshakes.
const (
	Version = 1
	ALPN    = "cgn-kv/1"
)

// Bounds of what a frame may hold, in bytes where they are not counts.
const (
	MaxBody    = block.MaxPayload
	MaxBatch   = 4096 // addresses in one request
	MaxHosts   = 256  // hosts that one answer to Locate names
	MaxHolders = 4    // hosts of one address in it
	MaxHost    = 256  // a host's name
	MaxHead    = fixedHead + block.MaxNamespace + block.MaxKey + block.MaxAttr
	// MaxSmall is the longest body of everything but Get, Put and Purge: an answer to Locate at all
	// its bounds.
	MaxSmall = 16 + MaxHosts*(8+MaxHost) + MaxBatch*(8+MaxHolders*sizeHolder)
	// MaxPurges is the longest list of purges.
	MaxPurges = 1<<20 + 1<<17
)

// Op says what is asked for. Numbers are never reused.
type Op uint8

// Operations.
const (
	Ping     Op = 1 // nothing: answered with an empty OK
	Get      Op = 2 // a block or a range of it: answered with its bytes
	Put      Op = 3 // keep the block in the body
	Stat     Op = 4 // Addrs: answered with Infos
	Delete   Op = 5 // Addrs: answered with one byte each, 1 where there was a block
	Locate   Op = 6 // Addrs: answered with Locations, who is known to have them
	Announce Op = 7 // Announcement: what a host has now and no longer has; answered with a Receipt
	Expire   Op = 8 // Order; answered with a Reply: blocks are over at another moment
	// 9 to 12 are retired: a frame with one is answered UnknownOp.

	// Connection: answered with Connected; the asking side is going to read blocks itself, with
	// cards of both sides that do so (RDMA)
	Connect Op = 13
	Grant   Op = 14 // Wanted: answered with Granted; it may read some blocks for a while
	Release Op = 15 // Returned: it has read them

	// Purge has a list of purges, as JSON, in its body: carry them out; answered with a Reply. With
	// an empty body it asks for the list, which is the answer.
	Purge Op = 16
)

// opNames are also the label values of metrics.
var opNames = [...]string{Ping: "ping", Get: "get", Put: "put", Stat: "stat", Delete: "delete", Locate: "locate",
	Announce: "announce",
	Expire:   "expire", Connect: "connect",
	Grant: "grant", Release: "release", Purge: "purge"}

// Ops is one more than the highest operation known: the length of a table by operation.
const Ops = len(opNames)

// Known tells whether this package knows the operation.
func (o Op) Known() bool { return int(o) < Ops && opNames[o] != "" }

// Reads tells whether the operation changes nothing.
func (o Op) Reads() bool { return o == Ping || o == Get || o == Stat || o == Locate }

// Stamped tells whether a request says up to which purge its sender knows, and the answer up to
// which purge the answerer's blocks are checked.
func (o Op) Stamped() bool { return o == Get || o == Stat || o == Grant || o == Put }

// Grants tells whether the operation is one by which a peer comes to read blocks itself: who may
// Get may do it.
func (o Op) Grants() bool { return o == Connect || o == Grant || o == Release }

func (o Op) String() string {
	if o.Known() {
		return opNames[o]
	}
	return "op " + strconv.Itoa(int(o))
}

// Status says how a request ended. All but OK are errors, and errors.Is finds them in what calls
// return.
type Status uint8

// Statuses. Numbers are never reused.
const (
	OK                 Status = 0
	Miss               Status = 1  // no such block here
	Busy               Status = 2  // a limit is reached: try again later, or elsewhere
	TooLarge           Status = 3  // longer than a block or a batch may be
	Quota              Status = 4  // the namespace's share is used up
	Forbidden          Status = 5  // the certificate's role may not do this
	BadFrame           Status = 6  // not a frame, or one that contradicts itself
	UnsupportedVersion Status = 7  // of another version of the protocol
	UnknownOp          Status = 8  // of a later version, or rubbish
	Corrupt            Status = 9  // bytes and checksum differ
	Deadline           Status = 10 // not done within deadline_ms
	ReplayRefused      Status = 11 // not sent by this version, whose servers take no 0-RTT data
	Internal           Status = 12 // the other side could not, and logs why
	ByStream           Status = 13 // not by reading it from the other side's memory: ask for it with Get
)

// statusNames are also the label values of metrics.
var statusNames = [...]string{"ok", "miss", "busy", "too_large", "quota", "forbidden", "bad_frame",
	"unsupported_version",
	"unknown_op", "corrupt", "deadline", "replay_refused", "internal", "by_stream"}

// Statuses is one more than the highest status known: the length of a table by status.
const Statuses = len(statusNames)

func (s Status) String() string {
	if int(s) < Statuses {
		return statusNames[s]
	}
	return "status " + strconv.Itoa(int(s))
}

// Error makes a Status an error.
func (s Status) Error() string { return "kv: " + s.String() }

// Err is nil for OK and the status itself for all others.
func (s Status) Err() error {
	if s == OK {
		return nil
	}
	return s
}

// Flags of a frame.
type Flags uint32

// Flags. Unknown ones are ignored.
const (
	RangeSum Flags = 1 << iota // Get: the answer's checksum is of the range, not of the whole block; said in both
	Durable                    // Put: answer when the block is on stable storage
	IfAbsent                   // Put: an existing block stays
	Snapshot                   // Announce: forget what was announced before
	Expiries                   // Stat: the answer tells when each block expires, too
)
