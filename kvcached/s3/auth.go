package s3

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

// maxSkew is how far a client's clock may be from ours.
const maxSkew = 15 * time.Minute

// Key lets a client in. Secrets never appear in logs, errors or metrics.
type Key struct {
	Access   string // the client's access key id; not empty
	Secret   string // not empty
	Tenant   string // the tenant of its namespaces; empty: no tenant, and block addresses of every tenant
	ReadOnly bool   // may only read
}

// String does not print the secret.
func (k Key) String() string { return "s3 key " + k.Access }

// GoString is String.
func (k Key) GoString() string { return k.String() }

func checkKeys(keys []Key) error {
	seen := map[string]bool{}
	for _, k := range keys {
		switch {
		case k.Access == "" || k.Secret == "":
			return errors.New("s3: a key needs an access key and a secret")
		case seen[k.Access]:
			return fmt.Errorf("s3: the access key %q is configured twice", k.Access)
		}
		seen[k.Access] = true
	}
	return nil
}

// caller is the sender of a request.
type caller struct {
	tenant   string
	open     bool // block addresses of every tenant are allowed
	readOnly bool
	chain    *chain // signs the chunks of an aws-chunked body; nil: they are not signed
}

// authenticate finds the caller. Without keys everybody is let in.
func (s *Server) authenticate(r *http.Request, q query) (caller, error) {
	if len(s.keys) == 0 {
		return caller{open: true}, nil
	}
	a, err := authorizationOf(r)
	if err != nil {
		return caller{}, err
	}
	k, known := s.keys[a.accessKey]
	if !known {
		return caller{}, refusal("InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our "+
			"records.")
	}
	signed, err := a.when(r)
	if err != nil {
		return caller{}, err
	}
	if err := checkTime(signed, time.Now()); err != nil {
		return caller{}, err
	}
	payload := r.Header.Get(headerPayload)
	if payload == "" {
		return caller{}, refusal("InvalidRequest", "Missing required header for this request: %s.", headerPayload)
	}
	if name := unsignedHeader(r, a); name != "" {
		return caller{}, refusal("AccessDenied", "There were headers present in the request which were not signed: %s.",
			name)
	}
	key := signingKey(k.Secret, a.credential)
	if !s.signs(key, a, r, q, payload) {
		return caller{}, refusal("SignatureDoesNotMatch", "The request signature we calculated does not match the "+
			"signature you provided. Check your key and signing method.")
	}
	who := caller{tenant: k.Tenant, open: k.Tenant == "", readOnly: k.ReadOnly}
	if strings.HasPrefix(payload, streamingSigned) {
		who.chain = &chain{key: key, amzDate: a.amzDate, scope: a.scope(), last: a.signature}
	}
	return who, nil
}

// denied records a request that is answered with 403. It names a key only if there is one.
func (s *Server) denied(r *http.Request, why *apiError) {
	if s.audit == nil {
		return
	}
	refused := audit.Refusal{Reason: why.code, Detail: why.message, Client: r.RemoteAddr, Port: "s3", Asked: r.Method}
	if a, err := authorizationOf(r); err == nil {
		if k, known := s.keys[a.accessKey]; known {
			refused.Key, refused.Tenant = k.Access, k.Tenant
		}
	}
	s.audit.Refuse(refused)
}

// authorizationOf reads the signature from the header.
func authorizationOf(r *http.Request) (authorization, error) {
	header := r.Header.Get("Authorization")
	if header == "" {
		return authorization{}, refusal("AccessDenied", "Access Denied. Requests must be signed, in the Authorization "+
			"header.")
	}
	return parseAuthorization(header)
}

// checkTime refuses requests that were signed too long ago or too far ahead.
func checkTime(signed, now time.Time) error {
	if d := now.Sub(signed); d > maxSkew || d < -maxSkew {
		return refusal("RequestTimeTooSkewed", "The difference between the request time and the current time is "+
			"too large.")
	}
	return nil
}

// unsignedHeader names an x-amz- header outside of the signature. Anybody who relays the request
// could have added it.
func unsignedHeader(r *http.Request, a authorization) string {
	for name := range r.Header {
		lower := strings.ToLower(name)
		if !strings.HasPrefix(lower, "x-amz-") || slices.Contains(a.signed, lower) {
			continue
		}
		return lower
	}
	return ""
}

// signs tells whether the signature is right for the path as it was sent, or for the path in
// SigV4's encoding, which some clients sign instead.
func (s *Server) signs(key []byte, a authorization, r *http.Request, q query, payload string) bool {
	raw := rawPath(r)
	right := func(path string) bool {
		text := stringToSign(a.amzDate, a.credential, canonicalRequest(r, path, q, a.signed, payload))
		return equalSignature(signatureOf(key, text), a.signature)
	}
	if right(raw) {
		return true
	}
	spelled, ok := respelled(raw)
	return ok && spelled != raw && right(spelled)
}

// respelled encodes each segment of a path as SigV4 does. Encoded slashes stay encoded, as they are
// part of a segment.
func respelled(raw string) (string, bool) {
	var b []byte
	for i, segment := range strings.Split(raw, "/") {
		if i > 0 {
			b = append(b, '/')
		}
		text, err := url.PathUnescape(segment)
		if err != nil {
			return "", false
		}
		b = appendEncoded(b, text, false)
	}
	return string(b), true
}

// rawPath is the path in the client's spelling.
func rawPath(r *http.Request) string {
	path, _, _ := strings.Cut(r.RequestURI, "?")
	if !strings.HasPrefix(path, "/") {
		return r.URL.EscapedPath()
	}
	return path
}

// mayUse refuses block addresses of another tenant, and to a key with a tenant those without one,
// which go into everybody's prompts.
func (w caller) mayUse(it store.Item) error {
	if it.Key != nil || w.open {
		return nil
	}
	n, err := block.ParseNamespace(it.Namespace)
	if err != nil || n.Tenant != w.tenant {
		return refusal("AccessDenied", "The block address is another tenant's.")
	}
	return nil
}
