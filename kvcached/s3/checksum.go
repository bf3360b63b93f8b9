package s3

import (
	"crypto/md5"  //nolint:gosec // for Content-MD5
	"crypto/sha1" //nolint:gosec // for x-amz-checksum-sha1
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"net/http"
	"strings"

	"github.com/cognitora/dataplane/kv/block"
)

const (
	headerPayload   = "x-amz-content-sha256"
	headerTrailer   = "x-amz-trailer"
	checksumPrefix  = "x-amz-checksum-"
	unsignedPayload = "UNSIGNED-PAYLOAD"
	streamingSigned = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	trailerSuffix   = "-TRAILER"

	streamingUnsignedTrailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
)

// nvme is the polynomial of CRC64NVME, reflected.
var nvme = crc64.MakeTable(0x9a6c9329ac4bc9b5)

// algorithms are S3's checksums, by the end of the header's name.
var algorithms = map[string]func() hash.Hash{
	"crc32":     func() hash.Hash { return crc32.NewIEEE() },
	"crc32c":    func() hash.Hash { return new(crc32c) },
	"crc64nvme": func() hash.Hash { return crc64.New(nvme) },
	"sha1":      sha1.New,
	"sha256":    sha256.New,
}

// checksum is a checksum that the client states for its payload.
type checksum struct {
	name string // of the algorithm; "md5" for Content-MD5, "payload" for x-amz-content-sha256
	text string // the client's text; empty: it comes in a trailer
	want []byte
	hash hash.Hash
}

// checksums are all checksums of a request. They are checked when the payload is in place.
type checksums []checksum

// headerSums are the x-amz-checksum- headers, of which there may be one.
func headerSums(h http.Header) (checksums, error) {
	var all checksums
	for name, create := range algorithms {
		text := h.Get(checksumPrefix + name)
		if text == "" {
			continue
		}
		sum := checksum{name: name, text: text, hash: create()}
		if err := sum.decode(); err != nil {
			return nil, err
		}
		all = append(all, sum)
	}
	if len(all) > 1 {
		return nil, refusal("InvalidRequest", "Expecting a single %s header. Multiple checksum types are not allowed.",
			checksumPrefix)
	}
	return all, nil
}

// checksumsOf reads the checksums of a request's payload from the headers. The x-amz-checksum-
// headers belong to something else if own is false.
func checksumsOf(h http.Header, own bool) (all checksums, err error) {
	if own {
		if all, err = headerSums(h); err != nil {
			return nil, err
		}
	}
	if name := strings.ToLower(strings.TrimSpace(h.Get(headerTrailer))); name != "" {
		create := algorithms[strings.TrimPrefix(name, checksumPrefix)]
		if create == nil || !strings.HasPrefix(name, checksumPrefix) || len(all) > 0 {
			return nil, refusal("InvalidArgument", "The header %s must name one of the checksums that this "+
				"server knows.", headerTrailer)
		}
		all = append(all, checksum{name: strings.TrimPrefix(name, checksumPrefix), hash: create()})
	}
	if text := h.Get("Content-MD5"); text != "" {
		want, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(want) != md5.Size {
			return nil, refusal("InvalidDigest", "The Content-MD5 you specified is not valid.")
		}
		all = append(all, checksum{name: "md5", text: text, want: want, hash: md5.New()}) //nolint:gosec // asked for
	}
	if text := h.Get(headerPayload); text != "" && text != unsignedPayload && !strings.HasPrefix(text, "STREAMING-") {
		want, err := hex.DecodeString(text)
		if err != nil || len(want) != sha256.Size {
			return nil, refusal("InvalidArgument", "The header %s is neither a digest nor one of the known words.",
				headerPayload)
		}
		all = append(all, checksum{name: "payload", text: text, want: want, hash: sha256.New()})
	}
	return all, nil
}

// decode reads the client's value.
func (c *checksum) decode() error {
	want, err := base64.StdEncoding.DecodeString(c.text)
	if err != nil || len(want) != c.hash.Size() {
		return refusal("InvalidRequest", "Value for %s%s header is invalid.", checksumPrefix, c.name)
	}
	c.want = want
	return nil
}

// write adds the next bytes of the payload to each checksum.
func (all checksums) write(p []byte) {
	for _, c := range all {
		_, _ = c.hash.Write(p)
	}
}

// takeTrailers fills in the checksums from the trailers.
func (all checksums) takeTrailers(trailers map[string]string) error {
	for i := range all {
		c := &all[i]
		if c.text != "" {
			continue
		}
		c.text = trailers[checksumPrefix+c.name]
		if c.text == "" {
			return refusal("InvalidRequest", "The trailer %s%s is missing.", checksumPrefix, c.name)
		}
		if err := c.decode(); err != nil {
			return err
		}
	}
	return nil
}

// check compares each checksum with the received payload.
func (all checksums) check() error {
	for _, c := range all {
		if subtle.ConstantTimeCompare(c.hash.Sum(nil), c.want) == 1 {
			continue
		}
		switch c.name {
		case "payload":
			return refusal("XAmzContentSHA256Mismatch", "The provided '%s' header does not match what was computed.",
				headerPayload)
		case "md5":
			return refusal("BadDigest", "The Content-MD5 you specified did not match what we received.")
		}
		return refusal("BadDigest", "The %s you specified did not match the calculated checksum.",
			strings.ToUpper(c.name))
	}
	return nil
}

// named is the x-amz-checksum- checksum, if the client sent one.
func (all checksums) named() (checksum, bool) {
	for _, c := range all {
		if algorithms[c.name] != nil {
			return c, true
		}
	}
	return checksum{}, false
}

// crcText is a CRC32C in the form of x-amz-checksum-crc32c.
func crcText(crc uint32) string {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], crc)
	return base64.StdEncoding.EncodeToString(b[:])
}

// crc32c is a hash.Hash32 with the speed of block checksums.
type crc32c uint32

func (c *crc32c) Write(p []byte) (int, error) {
	*c = crc32c(block.Extend(uint32(*c), p))
	return len(p), nil
}
func (c *crc32c) Sum(b []byte) []byte { return binary.BigEndian.AppendUint32(b, uint32(*c)) }
func (c *crc32c) Reset()              { *c = 0 }
func (c *crc32c) Size() int           { return 4 }
func (c *crc32c) BlockSize() int      { return 1 }
