package s3

import (
	"encoding/xml"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

const maxCompleteText = 4 << 20 // bytes: 10,000 parts with their checksums

type createResult struct {
	XMLName  xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ InitiateMultipartUploadResult"`
	Bucket   string
	Key      string
	UploadID string `xml:"UploadId"`
}

// createUpload begins a multipart upload.
func (c *call) createUpload() error {
	it, err := c.item()
	if err != nil {
		return err
	}
	a, err := attributesOf(c.r.Header, time.Now())
	if err != nil {
		return err
	}
	if size, err := strconv.ParseInt(c.r.Header.Get("x-amz-mp-object-size"), 10, 64); err == nil {
		if err := c.s.uploads.tooLong(size); err != nil {
			return err
		}
	}
	u := &upload{item: it, tenant: c.who.tenant, attr: a}
	if err := c.s.uploads.add(u); err != nil {
		return err
	}
	for _, name := range []string{"x-amz-checksum-algorithm", "x-amz-checksum-type"} {
		if v := c.r.Header.Get(name); v != "" {
			c.w.Header()[name] = []string{v}
		}
	}
	c.document(http.StatusOK, createResult{Bucket: c.bucket, Key: c.key, UploadID: u.id})
	return nil
}

// uploadPart takes one part into a draft.
func (c *call) uploadPart() error {
	n, err := c.query.number("partNumber", 1, maxParts, 0)
	if err != nil || n == 0 {
		return refusal("InvalidArgument", "The parameter partNumber must be a number from 1 to %d.", maxParts)
	}
	it, err := c.item()
	if err != nil {
		return err
	}
	p, err := c.openPayload(MaxObject, true)
	if err != nil {
		return err
	}
	release, err := c.s.body()
	if err != nil {
		return err
	}
	defer release()
	u, err := c.s.uploads.begin(c.query.get("uploadId"), it, c.who.tenant, n, p.length)
	if err != nil {
		return err
	}
	arrived, err := c.receive(u, n, p)
	if failed := c.s.uploads.finish(u, n, arrived, p.length); err == nil {
		err = failed
	}
	if err != nil {
		return err
	}
	c.stored(arrived.etag, p.sums)
	return nil
}

// receive reads a part into a draft, which is never committed. The draft has the object's key, so
// that a purge of the object reaches the part.
func (c *call) receive(u *upload, n int, p *payload) (*part, error) {
	it := store.Item{Namespace: u.item.Namespace, Key: u.item.Key,
		Addr: block.OfKey(u.item.Addr.Model, fmt.Appendf(nil, "part\x00%s\x00%d", u.id, n))}
	d, err := c.s.sink.Create(c.r.Context(), it, p.length)
	if err != nil {
		return nil, err
	}
	into := d.Bytes()[:p.length]
	at, crc := 0, uint32(0)
	err = p.read(into, func(n int) {
		crc = block.Extend(crc, into[at:at+n])
		at += n
	})
	if err != nil {
		d.Abort()
		return nil, err
	}
	arrived := &part{draft: d, length: p.length, crc: crc, etag: etag(crc, p.length, 0)}
	return arrived, nil
}

// abortUpload frees the parts of an upload.
func (c *call) abortUpload() error {
	it, err := c.item()
	if err != nil {
		return err
	}
	if err := c.s.uploads.abort(c.query.get("uploadId"), it.Addr, c.who.tenant); err != nil {
		return err
	}
	c.status(http.StatusNoContent)
	return nil
}

type completeRequest struct {
	XMLName xml.Name `xml:"CompleteMultipartUpload"`
	Parts   list[struct {
		PartNumber int
		ETag       string
	}] `xml:"Part"`
}

type completeResult struct {
	XMLName  xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ CompleteMultipartUploadResult"`
	Location string
	Bucket   string
	Key      string
	ETag     string
}

// completeUpload copies the parts into one block. The upload stays until the block is there, so
// that a client can try again. The x-amz-checksum- headers are of the object and not of the
// document: assemble compares them.
func (c *call) completeUpload() error {
	it, err := c.item()
	if err != nil {
		return err
	}
	if err := c.s.uploads.known(c.query.get("uploadId"), it.Addr, c.who.tenant); err != nil {
		return err // refused before its body is read
	}
	release, err := c.s.body()
	if err != nil {
		return err
	}
	defer release()
	var ask completeRequest
	malformed := refusal("MalformedXML", "The XML you provided was not well-formed, or names no or more than %d parts.",
		maxParts)
	if err := c.readSmall(maxCompleteText, false, &ask, malformed); err != nil {
		return err
	}
	if len(ask.Parts) == 0 {
		return malformed
	}
	o, err := c.commitOptions(it)
	if err != nil {
		return err
	}
	tag, err := c.complete(it.Addr, &ask, o)
	if err != nil {
		return err
	}
	scheme := "http://"
	if c.r.TLS != nil {
		scheme = "https://"
	}
	c.document(http.StatusOK, completeResult{Location: scheme + c.r.Host + c.r.URL.EscapedPath(), Bucket: c.bucket,
		Key: c.key, ETag: tag})
	return nil
}

// complete makes the object and answers its ETag.
func (c *call) complete(a block.Addr, ask *completeRequest, o store.CommitOptions) (tag string, err error) {
	u, err := c.s.uploads.claim(c.query.get("uploadId"), a, c.who.tenant)
	if err != nil {
		return "", err
	}
	defer func() { c.s.uploads.release(u, err == nil) }()
	parts, err := u.choose(ask)
	if err != nil {
		return "", err
	}
	if tag, err = c.assemble(u, parts, o); err == nil {
		c.s.count.puts.Add(1)
	}
	return tag, err
}

// choose finds the parts that a completion names.
func (u *upload) choose(ask *completeRequest) ([]*part, error) {
	parts := make([]*part, 0, len(ask.Parts))
	last := 0
	for _, want := range ask.Parts {
		if want.PartNumber <= last {
			return nil, refusal("InvalidPartOrder", "The list of parts was not in ascending order.")
		}
		last = want.PartNumber
		p := u.parts[want.PartNumber]
		if p == nil || !matches(want.ETag, p.etag) {
			return nil, refusal("InvalidPart", "Part %d was not uploaded, or with another ETag.", want.PartNumber)
		}
		parts = append(parts, p)
	}
	return parts, nil
}

// assemble makes the object and answers its ETag.
func (c *call) assemble(u *upload, parts []*part, o store.CommitOptions) (string, error) {
	a, total := u.attr, 0
	a.modified, a.parts = time.Now(), len(parts)
	o.CRC, o.CheckCRC = 0, true // no part has changed since it came
	for _, p := range parts {
		total += p.length
		o.CRC = block.Combine(o.CRC, p.crc, uint64(p.length))
	}
	sums, err := c.wholeSums()
	if err != nil {
		return "", err
	}
	if text := c.r.Header.Get("x-amz-mp-object-size"); text != "" && text != strconv.Itoa(total) {
		return "", refusal("InvalidRequest",
			"The parts have %d bytes together, not as many as x-amz-mp-object-size says.", total)
	}
	it := u.item
	if len(it.Attr) == 0 {
		it.Attr = a.encode()
	} else {
		a.parts = 0 // the names of an address leave no room for it
	}
	d, err := c.s.sink.Create(c.r.Context(), it, total)
	if err != nil {
		return "", err
	}
	defer d.Abort()
	into := d.Bytes()
	for _, p := range parts {
		if p.draft.Purged() { // a purge from now on finds d
			return "", refusal("NoSuchUpload", "A purge has removed parts of the multipart upload. Upload them again.")
		}
		for from := p.draft.Bytes()[:p.length]; len(from) > 0; {
			n := copy(into, from[:min(len(from), 256<<10)])
			sums.write(into[:n])
			d.Filled(n)
			into, from = into[n:], from[n:]
		}
	}
	if err := sums.check(); err != nil {
		return "", err
	}
	i, err := d.Commit(c.r.Context(), o)
	if errors.Is(err, store.ErrCorrupt) {
		err = fmt.Errorf("s3: a part has changed since it came: %w", err)
	}
	if err != nil {
		return "", err
	}
	return etag(i.CRC, i.Length, a.parts), nil
}

// wholeSums are the object's checksums in a completion. A composite checksum, which covers the
// parts' checksums, is ignored: each part was compared with its own checksum.
func (c *call) wholeSums() (checksums, error) {
	if !strings.EqualFold(c.r.Header.Get("x-amz-checksum-type"), "FULL_OBJECT") &&
		c.r.Header.Get(checksumPrefix+"crc64nvme") == "" {
		return nil, nil
	}
	return headerSums(c.r.Header)
}
