package wire

import (
	"errors"
	"io"
)

// errNoProgress ends the reading of a peer's stream that yields neither bytes nor an error.
var errNoProgress = errors.New("wire: reader returns nothing")

// Reader takes frames from a stream. It reads ahead by at most 4 KiB; what it has of a body by then
// comes out of Read first, and everything else goes straight to where Read is asked to put it.
type Reader struct {
	src        io.Reader
	start, end int // of what is in buf
	buf        [4096]byte
}

// Reset makes r read from src, with nothing read ahead.
func (r *Reader) Reset(src io.Reader) { r.src, r.start, r.end = src, 0, 0 }

// Next reads a head into f, whose byte strings are valid until the next call of Next. io.EOF says
// that the stream ended before it, io.ErrUnexpectedEOF that it ended within; errors of Parse mean
// that no more can be read.
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

// Buffered is how many bytes were read ahead.
func (r *Reader) Buffered() int { return r.end - r.start }

// Read reads from the stream what follows the head.
func (r *Reader) Read(p []byte) (int, error) {
	if r.start < r.end {
		n := copy(p, r.buf[r.start:r.end])
		r.start += n
		return n, nil
	}
	return r.src.Read(p)
}
