package s3

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"strconv"
	"strings"
)

const (
	maxChunkLine   = 256  // bytes of the line that begins a chunk
	maxTrailerLine = 1024 // bytes of one trailer
	maxTrailers    = 8
)

var errChunk = refusal("IncompleteBody", "The aws-chunked body is malformed or ends too early.")

// chain is the running signature of an aws-chunked body. Each chunk's signature covers the previous
// signature.
type chain struct {
	key            []byte
	amzDate, scope string
	last           string
}

// next is the signature after the last one, over a payload with the given digest.
func (c *chain) next(kind string, digests ...string) string {
	text := strings.Join(append([]string{algorithm + kind, c.amzDate, c.scope, c.last}, digests...), "\n")
	c.last = signatureOf(c.key, []byte(text))
	return c.last
}

// chunked reads the payload of an aws-chunked body. A chunk's signature is checked at its end. So
// the payload may be used only after finish.
type chunked struct {
	from     *bufio.Reader
	chain    *chain // nil: chunks are not signed
	left     int64  // of this chunk
	total    int64  // of the payload that is still to come
	trailing bool   // trailers may follow
	expect   string // signature of this chunk
	sum      hash.Hash
	trailers map[string]string
	last     bool // the chunk of length zero was seen
}

// newChunked reads a payload of exactly length bytes.
func newChunked(from io.Reader, length int64, c *chain, trailing bool) *chunked {
	d := &chunked{from: bufio.NewReaderSize(from, 16<<10), chain: c, total: length, trailing: trailing}
	if c != nil {
		d.sum = sha256.New()
	}
	return d
}

// Read fills p with payload up to the end of a chunk. It returns io.EOF after the last chunk.
func (d *chunked) Read(p []byte) (int, error) {
	if d.last {
		return 0, io.EOF
	}
	if d.left == 0 {
		if err := d.begin(); err != nil || d.last {
			return 0, cmpErr(err, io.EOF)
		}
	}
	if int64(len(p)) > d.left {
		p = p[:d.left]
	}
	n, err := d.from.Read(p)
	if d.sum != nil {
		_, _ = d.sum.Write(p[:n])
	}
	d.left -= int64(n)
	d.total -= int64(n)
	if err != nil && d.left > 0 {
		return n, ended(err)
	}
	if d.left == 0 && n > 0 {
		return n, d.end()
	}
	return n, nil
}

// begin reads the line before a chunk: <hex length>[;chunk-signature=<signature>].
func (d *chunked) begin() error {
	line, err := d.line(maxChunkLine)
	if err != nil {
		return err
	}
	size, extension, _ := strings.Cut(line, ";")
	n, err := strconv.ParseUint(strings.TrimSpace(size), 16, 31)
	if err != nil {
		return errChunk
	}
	if int64(n) > d.total || n == 0 && d.total > 0 {
		return refusal("IncompleteBody", "The chunks do not add up to x-amz-decoded-content-length.")
	}
	signature, ok := strings.CutPrefix(strings.TrimSpace(extension), "chunk-signature=")
	if d.chain != nil {
		if !ok {
			return refusal("SignatureDoesNotMatch", "A chunk is not signed.")
		}
		d.expect = signature
		d.sum.Reset()
	}
	d.left = int64(n)
	if n > 0 {
		return nil
	}
	d.last = true
	if err := d.verify(); err != nil {
		return err
	}
	return d.readTrailers()
}

// end reads the line end after a chunk and checks the signature.
func (d *chunked) end() error {
	if line, err := d.line(2); err != nil || line != "" {
		return cmpErr(err, errChunk)
	}
	return d.verify()
}

func (d *chunked) verify() error {
	if d.chain == nil {
		return nil
	}
	if !equalSignature(d.chain.next("-PAYLOAD", emptySHA256, hex.EncodeToString(d.sum.Sum(nil))), d.expect) {
		return refusal("SignatureDoesNotMatch", "The signature of a chunk does not match.")
	}
	return nil
}

// readTrailers reads the trailers after the last chunk, their signature if chunks are signed, and
// an empty line. Some clients, such as minio-go, end trailers with a bare line feed and add an
// empty line before the signature.
func (d *chunked) readTrailers() error {
	d.trailers = map[string]string{}
	var signed bytes.Buffer
	signature, blank := "", 0
	for {
		line, err := d.trailer()
		if errors.Is(err, errChunk) && !d.trailing {
			return nil // some clients omit the last empty line
		}
		if err != nil {
			return err
		}
		if line == "" {
			if blank++; d.chain == nil || !d.trailing || signature != "" || blank > 1 {
				break
			}
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		if !ok || !d.trailing || len(d.trailers) == maxTrailers {
			return errChunk
		}
		if name == "x-amz-trailer-signature" {
			signature = value
			continue
		}
		d.trailers[name] = value
		signed.WriteString(name + ":" + value + "\n")
	}
	if d.chain == nil || !d.trailing {
		return nil
	}
	digest := sha256.Sum256(signed.Bytes())
	if !equalSignature(d.chain.next("-TRAILER", hex.EncodeToString(digest[:])), signature) {
		return refusal("SignatureDoesNotMatch", "The signature of the trailers does not match.")
	}
	return nil
}

// trailer reads a line of the trailers. A line feed alone may end it.
func (d *chunked) trailer() (string, error) {
	b, err := d.from.ReadSlice('\n')
	if err != nil {
		return "", ended(err)
	}
	if len(b) > maxTrailerLine {
		return "", errChunk
	}
	return strings.TrimSuffix(string(b[:len(b)-1]), "\r"), nil
}

// line reads a line without its end. errChunk: the line is longer than limit, or has no end.
func (d *chunked) line(limit int) (string, error) {
	b, err := d.from.ReadSlice('\n')
	if err != nil {
		return "", ended(err)
	}
	if len(b) > limit || len(b) < 2 || b[len(b)-2] != '\r' {
		return "", errChunk
	}
	return string(b[:len(b)-2]), nil
}

// finish reads the last chunk and the trailers, after the payload.
func (d *chunked) finish() error {
	var one [1]byte
	for !d.last {
		n, err := d.Read(one[:])
		if n > 0 {
			return errChunk
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	return nil
}

// ended turns an early end of the body into errChunk. A deadline stays an error of its own.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, bufio.ErrBufferFull) {
		return errChunk
	}
	return err
}

// cmpErr is err, or other if err is nil.
func cmpErr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}
