package s3

import (
	"encoding/xml"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cognitora/dataplane/kvcached/store"
)

// item is the block of the request's key.
func (c *call) item() (store.Item, error) {
	return c.itemNamed(c.key)
}

// itemNamed is the block of a key in the request's bucket.
func (c *call) itemNamed(key string) (store.Item, error) {
	it, err := itemOf(c.bucket, key, c.who.tenant)
	if err != nil {
		return it, err
	}
	if err := c.who.mayUse(it); err != nil {
		return it, err
	}
	c.s.sink.Know(it.Namespace)
	return it, nil
}

// get answers with an object or a part of it, straight from the store's memory.
func (c *call) get() error {
	release, err := c.s.body()
	if err != nil {
		return err
	}
	defer release()
	b, err := c.open()
	if err != nil {
		return err
	}
	defer b.Release()
	part, err := c.describe(b.Info())
	if err != nil {
		return err
	}
	c.send(b.Bytes()[part.at : part.at+part.n])
	return nil
}

// head answers like get, but without the payload, and does not count as a use. A miss has no body.
// head needs a token, because the object may have to come from another host first.
func (c *call) head() error {
	release, err := c.s.body()
	if err != nil {
		return err
	}
	defer release()
	it, err := c.item()
	if err != nil {
		return err
	}
	i, err := c.s.sink.Describe(c.r.Context(), it.Addr)
	if err != nil {
		c.missed(err)
		return err
	}
	c.s.count.hits.Add(1)
	_, err = c.describe(i)
	return err
}

func (c *call) open() (*store.Block, error) {
	it, err := c.item()
	if err != nil {
		return nil, err
	}
	b, err := c.s.sink.Get(c.r.Context(), it.Addr)
	if err != nil {
		c.missed(err)
		return nil, err
	}
	c.s.count.hits.Add(1)
	return b, nil
}

func (c *call) missed(err error) {
	if errors.Is(err, store.ErrMiss) {
		c.s.count.misses.Add(1)
	}
}

// describe writes status and headers of an object and returns the part to send.
func (c *call) describe(i store.Info) (span, error) {
	a := decodeAttributes(i.Item.Attr)
	h := c.w.Header()
	if want := c.r.Header.Get("If-Match"); want != "" && !matches(want, a.etag(i)) {
		return span{}, refusal("PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")
	}
	part, err := spanOf(c.r, c.query, i.Length)
	if err != nil {
		return span{}, err
	}
	a.write(h, i, c.s.started)
	if strings.EqualFold(c.r.Header.Get("x-amz-checksum-mode"), "ENABLED") && part.n == i.Length {
		a.writeChecksums(h, i)
	}
	h.Set("Content-Length", strconv.Itoa(part.n))
	if part.partial {
		h.Set("Content-Range", part.contentRange(i.Length))
		c.status(http.StatusPartialContent)
	} else {
		c.status(http.StatusOK)
	}
	return part, nil
}

// matches tells whether a list of entity tags contains tag. Quotes may be missing, as in S3.
func matches(list, tag string) bool {
	for t := range strings.SplitSeq(list, ",") {
		t = strings.TrimPrefix(strings.TrimSpace(t), "W/")
		if t == "*" || strings.Trim(t, `"`) == strings.Trim(tag, `"`) {
			return true
		}
	}
	return false
}

// put receives an object from the socket straight into the store's memory. The names of an address
// take the place of the headers that a GET repeats.
func (c *call) put() error {
	it, err := c.item()
	if err != nil {
		return err
	}
	p, err := c.openPayload(MaxObject, true)
	if err != nil {
		return err
	}
	a, err := attributesOf(c.r.Header, time.Now())
	if err != nil {
		return err
	}
	named := len(it.Attr) > 0
	late := a.expect(p.sums) && !named
	if !named {
		it.Attr = a.encode()
	}
	o, err := c.commitOptions(it)
	if err != nil {
		return err
	}
	release, err := c.s.body()
	if err != nil {
		return err
	}
	defer release()
	d, err := c.s.sink.Create(c.r.Context(), it, p.length)
	if err != nil {
		return err
	}
	defer d.Abort()
	if err := p.read(d.Bytes()[:p.length], d.Filled); err != nil {
		return err
	}
	if late {
		a.complete(p.sums)
		o.Attr = a.encode()
	}
	i, err := d.Commit(c.r.Context(), o)
	if err != nil {
		return err
	}
	c.s.count.puts.Add(1)
	c.stored(etag(i.CRC, i.Length, 0), p.sums)
	return nil
}

// commitOptions reads the options of a write. With If-None-Match: * an existing object stays, and
// the body is not read.
func (c *call) commitOptions(it store.Item) (store.CommitOptions, error) {
	h := c.r.Header
	o := store.CommitOptions{Durable: c.s.durable}
	switch text := h.Get("X-Cgn-Durable"); strings.ToLower(text) {
	case "", "false":
	case "true":
		o.Durable = true
	default:
		return o, refusal("InvalidArgument", "The header X-Cgn-Durable is %q; it must be true or false.", text)
	}
	if h.Get("If-Match") != "" {
		return o, refusal("NotImplemented", "The header If-Match is not supported for writes.")
	}
	switch h.Get("If-None-Match") {
	case "":
		return o, nil
	case "*":
		o.IfAbsent = true
	default:
		return o, refusal("NotImplemented", "The header If-None-Match of a write must be *.")
	}
	_, err := c.s.sink.Stat(c.r.Context(), it.Addr)
	if err == nil {
		err = store.ErrExists
	} else if errors.Is(err, store.ErrMiss) {
		err = nil
	}
	return o, err
}

// stored answers a completed write and repeats the compared checksum.
func (c *call) stored(tag string, sums checksums) {
	h := c.w.Header()
	h["ETag"] = []string{tag}
	if sum, ok := sums.named(); ok {
		h[checksumPrefix+sum.name] = []string{sum.text}
	}
	h.Set("Content-Length", "0")
	c.status(http.StatusOK)
}

// delete deletes an object. The answer does not tell whether it was there.
func (c *call) delete() error {
	it, err := c.item()
	if err != nil {
		return err
	}
	if err := c.remove(it); err != nil {
		return err
	}
	c.status(http.StatusNoContent)
	return nil
}

func (c *call) remove(it store.Item) error {
	there, err := c.s.sink.Delete(c.r.Context(), it.Addr)
	if there {
		c.s.count.deletes.Add(1)
	}
	return err
}

const (
	maxDeletes    = 1000
	maxDeleteText = 4 << 20 // bytes: 1,000 keys, each escaped
)

type deleteRequest struct {
	XMLName xml.Name `xml:"Delete"`
	Quiet   bool
	Objects list[struct{ Key string }] `xml:"Object"`
}

type deleted struct{ Key string }

type deleteFailure struct{ Key, Code, Message string }

type deleteResult struct {
	XMLName xml.Name        `xml:"http://s3.amazonaws.com/doc/2006-03-01/ DeleteResult"`
	Deleted []deleted       `xml:"Deleted"`
	Errors  []deleteFailure `xml:"Error"`
}

// deleteMany deletes up to 1,000 objects, one after another.
func (c *call) deleteMany() error {
	release, err := c.s.body()
	if err != nil {
		return err
	}
	defer release()
	var ask deleteRequest
	malformed := refusal("MalformedXML", "The XML you provided was not well-formed, or names no or more than %d "+
		"objects.", maxDeletes)
	if err := c.readSmall(maxDeleteText, true, &ask, malformed); err != nil {
		return err
	}
	if len(ask.Objects) == 0 || len(ask.Objects) > maxDeletes {
		return malformed
	}
	var result deleteResult
	for _, o := range ask.Objects {
		it, err := c.itemNamed(o.Key)
		if err == nil {
			err = c.remove(it)
		}
		switch {
		case err != nil:
			e := asAPI(err)
			result.Errors = append(result.Errors, deleteFailure{o.Key, e.code, e.message})
		case !ask.Quiet:
			result.Deleted = append(result.Deleted, deleted{o.Key})
		}
	}
	c.document(http.StatusOK, result)
	return nil
}
