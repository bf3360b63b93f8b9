package wire

import (
	"encoding/binary"

	"github.com/cognitora/dataplane/kv/block"
)

// cursor reads fields from the front of a byte slice. After its first failure a cursor returns
// zeros.
type cursor struct {
	rest  []byte
	short bool  // there were too few bytes
	err   error // a length was beyond its bound
}

func (c *cursor) ok() bool { return !c.short && c.err == nil }

func (c *cursor) take(n int) []byte {
	if !c.ok() {
		return nil
	}
	if len(c.rest) < n {
		c.short = true
		return nil
	}
	b := c.rest[:n:n]
	c.rest = c.rest[n:]
	return b
}

func (c *cursor) u8() uint8 {
	if b := c.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (c *cursor) u16() uint16 {
	if b := c.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if b := c.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if b := c.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (c *cursor) digest(d *block.Digest) { copy(d[:], c.take(len(d))) }

// length reads the length of a sequence. A length above bound makes beyond the cursor's error.
func (c *cursor) length(bound uint64, beyond error) int {
	n := c.u64()
	if c.ok() && n > bound {
		c.err = beyond
		return 0
	}
	return int(n)
}

func (c *cursor) bytes(bound uint64, beyond error) []byte {
	return c.take(c.length(bound, beyond))
}

// end returns the cursor's error, or errBodyLen if bytes are left.
func (c *cursor) end() error {
	switch {
	case c.err != nil:
		return c.err
	case c.short || len(c.rest) != 0:
		return errBodyLen
	}
	return nil
}
