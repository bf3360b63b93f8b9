// Package auth finds out who asks, from the head of a request: the principal of an API key.
//
//	Authorization: Bearer KEY    OpenAI's clients
//	x-api-key: KEY               Anthropic's
//
// Without settings nobody needs to say who he is: clients on the router's own host, and those with
// a certificate that the port has verified, may steer requests, and others may not.
package auth

import (
	"bytes"
	"crypto/tls"
	"net"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/trust"
)

// Door decides who may come in. A nil Door lets everybody in. Its fields do not change.
type Door struct {
	Keys *keys.Set
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
}

// PeerOf returns the other end of a connection whose TLS handshake is over. state is nil without
// TLS.
func PeerOf(at net.Addr, state *tls.ConnectionState) *Peer {
	return &Peer{Near: trust.OfHost(at), Certified: state != nil && len(state.VerifiedChains) > 0}
}

// Identify returns who sends a request with this head over a connection. Identify does not
// allocate, unless it refuses.
func (d *Door) Identify(h *fasthttp.RequestHeader, from *Peer) (*trust.Principal, *apierror.Error) {
	if d == nil {
		if from.Near || from.Certified {
			return near, nil
		}
		return far, nil
	}
	shown, err := shownIn(h)
	if err != nil {
		return nil, err
	}
	sum, id, ok := keys.Parse(shown)
	if !ok {
		return nil, errNotAKey
	}
	who, why := d.Keys.Find(sum, time.Now())
	switch {
	case who != nil:
		return who, nil
	case !d.Ready():
		return nil, errUnread
	}
	return nil, refused(id, why)
}

// Ready says whether the door knows whom to let in.
func (d *Door) Ready() bool { return d == nil || d.Keys.Known() }

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
