package ssd

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
)

// The first page of a segment names the segment. A sealed segment ends with the table of its
// records and a last page, which has the table's checksum:
//
//	first: 0 magic · 8 version u16 · 10 zero u16 · 12 id u32 · 16 salt [16] · 32 CRC32C of bytes 0 to 32
//	last:  0 magic · 8 version u16 · 10 zero u16 · 12 id u32 · 16 salt [16] · 32 first page of the table u32
//	       36 records u32 · 40 CRC32C of the table u32 · 44 CRC32C of bytes 0 to 44
//	table: per record 0 page u32 · 4 payload length u32 · 8 sequence u64 · 16 CRC32C of the payload u32 · 20 flags u32
//	       24 digest [32] · 56 model [32] · 88 layer u32 · 92 zero u32
const (
	firstMagic = "cgnkvSEG"
	lastMagic  = "cgnkvEND"
	tableRow   = 96
)

// errSegment says that a file is no segment, another segment, or not sealed.
var errSegment = errors.New("ssd: not a segment")

// errMissing says that a segment is missing although the log needs it.
var errMissing = errors.New("ssd: the segment is missing")

// tableEntry is one record in a segment's table.
type tableEntry struct {
	addr  block.Addr
	seq   uint64
	page  uint32
	size  uint32
	crc   uint32
	flags uint16
}

func (e *tableEntry) pages() uint32 { return recordPages(int(e.size), e.flags) }

func encodeFirst(b []byte, id uint32, salt [16]byte) {
	clear(b[:page])
	putName(b, firstMagic, id, salt)
	binary.LittleEndian.PutUint32(b[32:], block.Sum(b[:32]))
}

func putName(b []byte, magic string, id uint32, salt [16]byte) {
	copy(b, magic)
	binary.LittleEndian.PutUint16(b[8:], recordVersion)
	binary.LittleEndian.PutUint32(b[12:], id)
	copy(b[16:], salt[:])
}

// decodeFirst reads a segment's first page.
func decodeFirst(b []byte) (id uint32, salt [16]byte, err error) {
	if err := checkName(b, firstMagic, 32); err != nil {
		return 0, salt, err
	}
	copy(salt[:], b[16:])
	return binary.LittleEndian.Uint32(b[12:]), salt, nil
}

func checkName(b []byte, magic string, covered int) error {
	le := binary.LittleEndian
	switch {
	case len(b) < page || string(b[:8]) != magic:
		return errSegment
	case le.Uint16(b[8:]) != recordVersion:
		return fmt.Errorf("%w: version %d", errSegment, le.Uint16(b[8:]))
	case le.Uint32(b[covered:]) != block.Sum(b[:covered]):
		return fmt.Errorf("%w: checksum", errSegment)
	}
	return nil
}

// footerPages returns how many pages the footer of n records takes.
func footerPages(n int) uint32 { return uint32(roundUp(int64(n)*tableRow)/page) + 1 }

// encodeFooter writes table and last page to b, which has footerPages(len(table)) pages. first is
// the first page of the table.
func encodeFooter(b []byte, id uint32, salt [16]byte, first uint32, table []tableEntry) {
	clear(b)
	le := binary.LittleEndian
	for i := range table {
		e, row := &table[i], b[i*tableRow:]
		le.PutUint32(row, e.page)
		le.PutUint32(row[4:], e.size)
		le.PutUint64(row[8:], e.seq)
		le.PutUint32(row[16:], e.crc)
		le.PutUint32(row[20:], uint32(e.flags))
		copy(row[24:], e.addr.Digest[:])
		copy(row[56:], e.addr.Model[:])
		le.PutUint32(row[88:], e.addr.Layer)
	}
	last := b[len(b)-page:]
	putName(last, lastMagic, id, salt)
	le.PutUint32(last[32:], first)
	le.PutUint32(last[36:], uint32(len(table)))
	le.PutUint32(last[40:], block.Sum(b[:len(table)*tableRow]))
	le.PutUint32(last[44:], block.Sum(last[:44]))
}

// decodeLast reads the last page of a segment of the given number of pages.
func decodeLast(b []byte, id uint32, salt [16]byte, pages uint32) (first uint32, records int, sum uint32, err error) {
	if err := checkName(b, lastMagic, 44); err != nil {
		return 0, 0, 0, err
	}
	le := binary.LittleEndian
	first, records, sum = le.Uint32(b[32:]), int(le.Uint32(b[36:])), le.Uint32(b[40:])
	if le.Uint32(b[12:]) != id || [16]byte(b[16:32]) != salt {
		return 0, 0, 0, fmt.Errorf("%w: the footer is another's", errSegment)
	}
	if first == 0 || uint64(first)+uint64(footerPages(records)) != uint64(pages) || records > int(pages) {
		return 0, 0, 0, fmt.Errorf("%w: the footer's sizes are wrong", errSegment)
	}
	return first, records, sum, nil
}

// decodeTable reads the table of n records, which all lie before page end.
func decodeTable(b []byte, n int, sum, end uint32) ([]tableEntry, error) {
	if len(b) < n*tableRow || block.Sum(b[:n*tableRow]) != sum {
		return nil, fmt.Errorf("%w: the table's checksum is wrong", errSegment)
	}
	le := binary.LittleEndian
	table := make([]tableEntry, n)
	for i := range table {
		e, row := &table[i], b[i*tableRow:]
		*e = tableEntry{page: le.Uint32(row), size: le.Uint32(row[4:]), seq: le.Uint64(row[8:]),
			crc: le.Uint32(row[16:]), flags: uint16(le.Uint32(row[20:]))}
		copy(e.addr.Digest[:], row[24:])
		copy(e.addr.Model[:], row[56:])
		e.addr.Layer = le.Uint32(row[88:])
		if e.size > block.MaxPayload || e.page == 0 || uint64(e.page)+uint64(e.pages()) > uint64(end) {
			return nil, fmt.Errorf("%w: a record of the table lies outside", errSegment)
		}
	}
	return table, nil
}
