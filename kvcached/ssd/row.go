package ssd

import (
	"encoding/binary"
	"errors"

	"github.com/cognitora/dataplane/kv/block"
)

// Keys of the rows. Numbers in keys are big-endian, so that they sort.
//
//	r <address>                     a record: where it lies and its small fields
//	t <segment> <page> <address>    a tombstone: the sequence up to which records of the address are dead. The place is
//	                                the end of the log when it was made: all copies lie before it.
//	n <model>                       the text of a namespace
//	c                               the checkpoint
//	b                               the rows are incomplete: an older program was making them again
const (
	rowRecord     = 'r'
	rowTombstone  = 't'
	rowNamespace  = 'n'
	rowCheckpoint = 'c'
	rowRebuild    = 'b'
)

const (
	addrSize   = 32 + 32 + 4
	rowKeySize = 1 + addrSize
	rowFixed   = 74
	rowVersion = 1
)

// errRow says that a row does not parse. Its record is a miss.
var errRow = errors.New("ssd: malformed row")

func appendAddr(b []byte, a *block.Addr) []byte {
	b = append(b, a.Digest[:]...)
	b = append(b, a.Model[:]...)
	return binary.BigEndian.AppendUint32(b, a.Layer)
}

func parseAddr(b []byte) (a block.Addr, ok bool) {
	if len(b) != addrSize {
		return a, false
	}
	copy(a.Digest[:], b)
	copy(a.Model[:], b[32:])
	a.Layer = binary.BigEndian.Uint32(b[64:])
	return a, true
}

func recordKey(b []byte, a *block.Addr) []byte { return appendAddr(append(b, rowRecord), a) }

func tombstoneKey(p place, a *block.Addr) []byte {
	b := binary.BigEndian.AppendUint32(append(make([]byte, 0, 9+addrSize), rowTombstone), p.segment)
	return appendAddr(binary.BigEndian.AppendUint32(b, p.page), a)
}

// row is a record's row.
type row struct {
	place
	seq     uint64
	expires int64
	size    uint32
	crc     uint32
	flags   uint16
	parent  block.Digest
	key     []byte
	attr    []byte
}

func (r *row) entry(hash uint64) entry {
	return entry{hash: hash, seq: r.seq, expires: r.expires, place: r.place, size: r.size, crc: r.crc, flags: r.flags,
		state: stateLive}
}

// rowOf returns the row of a record.
func rowOf(h *header) row {
	return row{place: h.place, seq: h.seq, expires: h.Expires, size: uint32(h.size), crc: h.crc, flags: h.flags,
		parent: h.Parent, key: h.Key, attr: h.Attr}
}

// encode: 0 version u16 · 2 flags u16 · 4 segment u32 · 8 page u32 · 12 length u32 · 16 CRC u32 ·
// 20 zero u32 · 24 sequence u64 · 32 expiry i64 · 40 parent [32] · 72 length of key u16 · 74 key,
// attribute.
func (r *row) encode() []byte {
	le := binary.LittleEndian
	b := make([]byte, rowFixed, rowFixed+len(r.key)+len(r.attr))
	le.PutUint16(b, rowVersion)
	le.PutUint16(b[2:], r.flags)
	le.PutUint32(b[4:], r.segment)
	le.PutUint32(b[8:], r.page)
	le.PutUint32(b[12:], r.size)
	le.PutUint32(b[16:], r.crc)
	le.PutUint64(b[24:], r.seq)
	le.PutUint64(b[32:], uint64(r.expires))
	copy(b[40:], r.parent[:])
	le.PutUint16(b[72:], uint16(len(r.key)))
	return append(append(b, r.key...), r.attr...)
}

// decode reads b; key and attr point into it.
func (r *row) decode(b []byte) error {
	le := binary.LittleEndian
	if len(b) < rowFixed || le.Uint16(b) != rowVersion {
		return errRow
	}
	key := int(le.Uint16(b[72:]))
	if key > block.MaxKey || len(b)-rowFixed < key || len(b)-rowFixed-key > block.MaxAttr {
		return errRow
	}
	*r = row{flags: le.Uint16(b[2:]), place: place{le.Uint32(b[4:]), le.Uint32(b[8:])}, size: le.Uint32(b[12:]),
		crc: le.Uint32(b[16:]),
		seq: le.Uint64(b[24:]), expires: int64(le.Uint64(b[32:])), parent: block.Digest(b[40:72]),
		key: bytesOrNil(b[rowFixed : rowFixed+key]), attr: bytesOrNil(b[rowFixed+key:])}
	if r.size > block.MaxPayload || r.page == 0 {
		return errRow
	}
	return nil
}

// checkpoint is a place in the log. The rows have all records before it.
type checkpoint struct {
	place
	seq     uint64 // above all sequence numbers so far
	segment uint32 // number of the next segment
	day     int64  // UTC, days since 1970
	written int64  // bytes written on that day
}

const checkpointSize = 40

func (c *checkpoint) encode() []byte {
	le := binary.LittleEndian
	b := make([]byte, checkpointSize)
	le.PutUint32(b, c.place.segment)
	le.PutUint32(b[4:], c.page)
	le.PutUint64(b[8:], c.seq)
	le.PutUint32(b[16:], c.segment)
	le.PutUint64(b[24:], uint64(c.day))
	le.PutUint64(b[32:], uint64(c.written))
	return b
}

func (c *checkpoint) decode(b []byte) error {
	if len(b) != checkpointSize {
		return errRow
	}
	le := binary.LittleEndian
	*c = checkpoint{place: place{le.Uint32(b), le.Uint32(b[4:])}, seq: le.Uint64(b[8:]), segment: le.Uint32(b[16:]),
		day: int64(le.Uint64(b[24:])), written: int64(le.Uint64(b[32:]))}
	return nil
}

// missingMax bounds the segments that missing returns.
const missingMax = 1000

// missing returns the missing segments between the checkpoint and newest. Somebody has removed them
// by hand, because reclaim frees only segments that the checkpoint has passed.
func (c *checkpoint) missing(newest uint32, there func(id uint32) bool) (all []uint32) {
	for id := max(c.place.segment, 1); id < max(c.segment, newest) && len(all) < missingMax; id++ {
		if !there(id) {
			all = append(all, id)
		}
	}
	return all
}

func (p place) before(q place) bool {
	return p.segment < q.segment || p.segment == q.segment && p.page < q.page
}
