package jsonscan

import (
	"slices"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// unescapeAVX2 copies the n bytes at src to dst and decodes the escapes in simple. unescapeAVX2
// stops at a quote, a control character or another escape, or when less than 32 bytes are left.
// unescapeAVX2 returns how many bytes it wrote and read, and whether all examined bytes are UTF-8,
// including up to 32 bytes after those it read. unescapeAVX2 may write 32 bytes more than it
// reports.
//
//go:noescape
func unescapeAVX2(dst, src unsafe.Pointer, n int, simple *[256]byte) (wrote, read int, valid bool)

// simpleEscapes maps the character after a backslash to the character that the escape means.
var simpleEscapes = [256]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}

// The first window is small, because most strings are short. Further windows are larger.
const (
	firstWindow = 512
	window      = 64 << 10
)

// unescape appends to dst the decoded text of a string in c.buf[i:limit], as far as AVX2 can decode
// it, and returns where it stopped. unescape stops before bytes that are not acceptable. Once
// unescape has met bytes that are not UTF-8, it does nothing more, because the document will be
// refused.
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
		over := read > len(src)-margin // perhaps the window has ended and not the string
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

// partial returns the length of the last character of b, which may continue after b; 0 for ASCII. b
// must have no error before it.
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
