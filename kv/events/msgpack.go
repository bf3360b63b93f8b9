package events

import (
	"encoding/binary"
	"math"
)

// reader reads msgpack. A value of another kind makes the reader bad, and all later results are
// zero. reader does not allocate. https://github.com/msgpack/msgpack/blob/master/spec.md
type reader struct {
	b   []byte // the unread bytes
	bad bool
}

func (r *reader) fail() {
	r.b, r.bad = nil, true
}

// byte reads a byte.
func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail()
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

// next returns the first byte of the next value. At the end it returns 0xc1, which begins no value.
func (r *reader) next() byte {
	if len(r.b) == 0 {
		return 0xc1
	}
	return r.b[0]
}

// take reads n bytes without a copy.
func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)) {
		r.fail()
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

// number reads n bytes as a big-endian number.
func (r *reader) number(n uint64) (v uint64) {
	for _, c := range r.take(n) {
		v = v<<8 | uint64(c)
	}
	return v
}

// null reads a nil if there is one, and tells whether there was.
func (r *reader) null() bool {
	if r.next() != 0xc0 {
		return false
	}
	r.b = r.b[1:]
	return true
}

// array reads the head of an array. It refuses a length beyond the remaining bytes, because each
// element takes at least a byte.
func (r *reader) array() int { return r.head(0x90, 0xdc, 1) }

// fields reads the head of a map.
func (r *reader) fields() int { return r.head(0x80, 0xde, 2) }

// head reads a number of elements. An element has at least each bytes. The number is in the low
// bits of short, in the 2 bytes behind wide, or in the 4 bytes behind wide+1.
func (r *reader) head(short, wide byte, each uint64) int {
	var n uint64
	switch c := r.byte(); {
	case c&0xf0 == short:
		n = uint64(c & 0xf)
	case c == wide:
		n = r.number(2)
	case c == wide+1:
		n = r.number(4)
	default:
		r.fail()
	}
	if n*each > uint64(len(r.b)) {
		r.fail()
		return 0
	}
	return int(n)
}

// isArray tells whether an array comes next.
func (r *reader) isArray() bool {
	c := r.next()
	return c&0xf0 == 0x90 || c == 0xdc || c == 0xdd
}

func (r *reader) isMap() bool {
	c := r.next()
	return c&0xf0 == 0x80 || c == 0xde || c == 0xdf
}

func (r *reader) isText() bool {
	c := r.next()
	return c&0xe0 == 0xa0 || c >= 0xd9 && c <= 0xdb || c >= 0xc4 && c <= 0xc6
}

func (r *reader) isInt() bool {
	c := r.next()
	return c < 0x80 || c >= 0xe0 || c >= 0xcc && c <= 0xd3
}

// text reads a string or bytes without a copy.
func (r *reader) text() []byte {
	switch c := r.byte(); {
	case c&0xe0 == 0xa0:
		return r.take(uint64(c & 0x1f))
	case c >= 0xd9 && c <= 0xdb:
		return r.take(r.number(1 << (c - 0xd9)))
	case c >= 0xc4 && c <= 0xc6:
		return r.take(r.number(1 << (c - 0xc4)))
	}
	r.fail()
	return nil
}

// int reads an integer: its 64 bits, in two's complement if it is negative.
func (r *reader) int() (bits uint64, negative bool) {
	switch c := r.byte(); {
	case c < 0x80:
		return uint64(c), false
	case c >= 0xe0:
		return uint64(int64(int8(c))), true
	case c >= 0xcc && c <= 0xcf:
		return r.number(1 << (c - 0xcc)), false
	case c >= 0xd0 && c <= 0xd3:
		n := uint64(1) << (c - 0xd0)
		v := int64(r.number(n)<<(64-8*n)) >> (64 - 8*n)
		return uint64(v), v < 0
	}
	r.fail()
	return 0, false
}

// small reads an integer from 0 to 2^31-1.
func (r *reader) small() int {
	v, negative := r.int()
	if negative || v > math.MaxInt32 {
		r.fail()
		return 0
	}
	return int(v)
}

// token reads a token id: 0 to 2^32-1. Reading a payload spends most of its time here.
func (r *reader) token() uint32 {
	if b := r.b; len(b) >= 3 {
		switch {
		case b[0] < 0x80:
			r.b = b[1:]
			return uint32(b[0])
		case b[0] == 0xcd:
			r.b = b[3:]
			return uint32(binary.BigEndian.Uint16(b[1:]))
		case b[0] == 0xce && len(b) >= 5:
			r.b = b[5:]
			return binary.BigEndian.Uint32(b[1:])
		}
	}
	v, negative := r.int()
	if negative || v > math.MaxUint32 {
		r.fail()
		return 0
	}
	return uint32(v)
}

// sizes are the sizes of values in bytes, by their first byte; 0: the first byte does not tell.
var sizes = func() (n [256]uint8) {
	for c := range n {
		switch {
		case c < 0x80 || c >= 0xe0 || c == 0xc0 || c == 0xc2 || c == 0xc3:
			n[c] = 1
		case c&0xe0 == 0xa0:
			n[c] = 1 + uint8(c&0x1f)
		case c >= 0xcc && c <= 0xd3:
			n[c] = 1 + 1<<(c&3)
		case c == 0xca || c == 0xcb:
			n[c] = 5 + 4*uint8(c-0xca)
		case c >= 0xd4 && c <= 0xd8: // an extension has a type byte
			n[c] = 2 + 1<<(c-0xd4)
		}
	}
	return n
}()

// skip skips a value of any kind and depth.
func (r *reader) skip() {
	for left := 1; left > 0 && !r.bad; left-- {
		c := r.next()
		if n := sizes[c]; n > 0 {
			r.take(uint64(n))
			continue
		}
		switch {
		case r.isArray():
			left += r.array()
		case r.isMap():
			left += 2 * r.fields()
		case r.isText():
			r.text()
		case c >= 0xc7 && c <= 0xc9: // extension: length, type, bytes
			r.byte()
			r.take(r.number(1<<(c-0xc7)) + 1)
		default:
			r.fail()
		}
	}
}
