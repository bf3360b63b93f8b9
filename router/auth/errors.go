package auth

import (
	"strings"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/oidc"
	"github.com/cognitora/dataplane/router/trust"
)

// Code is the code of all refusals with status 401: the sender is not known.
const Code = "invalid_api_key"

// Challenge is the header WWW-Authenticate of a refusal with status 401.
const Challenge = `Bearer realm="cognitora"`

// unauthorized returns the error of a request whose sender is not known. Its type is OpenAI's.
// reason is for the audit log.
func unauthorized(reason, message string) *apierror.Error {
	return &apierror.Error{Status: 401, Type: "invalid_request_error", Code: Code, Message: message, Reason: reason}
}

// later returns the error of a request whose sender cannot be found out now.
func later(code string, seconds int, message string) *apierror.Error {
	return &apierror.Error{Status: 503, Code: code, RetryAfterSeconds: seconds, Message: message}
}

func forbidden(reason, message string) *apierror.Error {
	return &apierror.Error{Status: 403, Code: "insufficient_scope", Message: message, Reason: reason}
}

var (
	errNoKey    = unauthorized("no_key", "no API key was sent; send it as Authorization: Bearer KEY, or as x-api-key: KEY")
	errNoToken  = unauthorized("no_token", "no token or API key was sent; send it as Authorization: Bearer TOKEN")
	errStranger = unauthorized("unknown_certificate", "the client's certificate names nobody whom auth.certificate "+
		"lists; show another one")
	errOutdated = unauthorized("expired_certificate", "the client's certificate has expired; connect again with a new one")
	errScheme   = unauthorized("bad_scheme", "the Authorization header is not of the form Bearer KEY")
	errSeveral  = unauthorized("several_keys", "the request has several API keys that differ; send one, as "+
		"Authorization: Bearer KEY or as x-api-key: KEY")
	errNotAKey = unauthorized("not_a_key", "what was sent is no API key of this router; keys begin with cgn_ and have "+
		"51 characters")
	errUnknownKey = unauthorized("unknown_key", "this API key is not known here")
	errNoKeys     = unauthorized("no_keys_here", "this router takes no API keys; send a token of its OIDC provider, or show "+
		"a client certificate and send no key")
	errForeign = &apierror.Error{Status: 403, Code: "cross_origin", Reason: "cross_origin",
		Message: "the page of another site sent this; this router asks nobody who he is, so it answers programs of its host " +
			"only. Set auth.keys_file, or let the proxy in front leave out Origin"}
	errUnread = later("keys_not_known_yet", 1, "the API keys are not known yet: etcd has not been reached")
)

// tokenErrors are the errors for tokens that do not count, by the reason.
var tokenErrors = map[oidc.Refusal]*apierror.Error{
	oidc.TooLong:    unauthorized("token_too_long", "the token has more than 16 KiB; ask for one with fewer groups or scopes"),
	oidc.Malformed:  unauthorized("token_malformed", "what was sent is neither an API key nor a signed token (JWT) with kid, exp and sub"),
	oidc.Algorithm:  unauthorized("token_algorithm", "the token is signed by an algorithm that this router does not allow"),
	oidc.Kind:       unauthorized("token_kind", "the token is no access token; send the access token, not the ID token"),
	oidc.Issuer:     unauthorized("token_issuer", "the token is of another issuer than this router's; ask its provider for one"),
	oidc.Audience:   unauthorized("token_audience", "the token is for another audience than this router; ask for one with its audience"),
	oidc.Client:     unauthorized("token_client", "the token was issued to a client whose tokens this router does not take"),
	oidc.Expired:    unauthorized("token_expired", "the token has expired; ask for a new one"),
	oidc.NotYet:     unauthorized("token_not_yet", "the token does not count yet, by its nbf or iat; the clocks may differ"),
	oidc.UnknownKey: unauthorized("token_unknown_key", "the token is signed with a key that the provider does not list; ask for a new token"),
	oidc.Signature:  unauthorized("token_signature", "the token's signature is wrong"),
	oidc.NoGroup: forbidden("token_no_group", "the token is valid, but none of its groups has rights here; "+
		"the router's operator can give some (auth.oidc.group)"),
	oidc.NoTenant: forbidden("token_no_tenant", "the token is valid, but names no tenant that can be used (auth.oidc.tenant_claim)"),
	oidc.Pending: later("keys_not_known_yet", 10, "the key that signed the token is not known yet: "+
		"the provider's keys are read again soon"),
	oidc.Busy: later("identity_busy", 1, "too many tokens are being checked"),
}

// refused returns the error for a key that does not count. The id is named only to those who have
// the key.
func refused(id []byte, why keys.Refusal) *apierror.Error {
	e := *errUnknownKey
	switch e.Key = string(id); why {
	case keys.Expired:
		e.Reason, e.Message = "expired_key", "the API key cgn_"+e.Key+"_… has expired; ask for a new one"
	case keys.Revoked:
		e.Reason, e.Message = "revoked_key", "the API key cgn_"+e.Key+"_… has been revoked; ask for a new one"
	}
	return &e
}

// Denied returns the error of a client that may not steer. what is the field or header that steers.
func (d *Door) Denied(what string, who *trust.Principal) *apierror.Error {
	e := &apierror.Error{
		Status: 403, Code: "steering_denied", Param: what,
		Message: "`" + what + "` steers the router, which a client of another host may do only with a certificate " +
			"that the router verifies; leave it out, show a certificate (tls.client_ca of the router), or ask from " +
			"the router's own host",
	}
	if d != nil {
		e.Message = "`" + what + "` steers the router, for which this " + shown(who) + " lacks the scope route.pin; " +
			"leave it out, or use a key with that scope"
	}
	return e
}

// LimitedTo returns the error of a principal with a list of models whose request chooses an adapter
// by a member. The list cannot name such an adapter.
func LimitedTo(member string, who *trust.Principal) *apierror.Error {
	return &apierror.Error{Status: 403, Code: "adapter_denied", Param: member,
		Message: "`" + member + "` chooses an adapter, and this " + shown(who) + " is limited to models by their " +
			"names; leave it out, and name the adapter as `model`"}
}

// Lacks returns the error of a principal without a scope.
func Lacks(scope trust.Scopes, who *trust.Principal) *apierror.Error {
	name := strings.Join(scope.Names(), ", ")
	return forbidden("", "this "+shown(who)+" lacks the scope "+name+"; use a key with it (cgn-ctl key create "+
		"--scope)")
}

// shown says by what a principal was named.
func shown(who *trust.Principal) string {
	switch {
	case strings.HasPrefix(who.ID, "oidc:"):
		return "token"
	case strings.HasPrefix(who.ID, "cert:"):
		return "certificate"
	}
	return "API key"
}
