package s3

import (
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// step is how many bytes must move within each Options.Timeout.
const step = 1 << 20

// payload is a request's body on its way into memory.
type payload struct {
	c       *call
	from    io.Reader
	chunked *chunked // nil: the body is the payload
	length  int
	sums    checksums
	at, due int // received bytes, and the count at which the deadline moves
}

// openPayload determines length and encoding of the payload. It reads nothing and takes no memory.
// The x-amz-checksum- headers belong to something else if own is false.
func (c *call) openPayload(limit int64, own bool) (*payload, error) {
	sums, err := checksumsOf(c.r.Header, own)
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
			return nil, refusal("MissingContentLength", "You must provide x-amz-decoded-content-length with an "+
				"aws-chunked body.")
		}
		if p.chunked, err = c.openChunked(word, length); err != nil {
			return nil, err
		}
		p.from = p.chunked
	case length < 0, length == 0 && c.r.Header.Get("Content-Length") == "":
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

// openChunked opens an aws-chunked body of the kind that word names.
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

// read fills dst, which has the payload's length, and calls filled with each piece while it is in
// the CPU's cache. Then it reads the trailers and compares the checksums.
func (p *payload) read(dst []byte, filled func(n int)) error {
	defer p.setDeadline(time.Time{})
	if err := p.fill(dst, filled); err != nil {
		return err
	}
	return p.finish()
}

// readText reads the payload. Its memory grows with the received bytes, not with the announced
// length.
func (p *payload) readText() ([]byte, error) {
	defer p.setDeadline(time.Time{})
	var text []byte
	for at := 0; at < p.length; at = len(text) {
		n := min(p.length-at, max(at, 16<<10))
		text = slices.Grow(text, n)[:at+n]
		if err := p.fill(text[at:], func(int) {}); err != nil {
			return nil, err
		}
	}
	return text, p.finish()
}

func (p *payload) setDeadline(t time.Time) {
	_ = http.NewResponseController(p.c.w).SetReadDeadline(t)
}

// fill fills dst with the next bytes of the payload.
func (p *payload) fill(dst []byte, filled func(n int)) error {
	for len(dst) > 0 {
		if p.at >= p.due {
			p.setDeadline(time.Now().Add(p.c.s.timeout))
			p.due = p.at + step
		}
		n, err := p.from.Read(dst[:min(len(dst), 256<<10)])
		p.sums.write(dst[:n])
		filled(n)
		p.c.s.count.bytesIn.Add(uint64(n))
		p.at += n
		dst = dst[n:]
		if err != nil && len(dst) > 0 {
			return p.broken(err)
		}
	}
	return nil
}

// finish reads the trailers and compares the checksums.
func (p *payload) finish() error {
	if p.chunked != nil {
		p.setDeadline(time.Now().Add(p.c.s.timeout))
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

// broken is the answer to a body that breaks off.
func (p *payload) broken(err error) error {
	var refused *apiError
	switch {
	case errors.As(err, &refused):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		p.c.s.count.aborted.Add(1)
		return refusal("RequestTimeout", "Your socket connection to the server was not read from or written to "+
			"within the timeout period.")
	}
	p.c.s.count.aborted.Add(1)
	return refusal("IncompleteBody", "You did not provide the number of bytes specified by the Content-Length HTTP "+
		"header.")
}

// readSmall reads a document of at most limit bytes into v. own is the same as in openPayload.
// malformed is the answer to a malformed document. The caller has a token for the body.
func (c *call) readSmall(limit int64, own bool, v any, malformed error) error {
	p, err := c.openPayload(limit, own)
	if err != nil {
		return err
	}
	text, err := p.readText()
	if err != nil {
		return err
	}
	select {
	case c.s.parsing <- struct{}{}:
		defer func() { <-c.s.parsing }()
	case <-c.r.Context().Done():
		return c.r.Context().Err()
	}
	if xml.Unmarshal(text, v) != nil {
		return malformed
	}
	return nil
}

// errTooMany ends the parsing of a document with too many elements.
var errTooMany = errors.New("s3: too many elements")

// list has the elements of one name in a document. More than 10,000 make it malformed.
type list[T any] []T

// UnmarshalXML takes one element.
func (l *list[T]) UnmarshalXML(d *xml.Decoder, start xml.StartElement) error {
	if len(*l) == maxParts {
		return errTooMany
	}
	var one T
	err := d.DecodeElement(&one, &start)
	*l = append(*l, one)
	return err
}

// send writes payload to the client. It cuts off a client that takes less than step bytes within
// the timeout.
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
