// Package request holds what one client asks of the router, and the life of that question.
//
// A Request is filled once, by the port that reads it, and says the same until Release, which takes
// the body away and what lies in it. It copies the head, so that only its body is borrowed memory.
// The body is there for as long as a leg may send it: see Own. A plan that has legs under way at
// once, whose edits name members, calls Scan.Index before.
package request

import (
	"bytes"
	"time"
	"unsafe"

	"github.com/cognitora/dataplane/router/scan"
)

// Request is one request of a client. Make one with New; after Reset its memory may be used for
// another. One goroutine at a time uses it, apart from Life; several may read it while its owner
// waits for them.
type Request struct {
	API      scan.API
	Method   string
	Path     string // with the query
	Header   []byte // the lines that go to the engine as they are
	Auth     []byte // the client's Authorization where it may be forwarded, else nil
	Session  []byte // x-cgn-session-id
	Pin      string // x-cgn-node: this node or none, unless a stored response decides; empty: any
	Received time.Time
	Deadline time.Time // the client's own; zero: none
	Scan     *scan.Request
	Life     Life

	body    []byte
	release func() // gives back the body's memory; nil: it has been called, or nobody waits for it
	model   []byte // copy of Scan.Model, which may be a part of the body
	own     []byte // memory of the head's copies
}

// New returns an empty request.
func New() *Request { return &Request{Scan: new(scan.Request)} }

// keptHead is the largest memory of a head that is kept for another request.
const keptHead = 16 << 10

// Reset releases the body and forgets all but memory of moderate size. Nobody may call a method of
// r.Life from before.
func (r *Request) Reset() {
	r.Release()
	r.Scan.Reset()
	scanned, header, model, own, aborts := r.Scan, small(r.Header), small(r.model), small(r.own), r.Life.aborts
	clear(aborts[:cap(aborts)])
	*r = Request{}
	r.Scan, r.Header, r.model, r.own, r.Life.aborts = scanned, header, model, own, aborts[:0]
}

func small(b []byte) []byte {
	if cap(b) > keptHead {
		return nil
	}
	return b[:0]
}

// Head is what a Request keeps of a request's head. Its memory is borrowed for the call of SetHead.
type Head struct {
	Method, Path       []byte
	Auth, Session, Pin []byte // nil: absent
}

// SetHead copies h.
func (r *Request) SetHead(h Head) {
	need := len(h.Path) + len(h.Auth) + len(h.Session) + len(h.Pin)
	if cap(r.own) < need {
		r.own = make([]byte, 0, need)
	}
	r.own = r.own[:0]
	r.Method, r.Path = method(h.Method), stringOf(r.keep(h.Path))
	r.Auth, r.Session, r.Pin = r.keep(h.Auth), r.keep(h.Session), stringOf(r.keep(h.Pin))
}

// keep copies b to the end of r.own, which has room for it; nil stays nil.
func (r *Request) keep(b []byte) []byte {
	if b == nil {
		return nil
	}
	start := len(r.own)
	r.own = append(r.own, b...)
	return r.own[start:len(r.own):len(r.own)]
}

// Own makes body the request's. release, which may be nil, is called once, when no leg needs the
// body any more: it gives back the memory, and the room that it takes in limits.max_body_total.
func (r *Request) Own(body []byte, release func()) { r.body, r.release = body, release }

// Body is what the client has sent. It is valid until Release.
func (r *Request) Body() []byte { return r.body }

// formData is how the content type of a form begins.
var formData = []byte("multipart/form-data")

// Read scans the body, which is a form or JSON as its content type says. m, which may be nil,
// remembers how long bodies begin. The error is a *scan.Error.
func (r *Request) Read(contentType []byte, m *scan.Memo) (err error) {
	switch {
	case len(contentType) >= len(formData) && bytes.EqualFold(contentType[:len(formData)], formData):
		err = scan.ScanMultipart(contentType, r.body, r.Scan)
	case m == nil:
		err = scan.Scan(r.API, r.body, r.Scan)
	default:
		err = m.Scan(r.API, r.body, r.Scan)
	}
	r.model = append(r.model[:0], r.Scan.Model...)
	return err
}

// Asked is the model's name as the client has written it; valid until Reset.
func (r *Request) Asked() []byte { return r.model }

// KeptText is the size in bytes up to which buffers of prompt text are kept while an answer is
// relayed, and for other requests.
const KeptText = 256 << 10

// Release lets go of the body, and of long prompt text: no leg will be sent from now on. Calls
// after the first do nothing.
func (r *Request) Release() {
	if r.body = nil; cap(r.Scan.Text) > KeptText {
		r.Scan.Text = nil
	}
	r.Scan.Model, r.Scan.CacheSalt, r.Scan.PreviousResponseID = nil, nil, nil // parts of the body
	if release := r.release; release != nil {
		r.release = nil
		release()
	}
}

// Expired tells whether the client's own deadline has passed.
func (r *Request) Expired() bool { return !r.Deadline.IsZero() && !time.Now().Before(r.Deadline) }

// Before is the earlier of t and the client's own deadline.
func (r *Request) Before(t time.Time) time.Time {
	if !r.Deadline.IsZero() && r.Deadline.Before(t) {
		return r.Deadline
	}
	return t
}

// Predicts tells whether the request leaves its prompt in an engine's cache.
func (r *Request) Predicts() bool {
	switch r.API {
	case scan.Chat, scan.Completions, scan.Responses, scan.Messages:
		return true
	}
	return false
}

// Generates tells whether the request may ask for tokens to be made.
func (r *Request) Generates() bool {
	return r.Method == "POST" && (r.Predicts() || r.API == scan.Audio || r.API == scan.Other)
}

// method is the method's name, of which the common ones cost no memory.
func method(b []byte) string {
	switch string(b) {
	case "POST":
		return "POST"
	case "GET":
		return "GET"
	case "HEAD":
		return "HEAD"
	case "DELETE":
		return "DELETE"
	}
	return string(b)
}

// stringOf is b as a string without a copy, valid for as long as b is.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
