package jsonscan

import (
	"slices"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// unescapeAVX2 copies the n bytes at src to dst, decoding the escapes that simple lists, until it
// is at a quote, a control character or another escape, or has less than 32 bytes left. It
// returns how many bytes it wrote and read, and whether all that it looked at is UTF-8, up to
// 32 bytes behind what it read included. It may write 32 bytes more than it says.
//
//go:noescape
func unescapeAVX2(dst, src unsafe.Pointer, n int, simple *[256]byte) (wrote, read int, valid bool)

// simpleEscapes are what the characters behind a backslash stand for.
var simpleEscapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// Room is made for a little at first, because most strings are short, then for more.
const (
	firstWindow = 512
	window      = 64 << 10
)

// unescape appends to dst the decoded text of a string in c.buf[i:limit], as far as that goes fast,
// and returns where it stopped. It stops before what is not acceptable, and does nothing any more
// once it has met bytes that are not UTF-8: the document is about to be refused for them.
func (c *Cursor) unescape(dst []byte, i, limit int) ([]byte, int) {
	for size := firstWindow; cpu.X86.HasAVX2 && !c.careful && limit-i >= 2*margin; size = window {
		src := c.buf[i:min(i+size, limit)]
		dst = slices.Grow(dst, len(src)+margin)
		wrote, read, valid := unescapeAVX2(unsafe.Pointer(unsafe.SliceData(dst[len(dst):cap(dst)])),
			unsafe.Pointer(&src[0]), len(src), &simpleEscapes)
		if !valid {
			c.careful = true
			return dst, i
		}
		over := read > len(src)-margin // the window, not the string, may have ended
		if over {
			part := partial(src[:read])
			read, wrote = read-part, wrote-part
		}
		dst, i = dst[:len(dst)+wrote], i+read
		if !over || read == 0 {
			break
		}
	}
	return dst, i
}

// partial is the length of the character that b, which has no mistake before it, ends with, and
// which may go on behind b; 0 for ASCII.
func partial(b []byte) int {
	for n := 1; n <= min(len(b), utf8.UTFMax); n++ {
		switch c := b[len(b)-n]; {
		case c < utf8.RuneSelf:
			return n - 1
		case utf8.RuneStart(c):
			return n
		}
	}
	return 0
}
