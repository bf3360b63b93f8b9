package instant

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http/httputil"
	"strconv"
)

// Framing holds the header fields that say where a message of HTTP/1 ends.
type Framing struct {
	Length  int // -1: not given
	Chunked bool
	Close   bool // the connection ends with this message
}

var errField = errors.New("instant: malformed header field")

// ReadFields reads the header fields after the first line, into fields that have their defaults.
func (f *Framing) ReadFields(r *bufio.Reader) error {
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			return nil
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("content-length")):
			if f.Length, err = strconv.Atoi(string(value)); err != nil || f.Length < 0 {
				return errField
			}
		case bytes.EqualFold(name, []byte("transfer-encoding")):
			f.Chunked = bytes.EqualFold(value, []byte("chunked"))
		case bytes.EqualFold(name, []byte("connection")):
			f.Close = bytes.EqualFold(value, []byte("close")) ||
				f.Close && !bytes.EqualFold(value, []byte("keep-alive"))
		}
	}
}

// Each passes the payload after the header to fn. The pieces have any size up to the size of buf.
func (f *Framing) Each(r *bufio.Reader, buf []byte, fn func([]byte) error) error {
	body, left := io.Reader(r), f.Length
	if f.Chunked {
		body, left = httputil.NewChunkedReader(r), -1
	}
	for left != 0 {
		piece := buf
		if left > 0 {
			piece = buf[:min(left, len(buf))]
		}
		n, err := body.Read(piece)
		if failed := fn(piece[:n]); failed != nil {
			return failed
		}
		switch {
		case left > 0 && err == nil:
			left -= n
		case left > 0:
			return io.ErrUnexpectedEOF
		case err == io.EOF && f.Chunked:
			return new(Framing).ReadFields(r) // trailers
		case err == io.EOF:
			return nil
		case err != nil:
			return err
		}
	}
	return nil
}
