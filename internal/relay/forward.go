package relay

import (
	"slices"
	"strings"

	"github.com/valyala/fasthttp"
)

// Header names that do not travel, lower-case and sorted. Names are compared
// without regard to case.
var (
	// HopByHopHeaders belong to one connection. So do the fields that a
	// Connection header lists.
	HopByHopHeaders = []string{
		"connection", "http2-settings", "keep-alive", "proxy-authenticate", "proxy-authorization",
		"proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
	}
	// IdentityHeaders are those by which common proxies tell a backend who the
	// user is. From a client they are a claim that nobody has checked.
	IdentityHeaders = []string{
		"cf-access-authenticated-user-email", "cf-access-jwt-assertion", "client-cert", "client-cert-chain",
		"forwarded", "remote-user", "ssl-client-cert", "ssl-client-s-dn", "tailscale-user-login",
		"tailscale-user-name", "x-authenticated-user", "x-client-cert", "x-email", "x-end-user", "x-groups",
		"x-organization-id", "x-real-ip", "x-remote-group", "x-remote-user", "x-scopes", "x-ssl-client-cert",
		"x-subject", "x-tenant", "x-tenant-id", "x-user", "x-user-email", "x-user-id", "x-user-name",
		"x-webauth-user",
	}
	// IdentityPrefixes are the beginnings of further identity headers, our own
	// x-cgn-* included: x-cgn-tenant, x-cgn-subject, x-forwarded-user,
	// x-forwarded-client-cert, x-auth-request-email ...
	IdentityPrefixes = []string{
		"x-amzn-oidc-", "x-auth-request-", "x-cgn-", "x-endpoint-", "x-forwarded-", "x-goog-authenticated-",
		"x-goog-iap-", "x-ms-client-principal",
	}
	// CredentialHeaders carry the client's own keys; the upstream gets the
	// Target's, or what Request.ForwardAuthorization says.
	CredentialHeaders = []string{"api-key", "authorization", "cookie", "x-api-key", "x-goog-api-key"}

	// replacedHeaders are made anew for every hop. Accept-Encoding is one of
	// them because a compressed body could not be read on the way.
	replacedHeaders = []string{"accept-encoding", "content-length", "expect", "host"}

	// ownResponseHeaders of the upstream give way to what this server says.
	ownResponseHeaders = []string{"content-length", "date", "server"}

	droppedRequestHeaders = sorted(HopByHopHeaders, IdentityHeaders, CredentialHeaders, replacedHeaders)
)

func sorted(lists ...[]string) []string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return all
}

// HopByHop reports whether name is a hop-by-hop header.
func HopByHop(name []byte) bool { return listed(HopByHopHeaders, name) }

// listed looks name up in a sorted list of lower-case names.
func listed(list []string, name []byte) bool {
	low, high := 0, len(list)
	for low < high {
		mid := (low + high) / 2
		switch c := compareFold(name, list[mid]); {
		case c == 0:
			return true
		case c < 0:
			high = mid
		default:
			low = mid + 1
		}
	}
	return false
}

func prefixed(prefixes []string, name []byte) bool {
	for _, p := range prefixes {
		if len(name) >= len(p) && equalFold(name[:len(p)], p) {
			return true
		}
	}
	return false
}

// compareFold orders name, its ASCII letters lowered, against lower.
func compareFold(name []byte, lower string) int {
	for i := range min(len(name), len(lower)) {
		c := name[i]
		if c >= 'A' && c <= 'Z' {
			c |= 0x20
		}
		if c != lower[i] {
			return int(c) - int(lower[i])
		}
	}
	return len(name) - len(lower)
}

// AppendForwardHeaders appends the fields of a client's request that travel to
// the upstream, as lines for Request.Header, and returns dst. Left out are
// hop-by-hop, identity and credential headers and those made for every hop.
// Everything else travels: traceparent, x-request-id, content-type, accept,
// user-agent, anthropic-version, openai-organization ... A field that is no
// valid header line is left out, so no value can start another line.
func AppendForwardHeaders(dst []byte, h *fasthttp.RequestHeader) []byte {
	named := false // by a Connection header
	for k, v := range h.All() {
		named = named || equalFold(k, "connection") && !equalFold(v, "keep-alive") && !equalFold(v, "close")
	}
	for k, v := range h.All() {
		if listed(droppedRequestHeaders, k) || prefixed(IdentityPrefixes, k) || named && namedByConnection(h, k) {
			continue
		}
		if isToken(k) && isFieldValue(v) {
			dst = append(append(append(append(dst, k...), ": "...), v...), "\r\n"...)
		}
	}
	return dst
}

func namedByConnection(h *fasthttp.RequestHeader, name []byte) bool {
	lower := strings.ToLower(string(name))
	for k, v := range h.All() {
		if equalFold(k, "connection") && hasToken(v, lower) {
			return true
		}
	}
	return false
}

// CopyHeaders copies the fields of an upstream response that travel to the
// client. Left out are hop-by-hop headers, Content-Length (Reply sets it),
// Date, Server, and x-cgn-*, which one hop says to the next.
func CopyHeaders(dst *fasthttp.ResponseHeader, e *Exchange) {
	buf := e.c.buf
	for _, f := range e.head.fields {
		name, value := buf[f.name:f.nameEnd], buf[f.value:f.valueEnd]
		if HopByHop(name) || listed(ownResponseHeaders, name) || prefixed(ownPrefix, name) || e.named(name) {
			continue
		}
		dst.AddBytesKV(name, value)
	}
}

var ownPrefix = []string{"x-cgn-"}

// named reports whether one of the response's Connection headers lists name.
func (e *Exchange) named(name []byte) bool {
	buf := e.c.buf
	for _, f := range e.head.fields {
		if v := buf[f.value:f.valueEnd]; equalFold(buf[f.name:f.nameEnd], "connection") &&
			!equalFold(v, "keep-alive") && !equalFold(v, "close") && hasToken(v, strings.ToLower(string(name))) {
			return true
		}
	}
	return false
}
