// Package request holds one request of a client, and its life.
//
// The port fills a Request once when it reads it. The Request stays the same until Release, which
// frees the body and the fields that lie in it. A Request copies the head, so only its body is
// borrowed memory. The body stays while a leg may need it: see Own. If a plan runs several legs at
// once whose edits name members, it must call Scan.Index before.
package request

import (
	"bytes"
	"iter"
	"time"
	"unsafe"

	"github.com/cespare/xxhash/v2"

	"github.com/cognitora/dataplane/router/isolation"
	"github.com/cognitora/dataplane/router/nvext"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/traces"
	"github.com/cognitora/dataplane/router/trust"
)

// Request is one request of a client. Make one with New. After Reset the memory may serve another
// request. One goroutine at a time uses a Request, except for its Life. Several goroutines may
// read a Request while its owner waits for them.
type Request struct {
	ID       []byte // the request's id in logs and in its answer; borrowed from the port
	API      scan.API
	Who      *trust.Principal // nil: the router itself
	Salts    *isolation.Salts // keep Who's cached prompts apart; nil: nothing does
	Method   string
	Path     string     // with the query
	Header   []byte     // the header lines that go to the engine unchanged
	Auth     []byte     // the client's Authorization if it may be forwarded, else nil
	Session  []byte     // id of the client's session, see SessionHeaders; behind its salt with Salts; nil: none
	Pin      string     // x-cgn-node; see Worker
	Nvext    *nvext.Ext // what the client asks of the routing; nil: nothing
	Received time.Time
	Deadline time.Time // the client's own; zero: none
	Scan     *scan.Request
	Trace    *traces.Request // nil: not recorded; Reset ends it
	Life     Life
	Terms

	lent lent
	own  own
}

// lent is the body, which the port lends to the request.
type lent struct {
	body    []byte
	release func() // frees the body's memory; nil: already called, or not needed
}

// own is memory of a request.
type own struct {
	model []byte // copy of Scan.Model, which may point into the body
	head  []byte // the copied head
	salt  isolation.Salt
}

// Terms say how the request is to be answered.
type Terms struct {
	// OneLeg says that the client speaks HTTP/1.0, and cannot take an answer of several legs.
	OneLeg bool
	// Counted says that the tokens of the answer count towards limits, so the engine of a stream is
	// asked for them.
	Counted bool
}

// New returns an empty request.
func New() *Request { return &Request{Scan: new(scan.Request)} }

// keptHead is the largest head memory kept for another request.
const keptHead = 16 << 10

// Reset releases the body and clears everything but memory of moderate size. No goroutine may call
// a method of the old r.Life any more.
func (r *Request) Reset() {
	r.Release()
	r.Trace.End()
	r.Scan.Reset()
	scanned, header, aborts := r.Scan, small(r.Header), r.Life.aborts
	kept := own{model: small(r.own.model), head: small(r.own.head)}
	clear(aborts[:cap(aborts)])
	*r = Request{}
	r.Scan, r.Header, r.own, r.Life.aborts = scanned, header, kept, aborts[:0]
}

func small(b []byte) []byte {
	if cap(b) > keptHead {
		return nil
	}
	return b[:0]
}

// Head is the part of a request's head that a Request keeps. SetHead copies the memory of the Head.
type Head struct {
	Method, Path       []byte
	Auth, Session, Pin []byte // nil: absent
}

// SetHead copies h into the request. With Salts the sessions of one client are none of another's,
// even if their ids are the same. Set Who and Salts before.
func (r *Request) SetHead(h Head) {
	o := &r.own
	need := len(h.Path) + len(h.Auth) + len(h.Session) + len(o.salt) + len(h.Pin)
	if cap(o.head) < need {
		o.head = make([]byte, 0, need)
	}
	o.head = o.head[:0]
	r.Method, r.Path = method(h.Method), stringOf(o.keep(nil, h.Path))
	r.Auth, r.Pin = o.keep(nil, h.Auth), stringOf(o.keep(nil, h.Pin))
	if !r.apart() {
		r.Session = o.keep(nil, h.Session)
		return
	}
	o.salt = r.Salts.Of(r.Who, nil)
	r.Scan.Space = xxhash.Sum64(o.salt[:])
	r.Session = o.keep(o.salt[:], h.Session)
}

// keep copies before and b to the end of the head, which has room for both. keep returns nil if b
// is nil.
func (o *own) keep(before, b []byte) []byte {
	if b == nil {
		return nil
	}
	start := len(o.head)
	o.head = append(append(o.head, before...), b...)
	return o.head[start:len(o.head):len(o.head)]
}

// apart says whether the client's cached prompts are kept apart from those of others.
func (r *Request) apart() bool { return r.Salts != nil && r.Who != nil }

// Own hands body to the request. release, which may be nil, is called once when no leg needs the
// body any more. release frees the memory and its share of limits.max_body_total.
func (r *Request) Own(body []byte, release func()) { r.lent = lent{body, release} }

// Body returns the body as the client sent it. The body is valid until Release.
func (r *Request) Body() []byte { return r.lent.body }

// formData is the beginning of a form's content type.
var formData = []byte("multipart/form-data")

// Read scans the body as a form or as JSON, according to its content type, and reads its nvext. m,
// which may be nil, remembers the beginnings of long bodies. The error is a *scan.Error.
func (r *Request) Read(contentType []byte, m *scan.Memo) (err error) {
	switch {
	case len(contentType) >= len(formData) && bytes.EqualFold(contentType[:len(formData)], formData):
		err = scan.ScanMultipart(contentType, r.lent.body, r.Scan)
	case m == nil:
		err = scan.Scan(r.API, r.lent.body, r.Scan)
	default:
		err = m.Scan(r.API, r.lent.body, r.Scan)
	}
	r.own.model = append(r.own.model[:0], r.Scan.Model...)
	if err == nil && r.Scan.Nvext() != (scan.Span{}) {
		err = r.readNvext()
	}
	if err == nil && r.apart() {
		r.salt()
	}
	return err
}

// salt replaces the client's cache_salt by one that no other client can have.
func (r *Request) salt() {
	if r.Scan.CacheSalt != nil {
		r.own.salt = r.Salts.Of(r.Who, r.Scan.CacheSalt)
	}
	r.Scan.CacheSalt = r.own.salt[:]
}

// readNvext reads the body's nvext. Its cache_salt becomes the request's, because it does the same
// as the salt of the root.
func (r *Request) readNvext() error {
	at := r.Scan.Nvext()
	x, err := nvext.Parse(r.lent.body, at)
	if err != nil {
		return err
	}
	if r.Nvext = x; x != nil && x.CacheSalt != nil {
		if salt := r.Scan.CacheSalt; salt != nil && !bytes.Equal(salt, x.CacheSalt) {
			return &scan.Error{
				Code: scan.CodeValue, Param: "nvext.cache_salt", Offset: at.Start,
				Message: "`nvext.cache_salt` differs from `cache_salt`, which has the same effect; send one of them",
			}
		}
		r.Scan.CacheSalt = x.CacheSalt
	}
	return r.Scan.Index(r.lent.body) // so that several legs may take the member out at once
}

// Worker returns the only worker that may answer, unless a stored response decides, and the field
// or header that names the worker. An empty id stands for any worker.
func (r *Request) Worker() (id, by string) {
	switch {
	case r.Pin != "":
		return r.Pin, "x-cgn-node"
	case r.Nvext != nil:
		return r.Nvext.Worker.ID, r.Nvext.Worker.By
	}
	return "", ""
}

// Allowed returns the workers that may answer; nil: all.
func (r *Request) Allowed() nvext.Workers {
	if r.Nvext == nil {
		return nil
	}
	return r.Nvext.Allowed
}

// ReadHeaders reads the headers about routing, which win over the body's nvext. Call ReadHeaders
// after Read. The error is a *scan.Error.
func (r *Request) ReadHeaders(all iter.Seq2[[]byte, []byte]) error {
	if r.Nvext == nil {
		r.Nvext = &nvext.Ext{}
	}
	return nvext.ReadHeaders(r.Nvext, all)
}

// Privileged returns the first field or header of the request that steers the router, or "".
// Package trust says which clients may send one.
func (r *Request) Privileged() string {
	switch {
	case r.Pin != "":
		return "x-cgn-node"
	case r.Nvext != nil:
		return r.Nvext.Privileged
	}
	return ""
}

// Asked returns the model's name as the client wrote it. The name is valid until Reset.
func (r *Request) Asked() []byte { return r.own.model }

// KeptText is the largest buffer of prompt text, in bytes, kept while an answer is relayed and for
// later requests.
const KeptText = 256 << 10

// Release frees the body and long prompt text. No leg may be sent afterwards. Calls after the first
// do nothing.
func (r *Request) Release() {
	if r.lent.body = nil; cap(r.Scan.Text) > KeptText {
		r.Scan.Text = nil
	}
	r.Scan.Model, r.Scan.CacheSalt, r.Scan.PreviousResponseID = nil, nil, nil // point into the body
	if release := r.lent.release; release != nil {
		r.lent.release = nil
		release()
	}
}

// Expired says whether the client's own deadline has passed.
func (r *Request) Expired() bool { return !r.Deadline.IsZero() && !time.Now().Before(r.Deadline) }

// Going says whether the client still waits for its answer: nothing has ended the request, and its
// deadline has not passed.
func (r *Request) Going() bool { return r.Life.Ended() == None && !r.Expired() }

// Before returns the earlier of t and the client's own deadline.
func (r *Request) Before(t time.Time) time.Time {
	if !r.Deadline.IsZero() && r.Deadline.Before(t) {
		return r.Deadline
	}
	return t
}

// ExpectedOutput returns the expected length of the answer in tokens; 0: unknown.
func (r *Request) ExpectedOutput() int64 {
	if r.Nvext == nil {
		return 0
	}
	return int64(r.Nvext.OSL)
}

// Priority returns the request's priority, which the client's key caps, or -1 if it comes after all
// others.
func (r *Request) Priority() int {
	switch {
	case r.Nvext == nil:
		return 0
	case r.Nvext.Last:
		return -1
	case r.Who == nil:
		return 0
	}
	return int(min(r.Nvext.Priority, uint32(r.Who.Priority)))
}

// Predicts says whether the request leaves its prompt in an engine's cache.
func (r *Request) Predicts() bool {
	switch r.API {
	case scan.Chat, scan.Completions, scan.Responses, scan.Messages:
		return true
	}
	return false
}

// Generates says whether the request may generate tokens.
func (r *Request) Generates() bool {
	return r.Method == "POST" && (r.Predicts() || r.API == scan.Audio || r.API == scan.Other)
}

// method returns the method's name. method allocates nothing for the common ones.
func method(b []byte) string {
	for _, m := range [...]string{"POST", "GET", "HEAD", "DELETE"} {
		if string(b) == m {
			return m
		}
	}
	return string(b)
}

// stringOf returns b as a string without a copy. The string is valid for as long as b is.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
