// Package wire is the codec of cgn-kv/1, the protocol in which cache daemons ask each other for
// blocks.
//
// A message is the head of a Frame, then a body of the length that the head states. The head is
// encoded as bincode encodes a struct: fields in order and integers in little-endian with fixed
// width. Strings and byte strings are a u64 length and then their bytes. Requests and answers have
// the same form.
//
// The package reads only from memory or from a reader of its caller. Every length is checked before
// memory is allocated for it.
package wire

import (
	"strconv"

	"github.com/cognitora/dataplane/kv/block"
)

// Version is the version of the protocol that this package speaks. ALPN is the protocol's name in
// TLS handshakes.
const (
	Version = 1
	ALPN    = "cgn-kv/1"
)

// Bounds of a frame's contents. MaxBatch, MaxHosts and MaxHolders are counts; the other bounds are
// in bytes.
const (
	MaxBody    = block.MaxPayload
	MaxBatch   = 4096 // addresses in one request
	MaxHosts   = 256  // hosts in one answer to Locate
	MaxHolders = 4    // holders of one address in an answer to Locate
	MaxHost    = 256  // bytes of a host's name
	MaxHead    = fixedHead + block.MaxNamespace + block.MaxKey + block.MaxAttr
	// MaxSmall is the longest body of every operation but Get, Put and Purge. MaxSmall holds an
	// answer to Locate with all its fields at their bounds.
	MaxSmall = 16 + MaxHosts*(8+MaxHost) + MaxBatch*(8+MaxHolders*sizeHolder)
	// MaxPurges is the longest body of Purge: the list of purges as JSON.
	MaxPurges = 1<<20 + 1<<17
)

// Op is the operation of a request. Numbers are never reused.
type Op uint8

// Operations.
const (
	Ping     Op = 1 // an empty request; the answer is an empty OK
	Get      Op = 2 // a block or a range of it; the answer is its bytes
	Put      Op = 3 // stores the block in the body
	Stat     Op = 4 // Addrs; the answer is Infos
	Delete   Op = 5 // Addrs; the answer is one byte for each address, 1 if there was a block
	Locate   Op = 6 // Addrs; the answer is Locations: the known holders of each address
	Announce Op = 7 // Announcement: blocks that a host has got or lost; the answer is a Receipt
	Expire   Op = 8 // Order: blocks get another expiry; the answer is a Reply
	// Numbers 9 to 12 are retired. The answer to a frame with one of these numbers is UnknownOp.

	// Connect carries a Connection and is answered with Connected. Connect prepares RDMA reads: the
	// requester's network card reads blocks from this host's memory.
	Connect Op = 13
	Grant   Op = 14 // Wanted; the answer is Granted: the requester may read blocks for a while
	Release Op = 15 // Returned: the requester has read the blocks

	// Purge carries a list of purges as JSON and asks for their execution. The answer to a Purge is
	// a Reply. A Purge with an empty body asks for the answerer's list of purges.
	Purge Op = 16
)

// opNames has the name of each operation, also for labels of metrics.
var opNames = [...]string{Ping: "ping", Get: "get", Put: "put", Stat: "stat", Delete: "delete", Locate: "locate",
	Announce: "announce",
	Expire:   "expire", Connect: "connect",
	Grant: "grant", Release: "release", Purge: "purge"}

// Ops is the length of a table that is indexed by operation.
const Ops = len(opNames)

// Known tells whether this package knows the operation.
func (o Op) Known() bool { return int(o) < Ops && opNames[o] != "" }

// Reads tells whether the operation changes nothing.
func (o Op) Reads() bool { return o == Ping || o == Get || o == Stat || o == Locate }

// Stamped tells whether requests and answers of the operation carry Stamps.
func (o Op) Stamped() bool { return o == Get || o == Stat || o == Grant || o == Put }

// Grants tells whether the operation belongs to RDMA reads: Connect, Grant or Release. A client
// that may use Get may use these operations.
func (o Op) Grants() bool { return o == Connect || o == Grant || o == Release }

func (o Op) String() string {
	if o.Known() {
		return opNames[o]
	}
	return "op " + strconv.Itoa(int(o))
}

// Status is the outcome of a request. All but OK are errors. errors.Is finds a Status in the errors
// that calls return.
type Status uint8

// Statuses. Numbers are never reused.
const (
	OK                 Status = 0
	Miss               Status = 1  // the host has no block at the address
	Busy               Status = 2  // a limit is reached; a later try, or another host, may succeed
	TooLarge           Status = 3  // a block or a batch exceeds its longest length
	Quota              Status = 4  // the namespace's quota is used up
	Forbidden          Status = 5  // the certificate's role forbids the operation
	BadFrame           Status = 6  // the bytes are not a frame, or the frame contradicts itself
	UnsupportedVersion Status = 7  // the frame is of another version of the protocol
	UnknownOp          Status = 8  // the operation is not known
	Corrupt            Status = 9  // the bytes do not have their checksum
	Deadline           Status = 10 // the operation did not end within deadline_ms
	ReplayRefused      Status = 11 // this version never sends ReplayRefused, because its servers take no 0-RTT data
	Internal           Status = 12 // the answerer failed; its log says why
	ByStream           Status = 13 // the block cannot be read with RDMA; Get serves it
)

// statusNames has the name of each status, also for labels of metrics.
var statusNames = [...]string{"ok", "miss", "busy", "too_large", "quota", "forbidden", "bad_frame",
	"unsupported_version",
	"unknown_op", "corrupt", "deadline", "replay_refused", "internal", "by_stream"}

// Statuses is the length of a table that is indexed by status.
const Statuses = len(statusNames)

func (s Status) String() string {
	if int(s) < Statuses {
		return statusNames[s]
	}
	return "status " + strconv.Itoa(int(s))
}

// Error returns the status as an error's text.
func (s Status) Error() string { return "kv: " + s.String() }

// Flags of a frame.
type Flags uint32

// Flags. Receivers ignore unknown flags.
const (
	RangeSum Flags = 1 << iota // Get: CRC is the checksum of the range; set in the request and in its answer
	Durable                    // Put: the answer waits until the block is on stable storage
	IfAbsent                   // Put: a block that exists at the address stays
	Snapshot                   // Announce: the announcement replaces all earlier ones
	Expiries                   // Stat: the answer also has the expiry of each block
)
