package oidc

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/json"

	"github.com/cognitora/dataplane/router/trust"
)

const (
	maxToken  = 16 << 10 // bytes
	maxHeader = 2 << 10  // bytes of a token's header in base64; its kid is there
)

// token is a parsed token. Nothing of it is proven before its signature.
type token struct {
	jws    *jose.JSONWebSignature
	key    keyName
	kind   string // header typ, in small letters; empty: none
	claims claims
}

// claims are the members of a token's payload. Names count as they are written, and a name that is
// there twice makes the token malformed.
type claims map[string]json.RawMessage

// parse takes a token apart. It allows one signature by an allowed algorithm, and no header that
// changes what is signed or brings a key.
func parse(text []byte, allowed []jose.SignatureAlgorithm) (t token, why Refusal) {
	if !isCompact(text) {
		return t, Malformed
	}
	jws, err := jose.ParseSignedCompact(string(text), allowed)
	if _, other := errors.AsType[*jose.ErrUnexpectedSignatureAlgorithm](err); other {
		return t, Algorithm
	}
	var claims claims
	if err != nil || json.Unmarshal(jws.UnsafePayloadWithoutVerification(), &claims) != nil {
		return t, Malformed
	}
	h := &jws.Signatures[0].Protected
	kind, isText := h.ExtraHeaders[jose.HeaderType].(string)
	if _, has := h.ExtraHeaders[jose.HeaderType]; has && !isText {
		return t, Malformed
	}
	_, critical := h.ExtraHeaders["crit"]
	_, unencoded := h.ExtraHeaders["b64"]
	if critical || unencoded || h.JSONWebKey != nil || h.KeyID == "" {
		return t, Malformed
	}
	t.jws, t.claims, t.kind = jws, claims, strings.TrimPrefix(strings.ToLower(kind), "application/")
	t.key = keyName{h.KeyID, jose.SignatureAlgorithm(h.Algorithm)}
	return t, None
}

// isCompact says whether text is three parts of base64url with dots between them, none of them
// empty, and the first one, the header, not too long.
func isCompact(text []byte) bool {
	header, rest, _ := bytes.Cut(text, []byte{'.'})
	payload, signature, found := bytes.Cut(rest, []byte{'.'})
	if !found || len(header) > maxHeader {
		return false
	}
	for _, part := range [][]byte{header, payload, signature} {
		if len(part) == 0 || slices.ContainsFunc(part, isNotBase64) {
			return false
		}
	}
	return true
}

func isNotBase64(c byte) bool {
	return !('0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z' || c == '-' || c == '_')
}

// text returns a claim that is a string.
func (c claims) text(name string) (s string, ok bool) {
	raw := c[name]
	ok = len(raw) > 0 && raw[0] == '"' && json.Unmarshal(raw, &s) == nil
	return s, ok
}

// texts returns a claim that is a string or an array of strings.
func (c claims) texts(name string) (all []string, ok bool) {
	if one, ok := c.text(name); ok {
		return []string{one}, true
	}
	ok = json.Unmarshal(c[name], &all) == nil
	return all, ok
}

// maxSeconds is the last second of the year 9999, as a Unix time.
const maxSeconds = 253402300799

// moment returns a claim that is a Unix time. has says whether the claim is there.
func (c claims) moment(name string) (at time.Time, has, ok bool) {
	raw, has := c[name]
	var seconds float64
	if !has || json.Unmarshal(raw, &seconds) != nil || raw[0] == 'n' || !(seconds >= 0 && seconds <= maxSeconds) {
		return at, has, false
	}
	whole, part := math.Modf(seconds)
	return time.Unix(int64(whole), int64(part*1e9)), true, true
}

// client returns the id of the client that the token was issued to, or "".
func (c claims) client() string {
	for _, name := range []string{"azp", "client_id", "cid", "appid"} {
		if id, ok := c.text(name); ok {
			return id
		}
	}
	return ""
}

// forClient says whether the token shows that a client got it to know its user: an ID token. A type
// of RFC 9068 decides, then what Keycloak and Cognito write, then claims that only ID tokens have.
func (t *token) forClient() bool {
	if t.kind == "at+jwt" {
		return false
	}
	typ, _ := t.claims.text("typ")
	use, _ := t.claims.text("token_use")
	if typ == "Bearer" || use == "access" {
		return false
	}
	for _, name := range []string{"nonce", "at_hash", "c_hash"} {
		if _, has := t.claims[name]; has {
			return true
		}
	}
	return typ == "ID" || use == "id"
}

// refuse returns why a token does not count now, whoever has signed it. ends is when it stops to
// count.
func (o *Options) refuse(t *token, now time.Time) (ends time.Time, why Refusal) {
	issuer, _ := t.claims.text("iss")
	audience, _ := t.claims.texts("aud")
	client, forClient := t.claims.client(), t.forClient()
	switch {
	case issuer != o.Issuer:
		return ends, Issuer
	case !slices.ContainsFunc(audience, o.isOurs):
		return ends, Audience
	case t.kind != "" && t.kind != "jwt" && t.kind != "at+jwt", forClient && !o.IDTokens:
		return ends, Kind
	case len(o.Clients) > 0 && !slices.Contains(o.Clients, client),
		len(o.Clients) == 0 && forClient && len(audience) > 1 && !o.isOurs(client):
		return ends, Client
	}
	expires, _, ok := t.claims.moment("exp")
	if !ok {
		return ends, Malformed
	}
	for _, name := range []string{"nbf", "iat"} {
		begins, has, ok := t.claims.moment(name)
		if has && !ok {
			return ends, Malformed
		}
		if has && begins.After(now.Add(o.Leeway)) {
			return ends, NotYet
		}
	}
	if ends = expires.Add(o.Leeway); !now.Before(ends) {
		return ends, Expired
	}
	if subject, _ := t.claims.text("sub"); subject == "" {
		return ends, Malformed
	}
	return ends, None
}

func (o *Options) isOurs(audience string) bool { return slices.Contains(o.Audience, audience) }

// grant returns the principal of a token that counts: the rights of the first mapped group that the
// token names, and the tenant of that group, or else of the token.
func (v *Verifier) grant(t *token) (*trust.Principal, Refusal) {
	groups, _ := t.claims.texts(v.o.GroupsClaim)
	first := len(v.o.Groups)
	for _, name := range groups {
		if at, mapped := v.groups[name]; mapped {
			first = min(first, at)
		}
	}
	if first == len(v.o.Groups) {
		return nil, NoGroup
	}
	g := v.o.Groups[first].Grant
	if g.Tenant == "" && v.o.TenantClaim != "" {
		tenant, _ := t.claims.text(v.o.TenantClaim)
		if trust.CheckTenant(tenant) != nil {
			return nil, NoTenant
		}
		g.Tenant = tenant
	}
	subject, _ := t.claims.text("sub")
	return g.Principal(trust.SafeID("oidc", subject)), None
}
