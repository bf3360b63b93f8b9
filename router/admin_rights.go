package router

import (
	"cmp"
	"net/http"

	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/auth"
	"github.com/cognitora/dataplane/router/trust"
)

// adminRights decides who may use the admin port. With API keys, tokens or client certificates
// everybody must show one of them, also on this host. Otherwise everybody may read, and this host
// may change.
type adminRights struct {
	address string // of the port
	tls     *adminport.TLS
	keys    *auth.Door // nil: there are no API keys and no tokens
}

func (a *adminRights) asks() bool { return a.keys != nil || a.tls.Certified() }

// readingPosts are the POST requests that need only the right to read. The handler of
// /busy_threshold asks for more if the body changes something.
var readingPosts = map[string]bool{"/debug/route": true, "/busy_threshold": true}

// guard returns a handler that passes on to next what a client may ask.
func (a *adminRights) guard(next http.Handler) http.Handler {
	if !a.asks() {
		return adminport.Local(a.address, next)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		change := true
		switch req.Method {
		case http.MethodGet, http.MethodHead:
			change = false
		case http.MethodPost:
			change = !readingPosts[req.URL.Path]
		}
		by, fail := a.may(req, change)
		if fail != nil && !adminport.Probe(req) {
			adminport.ActsAs(req, cmp.Or(by, fail.Key), fail.Message)
			writeError(w, fail)
			return
		}
		adminport.ActsAs(req, by, "")
		next.ServeHTTP(w, req)
	})
}

// may returns the error of a client that may not read, or not change something. by names a client
// that may: by the id of its key, by its certificate, or as one of this host; "": anybody.
func (a *adminRights) may(req *http.Request, change bool) (by string, fail *apierror.Error) {
	if !a.asks() {
		if change && !trust.OfHost(trust.Peer(req)) {
			return "", errNotLocal
		}
		return "", nil
	}
	bad := adminport.May(req, change)
	switch {
	case bad == nil:
		return pki.NameIn(req.TLS), nil
	case a.keys == nil, bad != adminport.ErrNoCertificate && !auth.Shown(req):
		return pki.NameIn(req.TLS), &apierror.Error{Status: 403, Code: "certificate_denied", Message: bad.Error()}
	}
	who, fail := a.keys.IdentifyRequest(req)
	if fail != nil {
		return "", fail
	}
	need := trust.AdminRead
	if change {
		need = trust.AdminWrite
	}
	if !who.Scopes.Has(need) {
		return who.ID, auth.Lacks(need, who)
	}
	return who.ID, nil
}

// mayChange is may for a request that changes something. It also refuses the requests of browsers
// for the pages of other sites, as a browser shows certificates by itself.
func (a *adminRights) mayChange(req *http.Request) (by string, fail *apierror.Error) {
	if crossOrigin.Check(req) != nil {
		adminport.ActsAs(req, "", errCrossOrigin.Message)
		return "", errCrossOrigin
	}
	return a.may(req, true)
}

// crossOrigin refuses requests that the page of another site has made a browser send.
var crossOrigin = http.NewCrossOriginProtection()

var (
	errNotLocal = &apierror.Error{
		Status: 403, Code: "not_local",
		Message: "the admin port asks for no key or certificate, so it takes changes only over loopback or its Unix " +
			"socket; send this on the router's host, to 127.0.0.1 or to the socket of router.admin, or protect the port " +
			"(admin_tls.client_ca, auth.keys_file)",
	}
	errCrossOrigin = &apierror.Error{
		Status: 403, Code: "cross_origin",
		Message: "the page of another site sent this; the admin port takes changes from programs only",
	}
)
