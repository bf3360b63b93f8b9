package wire

import (
	"encoding/binary"
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
)

// Sizes of one element of a batch, in bytes.
const (
	sizeAddr = 32 + 32 + 4
	sizeInfo = 8 + 4 + 4
	sizeLong = sizeInfo + 8 // size with the flag Expiries
)

var errBatch = fmt.Errorf("%w: more than %d addresses", TooLarge, MaxBatch)

// Info is the answer of Stat about one block.
type Info struct {
	Length uint64 // length of the block, in bytes
	CRC    uint32
	Tiers  uint32 // bit set of the block's tiers: 1 RAM, 2 SSD; 0: the block is nowhere
	// Expires is the moment when the block expires, Unix ms; 0: never. Expires is sent only with
	// the flag Expiries.
	Expires int64
	Stamp   Stamp // taken from the answer's head; not part of the body
}

// AppendAddrs appends the body of Stat, Delete and Locate. The body is a u64 count, then digest,
// layer and model of each address.
func AppendAddrs(b []byte, addrs []block.Addr) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(len(addrs)))
	for i := range addrs {
		b = appendAddr(b, &addrs[i])
	}
	return b
}

// ParseAddrs appends the addresses in body to into. More than MaxBatch addresses are an error.
func ParseAddrs(body []byte, into []block.Addr) ([]block.Addr, error) {
	c := cursor{rest: body}
	n := c.length(MaxBatch, errBatch)
	if c.ok() && len(c.rest) != n*sizeAddr {
		return into, errBodyLen
	}
	for range n {
		var a block.Addr
		c.addr(&a)
		into = append(into, a)
	}
	return into, c.end()
}

func appendAddr(b []byte, a *block.Addr) []byte {
	b = append(append(b, a.Digest[:]...), a.Model[:]...)
	return binary.LittleEndian.AppendUint32(b, a.Layer)
}

func (c *cursor) addr(a *block.Addr) {
	c.digest(&a.Digest)
	c.digest((*block.Digest)(&a.Model))
	a.Layer = c.u32()
}

// AppendInfos appends the body of an answer to Stat: length, checksum and tiers of each block. An
// expiry follows the tiers if expiries is set.
func AppendInfos(b []byte, infos []Info, expiries bool) []byte {
	le := binary.LittleEndian
	for _, i := range infos {
		b = le.AppendUint32(le.AppendUint32(le.AppendUint64(b, i.Length), i.CRC), i.Tiers)
		if expiries {
			b = le.AppendUint64(b, uint64(i.Expires))
		}
	}
	return b
}

// ParseInfos fills out, which must have one element for each address of the request.
func ParseInfos(body []byte, out []Info, expiries bool) error {
	size := sizeInfo
	if expiries {
		size = sizeLong
	}
	if len(body) != len(out)*size {
		return errBodyLen
	}
	c := cursor{rest: body}
	for i := range out {
		out[i] = Info{Length: c.u64(), CRC: c.u32(), Tiers: c.u32()}
		if expiries {
			out[i].Expires = int64(c.u64())
		}
	}
	return c.end()
}

// AppendBools appends the body of an answer to Delete: one byte for each address.
func AppendBools(b []byte, values []bool) []byte {
	for _, v := range values {
		if v {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	return b
}

// ParseBools fills out, which must have one element for each address of the request.
func ParseBools(body []byte, out []bool) error {
	if len(body) != len(out) {
		return errBodyLen
	}
	for i, v := range body {
		if v > 1 {
			return fmt.Errorf("%w: %d is neither true nor false", BadFrame, v)
		}
		out[i] = v == 1
	}
	return nil
}
