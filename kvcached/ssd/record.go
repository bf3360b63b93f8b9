package ssd

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
)

// A record begins with a header page. The payload follows the names in that page if it fits there.
// Otherwise it has the next pages, and zeros fill the last one. All numbers are little-endian.
//
//	0 magic · 8 version u16 · 10 flags u16 · 12 payload length u32 · 16 segment u32 · 20 page u32 · 24 sequence u64
//	32 expiry i64 · 40 salt of the segment [16] · 56 digest [32] · 88 model [32] · 120 layer u32
//	124 CRC32C of the payload u32 · 128 parent [32] · 160 lengths of namespace, key, attribute u16 each · 166 zero u16
//	168 CRC32C of this header u32 · 172 zero [20] · 192 namespace, key, attribute
//
// The header's CRC covers bytes 0 to 168 and the names. The tag of a sealed payload makes it 16
// bytes longer. A header is valid in one place only, because of segment, page and salt. Clients do
// not know the salt, so no client can send a payload that passes for a header.
const (
	recordMagic   = "cgnkvREC"
	recordVersion = 1
	recordFixed   = 192
	recordCRC     = 168
	sealTag       = 16
)

// Flags of a record.
const (
	flagInline = 1 << iota // the payload lies in the header page
	flagSealed             // the payload is sealed with AES-GCM
	flagGraves             // an older program's copy of tombstones; the record has no address
)

// errRecord says that a page is no header, or the header of another record.
var errRecord = errors.New("ssd: not a record")

// place is where a record lies.
type place struct {
	segment uint32
	page    uint32
}

// header is the header page, decoded.
type header struct {
	place
	salt  [16]byte
	flags uint16
	seq   uint64
	crc   uint32
	size  int // of the payload
	Record
}

// inlineRoom returns how many bytes of payload fit behind names of n bytes.
func inlineRoom(n int) int { return page - recordFixed - n }

func (r *Record) names() int { return len(r.Namespace) + len(r.Key) + len(r.Attr) }

// pages returns how many pages the record takes.
func (h *header) pages() uint32 { return recordPages(h.size, h.flags) }

func recordPages(size int, flags uint16) uint32 {
	if flags&flagInline != 0 {
		return 1
	}
	return 1 + uint32(roundUp(storedSize(size, flags))/page)
}

// storedSize returns how many bytes a payload takes on disk.
func storedSize(size int, flags uint16) int {
	if flags&flagSealed != 0 {
		return size + sealTag
	}
	return size
}

// encode writes h to the page b, and returns the part behind the names, which is zero.
func (h *header) encode(b []byte) (rest []byte) {
	clear(b[:page])
	le := binary.LittleEndian
	copy(b, recordMagic)
	le.PutUint16(b[8:], recordVersion)
	le.PutUint16(b[10:], h.flags)
	le.PutUint32(b[12:], uint32(h.size))
	le.PutUint32(b[16:], h.segment)
	le.PutUint32(b[20:], h.page)
	le.PutUint64(b[24:], h.seq)
	le.PutUint64(b[32:], uint64(h.Expires))
	copy(b[40:], h.salt[:])
	copy(b[56:], h.Addr.Digest[:])
	copy(b[88:], h.Addr.Model[:])
	le.PutUint32(b[120:], h.Addr.Layer)
	le.PutUint32(b[124:], h.crc)
	copy(b[128:], h.Parent[:])
	le.PutUint16(b[160:], uint16(len(h.Namespace)))
	le.PutUint16(b[162:], uint16(len(h.Key)))
	le.PutUint16(b[164:], uint16(len(h.Attr)))
	n := recordFixed
	n += copy(b[n:], h.Namespace)
	n += copy(b[n:], h.Key)
	n += copy(b[n:], h.Attr)
	le.PutUint32(b[recordCRC:], headerSum(b, h.names()))
	return b[n:page]
}

func headerSum(b []byte, names int) uint32 {
	return block.Extend(block.Sum(b[:recordCRC]), b[recordFixed:recordFixed+names])
}

// decode reads the page b. Key and Attr of h point into it. It does not check the payload's
// checksum.
func (h *header) decode(b []byte) error {
	le := binary.LittleEndian
	if len(b) < page || string(b[:8]) != recordMagic {
		return errRecord
	}
	if v := le.Uint16(b[8:]); v != recordVersion {
		return fmt.Errorf("%w: version %d", errRecord, v)
	}
	ns, key, attr := int(le.Uint16(b[160:])), int(le.Uint16(b[162:])), int(le.Uint16(b[164:]))
	if ns > block.MaxNamespace || key > block.MaxKey || attr > block.MaxAttr {
		return fmt.Errorf("%w: a name is too long", errRecord)
	}
	if headerSum(b, ns+key+attr) != le.Uint32(b[recordCRC:]) {
		return fmt.Errorf("%w: the header's checksum is wrong", errRecord)
	}
	h.flags = le.Uint16(b[10:])
	h.size = int(le.Uint32(b[12:]))
	h.segment, h.page = le.Uint32(b[16:]), le.Uint32(b[20:])
	h.seq = le.Uint64(b[24:])
	h.Expires = int64(le.Uint64(b[32:]))
	copy(h.salt[:], b[40:])
	copy(h.Addr.Digest[:], b[56:])
	copy(h.Addr.Model[:], b[88:])
	h.Addr.Layer = le.Uint32(b[120:])
	h.crc = le.Uint32(b[124:])
	copy(h.Parent[:], b[128:])
	n := recordFixed
	h.Namespace, n = string(b[n:n+ns]), n+ns
	h.Key, n = bytesOrNil(b[n:n+key]), n+key
	h.Attr = bytesOrNil(b[n : n+attr])
	if h.size > block.MaxPayload || h.flags&flagInline != 0 && storedSize(h.size, h.flags) > inlineRoom(ns+key+attr) {
		return fmt.Errorf("%w: the payload is too long", errRecord)
	}
	return nil
}

func bytesOrNil(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return b
}
