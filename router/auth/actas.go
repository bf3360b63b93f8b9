package auth

import (
	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/trust"
)

// Headers by which a gateway with the scope act_as says for whom it asks.
const (
	headerTenant = "X-Cgn-Tenant"
	headerUser   = "X-Cgn-User"
)

// maxUser bounds the name of a user, in bytes.
const maxUser = 128

// actingFor returns the principal for whom a gateway asks, which has the gateway's rights. Without
// headers it is the gateway's own. A header that is there twice is refused: one of the two may be
// the client's, which the gateway has passed on beside its own.
func actingFor(gateway *trust.Principal, h *fasthttp.RequestHeader) (*trust.Principal, *apierror.Error) {
	var tenant, user []byte
	for name, value := range h.All() {
		var at *[]byte
		switch string(name) {
		case headerTenant:
			at = &tenant
		case headerUser:
			at = &user
		default:
			continue
		}
		if *at != nil {
			return nil, misnamed(gateway, string(name), "is there twice; let the gateway replace the client's header")
		}
		if *at = value; len(value) == 0 {
			return nil, misnamed(gateway, string(name), "is empty; leave it out, or give a value")
		}
	}
	if tenant == nil && user == nil {
		return gateway, nil
	}
	who := *gateway
	if tenant != nil {
		who.Home, who.Tenant = gateway.Tenant, string(tenant)
		if err := trust.CheckTenant(who.Tenant); err != nil {
			return nil, misnamed(gateway, headerTenant, err.Error())
		}
	}
	if user != nil {
		who.User = string(user)
		if !plain(user) {
			return nil, misnamed(gateway, headerUser, "must be 1 to 128 printable ASCII characters without spaces and commas")
		}
	}
	return &who, nil
}

// plain says whether a user's name is printable ASCII of at most maxUser bytes. A comma would join
// two headers.
func plain(name []byte) bool {
	for _, c := range name {
		if c <= ' ' || c > '~' || c == ',' {
			return false
		}
	}
	return len(name) <= maxUser
}

// CodeIdentity is the code of the error for a gateway that names nobody.
const CodeIdentity = "invalid_identity"

// misnamed returns the error of a gateway's header that names nobody.
func misnamed(gateway *trust.Principal, header, why string) *apierror.Error {
	return &apierror.Error{
		Status: 400, Code: CodeIdentity, Param: header, Message: header + ": " + why, Key: gateway.ID,
	}
}
