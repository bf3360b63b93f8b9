package relay

import (
	"strconv"
)

// Bounds of chunked framing. A response beyond these bounds is a protocol error.
const (
	maxChunkLine    = 4 << 10  // bytes of one chunk-size line, extensions included
	maxTrailerBytes = 16 << 10 // bytes of all trailer lines together
	maxChunkBytes   = 1 << 62  // bytes of one chunk
)

const (
	errChunkSize    = protocolError("bad chunk size")
	errChunkLine    = protocolError("chunk-size line too long")
	errChunkEnd     = protocolError("chunk not followed by a line end")
	errTrailerBytes = protocolError("trailers too long")
)

type chunkState uint8

const (
	chunkSize      chunkState = iota // hex digits of the size
	chunkExtension                   // after the digits, up to the line end
	chunkSizeLF                      // CR seen on the size line
	chunkData                        // inside the payload
	chunkDataEnd                     // the line end after the payload
	chunkDataLF                      // CR seen after the payload
	chunkTrailer                     // trailer lines up to and including an empty one
	chunkDone                        // the body has ended
)

// chunked decodes chunked transfer coding, push-style. chunked accepts any split of the input and
// stores no bytes. chunked drops extensions and trailers. A lone LF counts as a line end, because
// some servers send lone LFs. The zero value is at the start of a body.
type chunked struct {
	state     chunkState
	digits    uint8
	lineEmpty bool // the current trailer line has at most a CR
	remaining uint64
	lineBytes int
	trailer   int
}

func (d *chunked) done() bool { return d.state == chunkDone }

// decode moves the payload in p to the front of p. n is the length of the payload. used is the
// number of bytes of p that were consumed: all bytes, unless the body ended or err is set.
func (d *chunked) decode(p []byte) (n, used int, err error) {
	for used < len(p) && d.state != chunkDone {
		if d.state == chunkData {
			m := int(min(d.remaining, uint64(len(p)-used)))
			if n != used {
				copy(p[n:], p[used:used+m])
			}
			n, used = n+m, used+m
			if d.remaining -= uint64(m); d.remaining == 0 {
				d.state = chunkDataEnd
			}
			continue
		}
		if err = d.step(p[used]); err != nil {
			return n, used, err
		}
		used++
	}
	return n, used, nil
}

// step consumes one byte of framing.
func (d *chunked) step(c byte) error {
	switch d.state {
	case chunkSize, chunkExtension, chunkSizeLF:
		return d.sizeLine(c)
	case chunkDataEnd, chunkDataLF:
		return d.dataEnd(c)
	default:
		return d.trailerLine(c)
	}
}

func (d *chunked) sizeLine(c byte) error {
	if d.lineBytes++; d.lineBytes > maxChunkLine {
		return errChunkLine
	}
	switch {
	case d.state == chunkSizeLF && c != '\n':
		return errChunkSize
	case c == '\n' || c == '\r':
		if d.digits == 0 {
			return errChunkSize
		}
		if d.state = chunkSizeLF; c == '\n' {
			d.beginChunk()
		}
		return nil
	case d.state == chunkExtension:
		return nil
	case c == ';' || c == ' ' || c == '\t':
		if d.digits == 0 {
			return errChunkSize
		}
		d.state = chunkExtension
		return nil
	}
	return d.digit(c)
}

func (d *chunked) digit(c byte) error {
	v := hexValue(c)
	if d.digits++; v > 15 || d.digits > 16 {
		return errChunkSize
	}
	if d.remaining = d.remaining<<4 | uint64(v); d.remaining > maxChunkBytes {
		return errChunkSize
	}
	return nil
}

func hexValue(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c|0x20 >= 'a' && c|0x20 <= 'f':
		return c | 0x20 - 'a' + 10
	}
	return 255
}

func (d *chunked) beginChunk() {
	d.lineBytes, d.digits = 0, 0
	if d.state = chunkData; d.remaining == 0 {
		d.state, d.lineEmpty = chunkTrailer, true
	}
}

func (d *chunked) dataEnd(c byte) error {
	switch {
	case c == '\n':
		d.state = chunkSize
	case c == '\r' && d.state == chunkDataEnd:
		d.state = chunkDataLF
	default:
		return errChunkEnd
	}
	return nil
}

func (d *chunked) trailerLine(c byte) error {
	if d.trailer++; d.trailer > maxTrailerBytes {
		return errTrailerBytes
	}
	switch c {
	case '\n':
		if d.lineEmpty {
			d.state = chunkDone
		}
		d.lineEmpty = true
	case '\r':
	default:
		d.lineEmpty = false
	}
	return nil
}

// chunkRoom is the space that openChunk reserves for the size line of a chunk.
const chunkRoom = len("ffffffff\r\n")

const lastChunk = "0\r\n\r\n"

// openChunk begins a chunk at the end of dst. The caller then appends its data.
func openChunk(dst []byte) (out []byte, mark int) {
	var room [chunkRoom]byte
	return append(dst, room[:]...), len(dst)
}

// closeChunk ends the chunk that began at mark. closeChunk removes a chunk without data, because an
// empty chunk would end the body.
func closeChunk(out []byte, mark int) []byte {
	data := out[mark+chunkRoom:]
	if len(data) == 0 {
		return out[:mark]
	}
	line := append(strconv.AppendUint(out[mark:mark], uint64(len(data)), 16), "\r\n"...)
	n := copy(out[mark+len(line):], data)
	return append(out[:mark+len(line)+n], "\r\n"...)
}
