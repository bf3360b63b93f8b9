package oidc

// Refusal says why a token does not count.
type Refusal uint8

// The refusals. Pending and Busy are no verdicts: the same token may count later.
const (
	None       Refusal = iota
	TooLong            // more than 16 KiB
	Malformed          // no signed JWT in compact form, or one that says a thing twice or in another form
	Algorithm          // not one of the algorithms of the settings
	Kind               // not an access token
	Issuer             // of another issuer
	Audience           // for somebody else
	Client             // of a client that the settings do not name
	Expired            // too old
	NotYet             // of the future
	UnknownKey         // signed with a key that the provider does not list
	Signature          // not signed by the provider
	NoGroup            // valid, but none of its groups is mapped
	NoTenant           // valid, but without a tenant that can be used
	Pending            // the provider's keys are not known, or not new enough
	Busy               // too many tokens are being checked

	refusals // their number
)

var refusalNames = [refusals]string{
	"valid", "too_long", "malformed", "algorithm", "kind", "issuer", "audience", "client", "expired", "not_yet",
	"unknown_key", "signature", "no_group", "no_tenant", "pending", "busy",
}

// String returns the refusal as metrics name it.
func (r Refusal) String() string { return refusalNames[r] }

// lasts says whether the refusal would be the same a moment later.
func (r Refusal) lasts() bool { return r != NotYet && r != Pending && r != Busy && r != TooLong }
