// Package frame is the wire format between a lease socket and its clients: small little-endian
// frames of fixed layout over a Unix stream socket.
//
// A frame is a header of HeaderSize bytes and a body. The body's length follows from op and count
// alone, so a reader can check it at once. An answer carries the op and the sequence number of its
// request. Answers come in the order of the requests. Release, Touch and Unstage are not answered.
// The server answers an invalid frame with OpError, a status and a text, and closes the connection.
//
// The socket is a stream socket, not SOCK_SEQPACKET. Both kinds of sockets cost the same per round
// trip. But one write to a stream holds several frames (releases precede the next Get), and every
// language supports streams.
package frame

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Version is the only version of the protocol.
const Version = 1

// These limits apply to both sides.
const (
	HeaderSize = 16
	MaxBatch   = 512      // addresses or leases in one frame
	MaxFrame   = 40 << 10 // bytes of a frame, header included
	MaxText    = 200      // bytes of an error's text
)

// Op is the operation of a request, or of its answer.
type Op uint8

// These are the operations. Hello must be answered before any other is used.
const (
	OpHello   Op = 1  // Hello; answered by Welcome, with the arena's memfd unless the client has it
	OpGet     Op = 2  // addresses; answered by as many Grants
	OpRelease Op = 3  // lease ids; not answered
	OpRenew   Op = 4  // lease ids; answered by as many deadlines, 0 for a lease that has ended
	OpTouch   Op = 5  // addresses of a prompt's blocks in order; not answered
	OpStat    Op = 6  // addresses; answered by as many Infos. Takes no lease and counts as no use
	OpStage   Op = 7  // a size; answered by Staged, with the memfd
	OpUnstage Op = 8  // a staging id; not answered
	OpCommit  Op = 9  // Commit; answered by one Info
	OpDelete  Op = 10 // addresses; answered by a Status byte for each
	OpPin     Op = 11 // a time in Unix ms, then addresses; answered by a Status byte for each
	OpUnpin   Op = 12 // addresses; answered by a Status byte for each
	OpPing    Op = 13 // empty; answered by an empty body
	// text of a namespace whose blocks the client will get, for requests to other hosts; answered
	// by an empty body
	OpKnow  Op = 14
	OpFind  Op = 15 // Stat for all hosts: Remote in an Info's tiers says that another host has the block
	OpRead  Op = 16 // Read: what an engine can read; answered by an empty body
	OpError Op = 255
)

// Status is the result of an operation, or of one address of a batch.
type Status uint8

// These are the statuses. The statuses from BadFrame on come in frames with OpError.
const (
	StatusOK         Status = 0
	StatusMiss       Status = 1
	StatusFull       Status = 2 // the whole arena is in use: try again later
	StatusTooLarge   Status = 3
	StatusQuota      Status = 4
	StatusCorrupt    Status = 5 // the payload's checksum differs from the client's
	StatusClosed     Status = 6 // the daemon is shutting down
	StatusNamespace  Status = 7 // not a canonical namespace of blocks
	StatusInternal   Status = 8
	StatusExists     Status = 9  // with IfAbsent: the address has a block
	StatusNotDurable Status = 10 // the block is not on disk; it may be in RAM
	StatusPin        Status = 11 // a pin that would end more than 24 h from now
	StatusNames      Status = 12 // not as many names as the namespace's objects have
	StatusBadFrame   Status = 64 // truncated, too long, or with invalid fields
	StatusVersion    Status = 65 // no common version
	StatusUnknownOp  Status = 66
	StatusDenied     Status = 67 // the peer's user and groups have no access
	StatusBusy       Status = 68 // too many clients
	StatusNoGreeting Status = 69 // the first frame was no Hello
)

var statusTexts = map[Status]string{
	StatusOK: "ok", StatusMiss: "miss", StatusFull: "arena full", StatusTooLarge: "too large",
	StatusQuota:   "over quota",
	StatusCorrupt: "wrong checksum", StatusClosed: "shutting down", StatusNamespace: "not a namespace",
	StatusInternal: "internal error",
	StatusExists:   "there is one already", StatusNotDurable: "not durable", StatusPin: "a pin ends within 24 h",
	StatusNames:    "wrong number of names",
	StatusBadFrame: "malformed frame", StatusVersion: "no common version", StatusUnknownOp: "unknown operation",
	StatusDenied: "access denied", StatusBusy: "too many clients", StatusNoGreeting: "hello expected first",
}

func (s Status) String() string {
	if text := statusTexts[s]; text != "" {
		return text
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// ErrIncomplete says that the rest of the frame has not come yet.
var ErrIncomplete = errors.New("frame: incomplete")

// Error is the reason for refusing a frame.
type Error struct {
	Status Status
	Text   string
}

func (e *Error) Error() string { return "frame: " + e.Status.String() + ": " + e.Text }

// Is makes errors.Is compare statuses.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Status == e.Status
}

// Header begins every frame.
type Header struct {
	Size   uint32 // of the whole frame, in bytes
	Op     Op
	Status Status // 0 in requests
	Count  uint16 // entries in the body
	Seq    uint64 // chosen by the requester, repeated in the answer
}

// Append writes a header. End fills in the header's size.
func Append(b []byte, h Header) []byte {
	b = binary.LittleEndian.AppendUint32(b, h.Size)
	b = append(b, byte(h.Op), byte(h.Status))
	b = binary.LittleEndian.AppendUint16(b, h.Count)
	return binary.LittleEndian.AppendUint64(b, h.Seq)
}

// End fills in the size of the frame from start to the end of b.
func End(b []byte, start int) []byte {
	binary.LittleEndian.PutUint32(b[start:], uint32(len(b)-start))
	return b
}

// SetStatus changes the status in a written header.
func SetStatus(header []byte, s Status) { header[5] = byte(s) }

// cut cuts one frame off b. Before the frame is complete it reads only the size.
func cut(b []byte) (Header, []byte, error) {
	if len(b) >= 4 {
		if size := binary.LittleEndian.Uint32(b); size < HeaderSize || size > MaxFrame {
			return Header{}, nil, &Error{StatusBadFrame, fmt.Sprintf("a size of %d, not between %d and %d", size,
				HeaderSize, MaxFrame)}
		}
	}
	if len(b) < HeaderSize {
		return Header{}, nil, ErrIncomplete
	}
	h := Header{
		Size: binary.LittleEndian.Uint32(b), Op: Op(b[4]), Status: Status(b[5]),
		Count: binary.LittleEndian.Uint16(b[6:]), Seq: binary.LittleEndian.Uint64(b[8:]),
	}
	if len(b) < int(h.Size) {
		return h, nil, ErrIncomplete
	}
	return h, b[HeaderSize:h.Size], nil
}

// layout is the layout of a body: the size of the fixed part, and the size of each entry behind it.
type layout struct {
	fixed, each int
	known       bool
}

// requestLayouts are the layouts of requests. The entries of a Know are the bytes of the
// namespace's text. Those of a Commit are the same and the bytes of the names. Those of a Read are
// the bytes of the node's id and of the namespace's text.
var requestLayouts = [256]layout{
	OpHello:  {helloSize, 0, true},
	OpGet:    {0, AddrSize, true},
	OpTouch:  {0, AddrSize, true},
	OpStat:   {0, AddrSize, true},
	OpFind:   {0, AddrSize, true},
	OpDelete: {0, AddrSize, true},
	OpUnpin:  {0, AddrSize, true},
	OpPin:    {8, AddrSize, true},

	OpRelease: {0, 8, true},
	OpRenew:   {0, 8, true},
	OpStage:   {8, 0, true},
	OpUnstage: {4, 0, true},
	OpCommit:  {commitSize, 1, true},
	OpKnow:    {0, 1, true},
	OpRead:    {readSize, 1, true},
	OpPing:    {0, 0, true},
}

// answerLayouts are the layouts of answers. The entries of an Error are the bytes of its text.
var answerLayouts = [256]layout{
	OpHello:  {welcomeSize, 0, true},
	OpGet:    {0, GrantSize, true},
	OpRenew:  {0, 8, true},
	OpStat:   {0, InfoSize, true},
	OpFind:   {0, InfoSize, true},
	OpStage:  {stagedSize, 0, true},
	OpCommit: {InfoSize, 0, true},
	OpDelete: {0, 1, true},
	OpPin:    {0, 1, true},
	OpUnpin:  {0, 1, true},
	OpError:  {0, 1, true},
	OpPing:   {0, 0, true},
	OpKnow:   {0, 0, true},
	OpRead:   {0, 0, true},
}

// Request cuts one request off b and returns its header and its body, which aliases b. The error is
// ErrIncomplete until the request is complete. With an *Error nothing more can be read from this
// peer.
func Request(b []byte) (Header, []byte, error) {
	h, body, err := read(b, &requestLayouts)
	if err == nil && h.Status != 0 {
		return h, nil, &Error{StatusBadFrame, "a request with a status"}
	}
	return h, body, err
}

// Answer cuts one answer off b, like Request.
func Answer(b []byte) (Header, []byte, error) { return read(b, &answerLayouts) }

func read(b []byte, layouts *[256]layout) (Header, []byte, error) {
	h, body, err := cut(b)
	if err != nil {
		return h, nil, err
	}
	switch l, count := layouts[h.Op], int(h.Count); {
	case !l.known:
		err = &Error{StatusUnknownOp, fmt.Sprintf("op %d", h.Op)}
	case count > MaxBatch || l.each == 0 && count != 0:
		err = &Error{StatusBadFrame, fmt.Sprintf("op %d with %d entries", h.Op, count)}
	case len(body) != l.fixed+l.each*count:
		err = &Error{StatusBadFrame, fmt.Sprintf("op %d with %d entries in %d bytes", h.Op, count, len(body))}
	default:
		return h, body, nil
	}
	return h, nil, err
}
