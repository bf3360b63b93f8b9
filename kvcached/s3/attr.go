package s3

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

const (
	// attrMagic begins the attributes that this server keeps with a block.
	attrMagic = "s3\x01"
	attrFixed = len(attrMagic) + 8 + 2 + 4

	metaPrefix  = "x-amz-meta-"
	defaultType = "application/octet-stream"
)

// kept are the headers that a GET repeats from the PUT, besides user metadata and checksums.
var kept = []string{"Content-Type", "Content-Encoding", "Cache-Control", "Content-Disposition", "Content-Language",
	"Expires"}

// attributes are kept with an object: fixed fields, then pairs of header and value, each after its
// length.
type attributes struct {
	modified time.Time // zero: not written by this server
	parts    int       // of a multipart upload; 0: one PUT
	headers  [][2]string
}

// attributesOf reads the attributes of the object in a request.
func attributesOf(h http.Header, now time.Time) (attributes, error) {
	a := attributes{modified: now}
	for _, name := range kept {
		value := h.Get(name)
		if name == "Content-Encoding" {
			value = withoutChunked(value)
		}
		if value != "" {
			a.headers = append(a.headers, [2]string{name, value})
		}
	}
	for name, values := range h {
		lower := strings.ToLower(name)
		sum, isSum := strings.CutPrefix(lower, checksumPrefix)
		if strings.HasPrefix(lower, metaPrefix) || isSum && algorithms[sum] != nil && sum != "crc32c" {
			a.headers = append(a.headers, [2]string{lower, strings.Join(values, ",")})
		}
	}
	if n := len(a.encode()); n > block.MaxAttr {
		return a, refusal("MetadataTooLarge", "Your metadata headers have %d bytes with their names, at most %d "+
			"are kept.", n, block.MaxAttr)
	}
	return a, nil
}

// expect makes room for a checksum that comes in a trailer and is kept.
func (a *attributes) expect(sums checksums) bool {
	sum, ok := sums.named()
	if !ok || sum.text != "" || sum.name == "crc32c" {
		return false
	}
	a.headers = append(a.headers, [2]string{checksumPrefix + sum.name,
		string(make([]byte, base64.StdEncoding.EncodedLen(sum.hash.Size())))})
	return true
}

// complete fills in the checksum from the trailer.
func (a *attributes) complete(sums checksums) {
	sum, _ := sums.named()
	a.headers[len(a.headers)-1][1] = sum.text
}

// withoutChunked is a Content-Encoding without aws-chunked, which belongs to the request and not to
// the object.
func withoutChunked(value string) string {
	var rest []string
	for word := range strings.SplitSeq(value, ",") {
		if word = strings.TrimSpace(word); word != "" && !strings.EqualFold(word, "aws-chunked") {
			rest = append(rest, word)
		}
	}
	return strings.Join(rest, ",")
}

func (a attributes) encode() []byte {
	b := append(make([]byte, 0, 128), attrMagic...)
	b = binary.BigEndian.AppendUint64(b, uint64(a.modified.UnixMilli()))
	b = binary.BigEndian.AppendUint16(b, uint16(a.parts))
	b = binary.BigEndian.AppendUint32(b, 0) // reserved
	for _, h := range a.headers {
		for _, text := range h {
			b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
		}
	}
	return b
}

// decodeAttributes reads the attributes of a block. A block of another writer has none. A note on
// an LMCache chunk may follow them.
func decodeAttributes(b []byte) attributes {
	b, _, _ = alias.CutNote(b)
	if len(b) < attrFixed || string(b[:len(attrMagic)]) != attrMagic {
		return attributes{}
	}
	b = b[len(attrMagic):]
	a := attributes{modified: time.UnixMilli(int64(binary.BigEndian.Uint64(b))),
		parts: int(binary.BigEndian.Uint16(b[8:]))}
	b = b[14:]
	for len(b) > 0 {
		var pair [2]string
		for i := range pair {
			n, w := binary.Uvarint(b)
			if w <= 0 || n > uint64(len(b)-w) {
				return attributes{}
			}
			pair[i], b = string(b[w:w+int(n)]), b[w+int(n):]
		}
		a.headers = append(a.headers, pair)
	}
	return a
}

// etag names an object's content by the CRC32C and length of its bytes and the number of its parts.
// It is opaque and not an MD5. The "-" keeps clients from taking it for one.
func etag(crc uint32, length, parts int) string {
	return fmt.Sprintf(`"%08x%024x-%d"`, crc, length, max(parts, 1))
}

func (a attributes) etag(i store.Info) string { return etag(i.CRC, i.Length, a.parts) }

// write sets the headers of an object's answer.
func (a attributes) write(h http.Header, i store.Info, started time.Time) {
	h["ETag"] = []string{a.etag(i)}
	h.Set("Last-Modified", a.lastModified(started).UTC().Format(http.TimeFormat))
	h.Set("Accept-Ranges", "bytes")
	h.Set("Content-Type", defaultType)
	for _, p := range a.headers {
		switch {
		case strings.HasPrefix(p[0], metaPrefix):
			h[p[0]] = []string{p[1]} // in lower case, as in S3
		case strings.HasPrefix(p[0], checksumPrefix):
		case utf8.ValidString(p[1]):
			h.Set(p[0], p[1])
		}
	}
}

// lastModified is when the object was written. For blocks of other writers it is the start of the
// server.
func (a attributes) lastModified(started time.Time) time.Time {
	if a.modified.IsZero() {
		return started
	}
	return a.modified
}

// writeChecksums answers x-amz-checksum-mode with the CRC32C of the whole object, and with the
// checksum that the client sent.
func (a attributes) writeChecksums(h http.Header, i store.Info) {
	h["x-amz-checksum-crc32c"] = []string{crcText(i.CRC)}
	h["x-amz-checksum-type"] = []string{"FULL_OBJECT"}
	for _, p := range a.headers {
		if strings.HasPrefix(p[0], checksumPrefix) {
			h[p[0]] = []string{p[1]}
		}
	}
}
