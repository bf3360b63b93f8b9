package auth

import (
	"strings"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/trust"
)

// Code is the code of all refusals of an identity.
const Code = "invalid_api_key"

// unauthorized returns the error of a request whose sender is not known. Its type is OpenAI's.
// reason is for the audit log.
func unauthorized(reason, message string) *apierror.Error {
	return &apierror.Error{Status: 401, Type: "invalid_request_error", Code: Code, Message: message, Reason: reason}
}

var (
	errNoKey   = unauthorized("no_key", "no API key was sent; send it as Authorization: Bearer KEY, or as x-api-key: KEY")
	errScheme  = unauthorized("bad_scheme", "the Authorization header is not of the form Bearer KEY")
	errSeveral = unauthorized("several_keys", "the request has several API keys that differ; send one, as Authorization: Bearer KEY "+
		"or as x-api-key: KEY")
	errNotAKey = unauthorized("not_a_key", "what was sent is no API key of this router; keys begin with cgn_ and have 51 characters")
	errUnread  = &apierror.Error{
		Status: 503, Code: "keys_not_known_yet", RetryAfterSeconds: 1,
		Message: "the API keys are not known yet: etcd has not been reached",
	}
)

// refused returns the error for a key that does not count. The id is named only to those who have
// the key.
func refused(id []byte, why keys.Refusal) *apierror.Error {
	e := unauthorized("unknown_key", "this API key is not known here")
	switch why {
	case keys.Expired:
		e = unauthorized("expired_key", "the API key cgn_"+string(id)+"_… has expired; ask for a new one")
	case keys.Revoked:
		e = unauthorized("revoked_key", "the API key cgn_"+string(id)+"_… has been revoked; ask for a new one")
	}
	e.Key = string(id)
	return e
}

// Denied returns the error of a client that may not steer. what is the field or header that steers.
func (d *Door) Denied(what string) *apierror.Error {
	e := &apierror.Error{
		Status: 403, Code: "steering_denied", Param: what,
		Message: "`" + what + "` steers the router, which a client of another host may do only with a certificate " +
			"that the router verifies; leave it out, show a certificate (tls.client_ca of the router), or ask from " +
			"the router's own host",
	}
	if d != nil {
		e.Message = "`" + what + "` steers the router, for which this API key lacks the scope route.pin; leave it out, " +
			"or use a key with that scope"
	}
	return e
}

// LimitedTo returns the error of a principal with a list of models whose request chooses an adapter
// by a member. The list cannot name such an adapter.
func LimitedTo(member string) *apierror.Error {
	return &apierror.Error{Status: 403, Code: "adapter_denied", Param: member,
		Message: "`" + member + "` chooses an adapter, and this API key is limited to models by their names; " +
			"leave it out, and name the adapter as `model`"}
}

// Lacks returns the error of a principal without a scope.
func Lacks(scope trust.Scopes) *apierror.Error {
	name := strings.Join(scope.Names(), ", ")
	return &apierror.Error{Status: 403, Code: "insufficient_scope",
		Message: "this API key lacks the scope " + name + "; use a key with it (cgn-ctl key create --scope)"}
}
