package wire

import (
	"errors"
	"io"
)

// errNoProgress says that a peer's stream yields neither bytes nor an error.
var errNoProgress = errors.New("wire: reader returns nothing")

// Reader reads frames from a stream. A Reader reads at most 4 KiB ahead. Read returns the bytes
// that were read ahead first, then reads directly into the caller's slice.
type Reader struct {
	src        io.Reader
	start, end int // range of the unread bytes in buf
	buf        [4096]byte
}

// Reset makes r read from src and discards the bytes that were read ahead.
func (r *Reader) Reset(src io.Reader) { r.src, r.start, r.end = src, 0, 0 }

// Next reads a head into f. The byte slices of f are valid until the next call of Next. io.EOF says
// that the stream ended before a head, io.ErrUnexpectedEOF that the stream ended within a head. The
// stream is unusable after an error of Parse.
func (r *Reader) Next(f *Frame) error {
	copy(r.buf[:], r.buf[r.start:r.end])
	r.end, r.start = r.end-r.start, 0
	for idle := 0; ; {
		n, err := f.Parse(r.buf[:r.end])
		if err == nil {
			r.start = n
			return nil
		}
		if !errors.Is(err, ErrShort) {
			return err
		}
		n, err = r.src.Read(r.buf[r.end:])
		r.end += n
		if n > 0 {
			idle = 0
			continue
		}
		if idle++; err == nil && idle > 100 {
			err = errNoProgress
		}
		if err == io.EOF && r.end > 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
	}
}

// Buffered is the number of bytes that were read ahead.
func (r *Reader) Buffered() int { return r.end - r.start }

// Read reads the bytes behind the head: the body.
func (r *Reader) Read(p []byte) (int, error) {
	if r.start < r.end {
		n := copy(p, r.buf[r.start:r.end])
		r.start += n
		return n, nil
	}
	return r.src.Read(p)
}
