package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
)

// fixedHead is the length of a head whose strings are empty.
const fixedHead = 2 + 1 + 1 + 32 + 4 + 8 + 8 + 8 + 4 + 4 + 4 + 8 + 8 + 8 + 32 + 8 + 8 + 8

// ErrShort says that the head has not arrived completely.
var ErrShort = errors.New("wire: head is incomplete")

// Reasons why bytes are not a frame. The errors are allocated once, so a peer that sends rubbish
// costs no memory.
var (
	errNamespace = fmt.Errorf("%w: namespace of more than %d bytes", BadFrame, block.MaxNamespace)
	errKey       = fmt.Errorf("%w: key of more than %d bytes", BadFrame, block.MaxKey)
	errAttr      = fmt.Errorf("%w: attributes of more than %d bytes", BadFrame, block.MaxAttr)
	errVersion   = fmt.Errorf("%w: this side speaks %d", UnsupportedVersion, Version)
	errBody      = fmt.Errorf("%w: body of more than %d bytes", TooLarge, MaxBody)
	errSmall     = fmt.Errorf("%w: body of more bytes than the operation has", TooLarge)
	errRange     = fmt.Errorf("%w: the range does not lie in the block", BadFrame)
	errBodyLen   = fmt.Errorf("%w: the body's length is not that of the operation", BadFrame)
	errStatus    = fmt.Errorf("%w: a request has no status", BadFrame)
)

// Frame is the head of a message. The fields of a Frame stand in the order of their bytes. Parse
// makes the byte slices of a Frame point into the parsed bytes.
type Frame struct {
	Version    uint16
	Op         Op
	Status     Status       // 0 in requests
	Digest     block.Digest // digest of the block; zero if the body names addresses
	Layer      uint32
	Namespace  []byte // canonical text; empty if the body names addresses
	Offset     uint64 // Get: the range's first byte; Put: the sender's Stamp
	Len        uint64 // Get: the range's length, in a request 0: to the end; Put: the block's length
	CRC        uint32 // CRC32C of the block, with RangeSum of the range; without a block, of the body
	DeadlineMS uint32 // time that the requester waits, in ms; 0: not told; in answers the Stamp's state

	Flags   Flags
	Request uint64 // number that the requester chose; the answer repeats it
	Total   uint64 // length of the whole block in bytes; in requests of Get, Stat and Grant the sender's Stamp
	Body    uint64 // bytes that follow the head
	Parent  block.Digest
	Expires int64 // Unix time in ms; 0: never
	Key     []byte
	Attr    []byte
}

// Append appends the head. Append does not check bounds; Check does.
func (f *Frame) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, f.Version)
	b = append(b, byte(f.Op), byte(f.Status))
	b = append(b, f.Digest[:]...)
	b = le.AppendUint32(b, f.Layer)
	b = appendBytes(b, f.Namespace)
	b = le.AppendUint64(b, f.Offset)
	b = le.AppendUint64(b, f.Len)
	b = le.AppendUint32(b, f.CRC)
	b = le.AppendUint32(b, f.DeadlineMS)
	b = le.AppendUint32(b, uint32(f.Flags))
	b = le.AppendUint64(b, f.Request)
	b = le.AppendUint64(b, f.Total)
	b = le.AppendUint64(b, f.Body)
	b = append(b, f.Parent[:]...)
	b = le.AppendUint64(b, uint64(f.Expires))
	b = appendBytes(b, f.Key)
	return appendBytes(b, f.Attr)
}

// Parse reads a head from the beginning of b and returns its length. The errors of Parse are
// ErrShort, BadFrame, UnsupportedVersion and TooLarge. ErrShort means that b may become a head with
// more bytes. Parse allocates nothing.
func (f *Frame) Parse(b []byte) (int, error) {
	c := cursor{rest: b}
	f.Version = c.u16()
	if !c.short && f.Version != Version {
		return 0, errVersion
	}
	f.Op, f.Status = Op(c.u8()), Status(c.u8())
	c.digest(&f.Digest)
	f.Layer = c.u32()
	f.Namespace = c.bytes(block.MaxNamespace, errNamespace)
	f.Offset, f.Len = c.u64(), c.u64()
	f.CRC, f.DeadlineMS, f.Flags = c.u32(), c.u32(), Flags(c.u32())
	f.Request, f.Total, f.Body = c.u64(), c.u64(), c.u64()
	if c.ok() && f.Body > MaxBody {
		return 0, errBody
	}
	c.digest(&f.Parent)
	f.Expires = int64(c.u64())
	f.Key = c.bytes(block.MaxKey, errKey)
	f.Attr = c.bytes(block.MaxAttr, errAttr)
	if c.err != nil {
		return 0, c.err
	}
	if c.short {
		return 0, ErrShort
	}
	return len(b) - len(c.rest), nil
}

// Check returns an error if a request's numbers do not fit its operation. The error for an unknown
// operation is UnknownOp.
func (f *Frame) Check() error {
	if f.Status != OK {
		return errStatus
	}
	switch f.Op {
	case Ping:
		return f.bodyIs(0)
	case Get:
		if f.Offset > MaxBody || f.Len > MaxBody {
			return errRange
		}
		return f.bodyIs(0)
	case Put:
		if f.Len != f.Total {
			return errRange
		}
		return f.bodyIs(f.Len)
	case Stat, Delete, Locate, Announce, Expire, Connect, Grant, Release, Purge:
		if f.Body > f.Op.most() {
			return errSmall
		}
		return nil
	}
	return UnknownOp
}

// most is the longest body, in bytes, of an operation that carries no block.
func (o Op) most() uint64 {
	if o == Purge {
		return MaxPurges
	}
	return MaxSmall
}

// CheckAnswer returns an error if an answer does not fit its request.
func (f *Frame) CheckAnswer(to *Frame) error {
	switch {
	case f.Op != to.Op || f.Request != to.Request:
		return fmt.Errorf("%w: an answer to another request", BadFrame)
	case f.Op != Get && f.Body > f.Op.most():
		return errSmall
	case f.Op != Get || f.Status != OK:
		return nil
	case f.Body != f.Len || f.Total > MaxBody || f.Offset != to.Offset || f.Len != to.within(f.Total):
		return errRange
	}
	return nil
}

// within is the length of a Get's range in a block of total bytes. The length is 0 if the range
// begins beyond the block's end.
func (f *Frame) within(total uint64) uint64 {
	switch rest := total - min(f.Offset, total); {
	case f.Len == 0:
		return rest
	default:
		return min(rest, f.Len)
	}
}

// Range is the part of a block that a Get asks for. The range may be empty.
func (f *Frame) Range(payload []byte) []byte {
	total := uint64(len(payload))
	begin := min(f.Offset, total)
	return payload[begin : begin+f.within(total)]
}

func (f *Frame) bodyIs(n uint64) error {
	if f.Body != n {
		return errBodyLen
	}
	return nil
}

func appendBytes(b, s []byte) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}
