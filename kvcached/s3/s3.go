// Package s3 serves blocks to clients that speak S3: LMCache's s3:// connector, boto3,
// aws-sdk-go-v2 and the like.
//
// It is a subset over HTTP/1.1: PUT, GET with one range, HEAD, DELETE, DeleteObjects, ListObjects
// (v1 and v2), ListBuckets, HeadBucket, CreateBucket, DeleteBucket, GetBucketLocation and multipart
// uploads. Everything else is NotImplemented. Requests are signed in the Authorization header.
//
// A Host header below localhost or one of Options.Domains names the bucket, and the path is the
// key (virtual-host style, which LMCache uses). With any other Host the path begins with the bucket
// (path style). So a server that clients reach by <bucket>.<name> needs that name in Domains. A
// path that is only a key of LMCache's, or only a block address, is in the bucket "default". All
// else is InvalidBucketName; see locate.
//
// It differs from S3 in these points:
//   - Buckets exist without CreateBucket. A bucket is the namespace "s3.<bucket>" of the caller's
//     tenant.
//   - A key that begins with "cgn:" is a block address (see kv/block). It is the same block in
//     every bucket, and is not listed.
//   - Objects may go away at any time, as this is a cache. A PUT is acknowledged from memory unless
//     Options.Durable or the header X-Cgn-Durable: true asks for the disk.
//   - An object has at most 64 MiB. Parts have no smallest size. The parts of all incomplete
//     uploads take at most a quarter of the arena. A single upload may take more, for an object of
//     up to 3/8 of the arena. An upload without a new part for 2 minutes is aborted. Uploads and
//     parts are not listed.
//   - GET answers x-amz-checksum-mode with the CRC32C of every object, and with the checksum of its
//     PUT's header or trailer. A completion's FULL_OBJECT checksum is compared but not kept.
//   - An ETag has the CRC32C and the length, and is not an MD5.
//   - Each page of a listing walks over all blocks and keeps the smallest names.
package s3

import (
	"cmp"
	"encoding/xml"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/kv/block"
)

// MaxObject is the length of the largest object, in bytes.
const MaxObject = block.MaxPayload

// maxParsing bounds the documents that are parsed at once. Others wait, as 4 MiB of empty elements
// or attributes take up to 250 MiB and 2 s.
const maxParsing = 2

// Options configure a Server.
type Options struct {
	Sink Sink  // the store of objects; needed
	Keys []Key // access keys; none: everybody who reaches the listener
	// names of the server, for <bucket>.<domain>/<key> and <domain>/<bucket>/<key>; localhost is
	// always one
	Domains []string
	Durable bool // every PUT waits for the disk

	// Asked is called for each request for an object with the access key of its signature, if there
	// are no Keys, so that nobody checks the signature. Nil: nobody wants to know.
	Asked func(access, namespace string, key []byte)

	Logger *slog.Logger // nil: slog.Default()
	Audit  *audit.Log   // of refused clients; nil: none

	Timeout time.Duration // for each MiB of a body, and for a small answer; 0: 30 s

	// Bounds. Requests beyond them are answered SlowDown.
	maxRequests    int   // requests at once with an object or a document; 0: 256
	maxUploads     int   // incomplete multipart uploads; 0: 256
	maxUploadBytes int64 // bytes of the parts of all uploads, unless there is only one; 0: a quarter of the arena
}

// Server is an http.Handler; Close it after the last request.
type Server struct {
	sink    Sink
	keys    map[string]Key
	domains []string
	durable bool
	asked   func(access, namespace string, key []byte)
	log     *slog.Logger
	audit   *audit.Log
	timeout time.Duration
	bodies  chan struct{} // a token per body on its way
	parsing chan struct{} // a token per document being parsed; bodies bounds the waiters
	uploads *uploads
	started time.Time
	nextID  atomic.Uint64
	quiet   atomic.Int64 // when the next failure may be logged, in ns since started
	count   counters
}

// New makes a Server. It fails when a key is unusable.
func New(o Options) (*Server, error) {
	if o.Sink == nil {
		return nil, errors.New("s3: a sink is needed")
	}
	if err := checkKeys(o.Keys); err != nil {
		return nil, err
	}
	s := &Server{
		sink: o.Sink, keys: map[string]Key{}, durable: o.Durable, asked: o.Asked, log: cmp.Or(o.Logger, slog.Default()),
		audit: o.Audit, timeout: cmp.Or(o.Timeout, 30*time.Second), started: time.Now(),
	}
	for _, k := range o.Keys {
		s.keys[k.Access] = k
	}
	for _, d := range o.Domains {
		s.domains = append(s.domains, strings.ToLower(strings.Trim(d, ".")))
	}
	s.bodies = make(chan struct{}, cmp.Or(o.maxRequests, 256))
	s.parsing = make(chan struct{}, maxParsing)
	s.uploads = newUploads(o, &s.count)
	s.nextID.Store(uint64(s.started.UnixNano()))
	return s, nil
}

// Close aborts the uploads that are not complete and waits for the server's goroutine.
func (s *Server) Close() { s.uploads.close() }

// call is one request.
type call struct {
	s     *Server
	w     http.ResponseWriter
	r     *http.Request
	id    string
	query query
	who   caller
	target
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.count.requests.Add(1)
	c := &call{s: s, w: w, r: r, id: strings.ToUpper(strconv.FormatUint(s.nextID.Add(1), 16))}
	w.Header()["x-amz-request-id"] = []string{c.id}
	w.Header().Set("Server", "cgn-kvcached")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.timeout))
	err := c.serve()
	if err == nil {
		return
	}
	answer := asAPI(err)
	switch {
	case answer.code == "InternalError":
		s.complain("s3 request failed", "method", r.Method, "id", c.id, "error", err)
		s.count.failed.Add(1)
	case answer.code == "SlowDown":
		s.count.slowed.Add(1)
	case answer.status == http.StatusForbidden:
		s.count.denied.Add(1)
		s.denied(r, answer)
	case answer.status != http.StatusNotFound:
		s.count.refused.Add(1)
	}
	c.refuse(answer)
}

// complain logs at most one failure a second. counters.failed counts all.
func (s *Server) complain(what string, args ...any) {
	now := int64(time.Since(s.started))
	if until := s.quiet.Load(); now >= until && s.quiet.CompareAndSwap(until, now+int64(time.Second)) {
		s.log.Error(what, args...)
	}
}

// serve reads the request line, authenticates the caller and dispatches.
func (c *call) serve() (err error) {
	if c.query, err = parseQuery(c.r.URL.RawQuery); err != nil {
		return err
	}
	if c.who, err = c.s.authenticate(c.r, c.query); err != nil {
		return err
	}
	if c.target, err = locate(c.r.Host, rawPath(c.r), c.s.domains); err != nil {
		return err
	}
	if c.who.readOnly && c.r.Method != http.MethodGet && c.r.Method != http.MethodHead {
		return refusal("AccessDenied", "Access Denied. This key may only read.")
	}
	if err := c.refuseUnknown(); err != nil {
		return err
	}
	switch {
	case c.bucket == "":
		if c.r.Method != http.MethodGet {
			return refusal("MethodNotAllowed", "The path names no bucket, and neither does the Host header: "+
				"s3.domains holds no name that it ends with.")
		}
		return c.listBuckets()
	case c.key == "":
		return c.serveBucket()
	}
	c.tell()
	return c.serveObject()
}

// tell says who asks for an object.
func (c *call) tell() {
	if c.s.asked == nil || len(c.s.keys) > 0 {
		return
	}
	a, err := authorizationOf(c.r)
	if err != nil {
		return
	}
	if namespace, err := namespaceOf(c.bucket, ""); err == nil {
		c.s.asked(a.accessKey, namespace, []byte(c.key))
	}
}

func (c *call) serveBucket() error {
	switch c.r.Method {
	case http.MethodGet:
		if c.query.has("location") {
			return c.bucketLocation()
		}
		return c.list()
	case http.MethodHead:
		c.w.Header()["x-amz-bucket-region"] = []string{region}
		c.status(http.StatusOK)
		return nil
	case http.MethodPut:
		return c.createBucket()
	case http.MethodDelete:
		return c.deleteBucket()
	case http.MethodPost:
		if c.query.has("delete") {
			return c.deleteMany()
		}
	}
	return c.notAllowed()
}

func (c *call) serveObject() error {
	upload := c.query.has("uploadId")
	switch c.r.Method {
	case http.MethodGet:
		return c.get()
	case http.MethodHead:
		return c.head()
	case http.MethodPut:
		if upload {
			return c.uploadPart()
		}
		return c.put()
	case http.MethodDelete:
		if upload {
			return c.abortUpload()
		}
		return c.delete()
	case http.MethodPost:
		switch {
		case c.query.has("uploads"):
			return c.createUpload()
		case upload:
			return c.completeUpload()
		}
	}
	return c.notAllowed()
}

// unknownParameters and unknownHeaders are parameters and headers that this server does not support
// and must not ignore silently.
var (
	unknownParameters = []string{
		"accelerate", "acl", "analytics", "attributes", "cors", "encryption", "intelligent-tiering", "inventory",
		"legal-hold", "lifecycle",
		"logging", "metrics", "notification", "object-lock", "ownershipControls", "policy", "policyStatus",
		"publicAccessBlock", "replication",
		"requestPayment", "restore", "retention", "select", "tagging", "torrent", "versioning", "versions", "website",
	}
	unknownHeaders = []string{
		"x-amz-copy-source", "x-amz-server-side-encryption", "x-amz-server-side-encryption-customer-algorithm",
		"x-amz-tagging",
		"x-amz-object-lock-mode", "x-amz-object-lock-legal-hold", "x-amz-website-redirect-location",
		"x-amz-write-offset-bytes",
	}
)

func (c *call) refuseUnknown() error {
	for _, p := range c.query {
		if slices.Contains(unknownParameters, p.name) || p.name == "versionId" && p.value != "null" {
			return refusal("NotImplemented", "The parameter %s is not supported.", p.name)
		}
	}
	if c.r.Method == http.MethodGet && (c.query.has("uploads") || c.query.has("uploadId")) {
		return refusal("NotImplemented", "Uploads that are not complete are not listed.")
	}
	for _, name := range unknownHeaders {
		if c.r.Header.Get(name) != "" {
			return refusal("NotImplemented", "The header %s is not supported.", name)
		}
	}
	return nil
}

func (c *call) notAllowed() error {
	return refusal("MethodNotAllowed", "The specified method is not allowed against this resource.")
}

// status begins the answer. From now on the client has the timeout to take it.
func (c *call) status(code int) {
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(c.s.timeout))
	c.w.WriteHeader(code)
}

// document answers with XML.
func (c *call) document(status int, v any) {
	text, err := xml.Marshal(v)
	if err != nil {
		c.s.complain("s3 answer cannot be written", "id", c.id, "error", err)
		status, text = http.StatusInternalServerError, nil
	}
	h := c.w.Header()
	h.Set("Content-Type", "application/xml")
	h.Set("Content-Length", strconv.Itoa(len(xml.Header)+len(text)))
	c.status(status)
	_, _ = c.w.Write(append([]byte(xml.Header), text...))
}

// body gets a token for the body of an object or a document. The caller gives the token back with
// release. The answer is SlowDown if no token is free.
func (s *Server) body() (release func(), err error) {
	select {
	case s.bodies <- struct{}{}:
		return func() { <-s.bodies }, nil
	default:
		return nil, refusal("SlowDown", "Please reduce your request rate: %d bodies are on their way.", cap(s.bodies))
	}
}
