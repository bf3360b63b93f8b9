package s3

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

// step is how many bytes a client may send or take within Options.Timeout, at least: 1 MiB.
const step = 1 << 20

// payload is the body of a request on its way into memory.
type payload struct {
	c       *call
	from    io.Reader
	chunked *chunked // nil: the body is the payload
	length  int
	sums    checksums
}

// openPayload finds out how long the payload is and how it is encoded; nothing of it is read yet, and no memory taken.
func (c *call) openPayload(limit int64) (*payload, error) {
	sums, err := checksumsOf(c.r.Header)
	if err != nil {
		return nil, err
	}
	p := &payload{c: c, from: c.r.Body, sums: sums}
	length := c.r.ContentLength
	word := c.r.Header.Get(headerPayload)
	switch {
	case strings.HasPrefix(word, "STREAMING-"):
		length, err = strconv.ParseInt(c.r.Header.Get("x-amz-decoded-content-length"), 10, 64)
		if err != nil || length < 0 {
			return nil, refusal("MissingContentLength", "You must provide x-amz-decoded-content-length with an aws-chunked body.")
		}
		if p.chunked, err = c.openChunked(word, length); err != nil {
			return nil, err
		}
		p.from = p.chunked
	case length < 0:
		return nil, refusal("MissingContentLength", "You must provide the Content-Length HTTP header.")
	case c.r.Header.Get(headerTrailer) != "":
		return nil, refusal("InvalidRequest", "Trailers need an aws-chunked body.")
	}
	if length > limit {
		return nil, tooLarge()
	}
	p.length = int(length)
	return p, nil
}

// openChunked reads which kind of aws-chunked body word means.
func (c *call) openChunked(word string, length int64) (*chunked, error) {
	base, trailing := strings.CutSuffix(word, trailerSuffix)
	switch {
	case word == streamingUnsignedTrailer:
		return newChunked(c.r.Body, length, nil, true), nil
	case base == streamingSigned:
		return newChunked(c.r.Body, length, c.who.chain, trailing), nil
	}
	return nil, refusal("NotImplemented", "The payload encoding %s is not supported.", strings.ToValidUTF8(word, "?"))
}

// read fills dst, which has the payload's length, and tells filled of each piece while it is in the CPU's cache. Then it reads the
// trailers and compares the checksums.
func (p *payload) read(dst []byte, filled func(n int)) error {
	control := http.NewResponseController(p.c.w)
	defer func() { _ = control.SetReadDeadline(time.Time{}) }()
	for at, due := 0, 0; at < len(dst); {
		if at >= due {
			_ = control.SetReadDeadline(time.Now().Add(p.c.s.timeout))
			due = at + step
		}
		n, err := p.from.Read(dst[at:min(len(dst), at+256<<10)])
		p.sums.write(dst[at : at+n])
		filled(n)
		p.c.s.count.bytesIn.Add(uint64(n))
		at += n
		if err != nil && at < len(dst) {
			return p.broken(err)
		}
	}
	if p.chunked != nil {
		if err := p.chunked.finish(); err != nil {
			return p.broken(err)
		}
		if err := p.sums.takeTrailers(p.chunked.trailers); err != nil {
			return err
		}
	}
	if err := p.sums.check(); err != nil {
		p.c.s.count.badDigests.Add(1)
		return err
	}
	return nil
}

// broken is the answer to a body that could not be read to its end.
func (p *payload) broken(err error) error {
	var refused *apiError
	switch {
	case errors.As(err, &refused):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		p.c.s.count.aborted.Add(1)
		return refusal("RequestTimeout", "Your socket connection to the server was not read from or written to within the timeout period.")
	}
	p.c.s.count.aborted.Add(1)
	return refusal("IncompleteBody", "You did not provide the number of bytes specified by the Content-Length HTTP header.")
}

// readSmall reads a document of at most limit bytes.
func (c *call) readSmall(limit int64) ([]byte, error) {
	p, err := c.openPayload(limit)
	if err != nil {
		return nil, err
	}
	text := make([]byte, p.length)
	return text, p.read(text, func(int) {})
}

// send writes payload to the client. A client that takes less than step bytes within the timeout is cut off.
func (c *call) send(payload []byte) {
	control := http.NewResponseController(c.w)
	for len(payload) > 0 {
		piece := payload[:min(len(payload), step)]
		_ = control.SetWriteDeadline(time.Now().Add(c.s.timeout))
		n, err := c.w.Write(piece)
		c.s.count.bytesOut.Add(uint64(n))
		if err != nil {
			c.s.count.aborted.Add(1)
			panic(http.ErrAbortHandler)
		}
		payload = payload[n:]
	}
}
