// Package auth finds out who asks, from the head of a request and its connection: the principal of
// an API key, of a token of an OIDC provider, or of a client certificate.
//
//	Authorization: Bearer KEY    OpenAI's clients; a token too
//	x-api-key: KEY               Anthropic's
//
// The principal of a gateway may have the scope act_as. Then headers of the gateway say for whom it
// asks: x-cgn-tenant and x-cgn-user. Those of other clients count for nothing.
//
// A key or token decides before a certificate. Without settings nobody needs to say who he is:
// clients on the router's own host, and those with a certificate that the port has verified, may
// steer requests, and others may not.
package auth

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/oidc"
	"github.com/cognitora/dataplane/router/trust"
)

// Door decides who may come in. A nil Door lets everybody in. Its fields do not change.
type Door struct {
	Keys         *keys.Set                   // nil: no API key counts
	Tokens       *oidc.Verifier              // nil: no token counts
	Certificates map[string]*trust.Principal // by the name in a client's certificate
}

// Principals without settings. Both have the tenant of keys that name none.
var (
	near = &trust.Principal{Tenant: trust.DefaultTenant, Scopes: trust.Inference | trust.Models | trust.Pin,
		Priority: trust.MaxPriority}
	far = &trust.Principal{Tenant: trust.DefaultTenant, Scopes: trust.Inference | trust.Models}
)

// Peer is the other end of a connection.
type Peer struct {
	Near      bool // on this host, by loopback or a Unix socket
	Certified bool // with a certificate that the port has verified

	who   *trust.Principal // of the certificate; nil: nobody
	until time.Time        // end of the certificate
}

// PeerOf returns the other end of a connection whose TLS handshake is over. state is nil without
// TLS.
func (d *Door) PeerOf(at net.Addr, state *tls.ConnectionState) *Peer {
	p := &Peer{Near: trust.OfHost(at), Certified: state != nil && len(state.VerifiedChains) > 0}
	if d == nil || !p.Certified {
		return p
	}
	own := state.VerifiedChains[0][0]
	p.until = own.NotAfter
	for _, name := range namesOf(own) {
		if p.who = d.Certificates[name]; p.who != nil {
			break
		}
	}
	return p
}

// namesOf returns the names in a client's certificate: its URIs, then its DNS names. The common
// name counts in a certificate without either.
func namesOf(c *x509.Certificate) (names []string) {
	for _, uri := range c.URIs {
		names = append(names, uri.String())
	}
	if names = append(names, c.DNSNames...); len(names) == 0 {
		names = append(names, c.Subject.CommonName)
	}
	return names
}

// Identify returns who sends a request with this head over a connection, or for whom a gateway with
// the scope act_as sends it. Identify does not allocate, unless it refuses, sees a token for the
// first time, or a gateway names somebody. Identify may wait for a token's check, as
// oidc.Verifier.Identify says.
func (d *Door) Identify(h *fasthttp.RequestHeader, from *Peer) (*trust.Principal, *apierror.Error) {
	if d == nil {
		switch {
		case from.Certified:
			return near, nil
		case !from.Near:
			return far, nil
		case foreign(h):
			return nil, errForeign
		}
		return near, nil
	}
	who, err := d.sender(h, from)
	if err == nil && who.Scopes.Has(trust.ActAs) {
		return actingFor(who, h)
	}
	return who, err
}

// foreign says whether the page of another site has made a browser of this host send a request.
// Only the pages of the web count, and not the browser's extensions or programs made with its
// engine.
func foreign(h *fasthttp.RequestHeader) bool {
	origin := h.Peek("Origin")
	if len(origin) == 0 {
		return false
	}
	scheme, page, _ := bytes.Cut(origin, []byte("://"))
	switch {
	case string(origin) == "null":
		return true
	case string(scheme) != "http" && string(scheme) != "https":
		return false
	case string(h.Peek("Sec-Fetch-Site")) == "same-origin": // browsers never say it of plain HTTP to a name
		return false
	}
	return !bytes.EqualFold(page, h.Host()) || listen.Rebindable(string(page))
}

// sender returns who sends a request.
func (d *Door) sender(h *fasthttp.RequestHeader, from *Peer) (*trust.Principal, *apierror.Error) {
	shown, err := shownIn(h)
	switch {
	case err == errNoKey:
		return d.certified(from)
	case err != nil:
		return nil, err
	case d.Tokens != nil && !keys.Looks(shown):
		return d.token(shown)
	case d.Keys == nil:
		return nil, errNoKeys
	}
	sum, id, ok := keys.Parse(shown)
	if !ok {
		return nil, errNotAKey
	}
	who, why := d.Keys.Find(sum, time.Now)
	switch {
	case who != nil:
		return who, nil
	case !d.Keys.Known():
		return nil, errUnread
	}
	return nil, refused(id, why)
}

// IdentifyRequest is Identify for a request to another port of the router, by its key or token
// alone. The Door must not be nil.
func (d *Door) IdentifyRequest(req *http.Request) (*trust.Principal, *apierror.Error) {
	var h fasthttp.RequestHeader
	for _, name := range []string{authorization, apiKey} {
		for _, value := range req.Header.Values(name) {
			h.Add(name, value)
		}
	}
	return d.Identify(&h, &Peer{})
}

// Shown says whether a request has a key or token, whatever it is worth.
func Shown(req *http.Request) bool {
	return len(req.Header.Values(authorization))+len(req.Header.Values(apiKey)) > 0
}

// certified returns who sends a request without a key or token.
func (d *Door) certified(from *Peer) (*trust.Principal, *apierror.Error) {
	switch {
	case from.who != nil && time.Now().Before(from.until):
		return from.who, nil
	case from.who != nil:
		return nil, errOutdated
	case from.Certified && len(d.Certificates) > 0:
		return nil, errStranger
	case d.Tokens != nil:
		return nil, errNoToken
	}
	return nil, errNoKey
}

// token returns who has a token.
func (d *Door) token(shown []byte) (*trust.Principal, *apierror.Error) {
	who, why := d.Tokens.Identify(shown, time.Now())
	if why != oidc.None {
		return nil, tokenErrors[why]
	}
	return who, nil
}

// Ready says whether the door knows whom to let in, and if not, or only in part, why.
func (d *Door) Ready() (ok bool, detail string) {
	switch {
	case d == nil:
		return true, ""
	case d.Keys != nil && !d.Keys.Known():
		return false, "the API keys are not known yet"
	case d.Tokens != nil && !d.Tokens.Known():
		return d.Keys != nil || len(d.Certificates) > 0, "the OIDC provider " + d.Tokens.Issuer() +
			" has not been reached yet: tokens get 503"
	}
	return true, ""
}

const (
	authorization = "Authorization"
	apiKey        = "X-Api-Key"
)

// shownIn returns the key in a head. Several that are not the same are refused: whoever
// stands in front may have checked another one.
func shownIn(h *fasthttp.RequestHeader) (shown []byte, err *apierror.Error) {
	seen := false
	for name, value := range h.All() {
		switch {
		case len(name) == len(authorization) && string(name) == authorization:
			if value = bearer(value); value == nil {
				return nil, errScheme
			}
		case len(name) == len(apiKey) && string(name) == apiKey:
		default:
			continue
		}
		if seen && !bytes.Equal(shown, value) {
			return nil, errSeveral
		}
		shown, seen = value, true
	}
	if len(shown) == 0 {
		return nil, errNoKey
	}
	return shown, nil
}

// bearer returns what follows the word Bearer and one blank, or nil. The word may have any case.
func bearer(value []byte) []byte {
	const word = "bearer "
	if len(value) <= len(word) || !bytes.EqualFold(value[:len(word)], []byte(word)) {
		return nil
	}
	return value[len(word):]
}
