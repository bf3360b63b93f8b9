package relay

// RankHeader names the data-parallel rank of an engine that computes the request. Only a router
// chooses the rank; see AppendRank.
const RankHeader = "x-data-parallel-rank"

// Header names that are not forwarded, in lower case. A name that ends in * is a prefix.
// docs/headers.md lists the names for people.
var (
	// HopByHopHeaders belong to one connection. Fields that a Connection header lists belong to one
	// connection too.
	HopByHopHeaders = []string{
		"connection", "http2-settings", "keep-alive", "proxy-authenticate", "proxy-authorization",
		"proxy-connection", "te", "trailer",
		"transfer-encoding", "upgrade",
	}
	// IdentityHeaders are the headers in which common proxies tell a backend the user's identity
	// and address, and our own x-cgn-*. From a client, identity headers are unchecked claims.
	IdentityHeaders = []string{
		// headers of any proxy
		"client-cert*", "client-ip", "forwarded", "from", "impersonate-*", "remote-*",
		"ssl-client-*", "true-client-ip", "x-account-id", "x-auth*", "x-cgn-*",
		"x-client-cert*", "x-client-dn", "x-client-id", "x-client-ip", "x-client-user",
		"x-client-verify", "x-cluster-client-ip", "x-email",
		"x-end-user*", "x-forwarded-*", "x-groups", "x-jwt-*", "x-org-id", "x-organization-id",
		"x-original-forwarded-for", "x-originating-ip",
		"x-real-*", "x-remote-*", "x-roles", "x-scope-orgid", "x-scopes", "x-spiffe-id",
		"x-ssl-client*", "x-subject", "x-tenant", "x-tenant-id",
		"x-user", "x-user-email", "x-user-groups", "x-user-id", "x-user-info", "x-user-name",
		"x-user-role", "x-user-roles", "x-useremail",
		"x-userid", "x-userinfo", "x-username", "x-webauth-*",
		// headers of particular proxies
		"cf-access-*", "cf-client-*", "cf-connecting-*", "cf-ip*", "cf-pseudo-ipv4",
		"do-connecting-ip", "fastly-client-ip", "fly-client-ip", "oidc-*",
		"tailscale-*", "x-amzn-mtls-*", "x-amzn-oidc-*", "x-anonymous-consumer", "x-apigateway-*",
		"x-appengine-*", "x-arr-clientcert",
		"x-azure-clientip", "x-azure-socketip", "x-consumer-*", "x-credential-*", "x-endpoint-*",
		"x-envoy-external-address",
		"x-goog-authenticated-*", "x-goog-iap-*", "x-ms-client-principal*", "x-ms-token-*",
		"x-openwebui-user-*", "x-pomerium-*", "x-vouch-*",
	}
	// CredentialHeaders carry the client's own keys. The upstream gets the Target's key, or
	// Request.ForwardAuthorization.
	CredentialHeaders = []string{
		"api-key", "authorization", "cookie", "x-access-token", "x-api-key", "x-goog-api-key",
		"x-id-token", "x-refresh-token", "x-serverless-authorization",
	}
	// RoutingHeaders tell a router where a request should go. The router obeys or ignores them.
	RoutingHeaders = []string{
		RankHeader, "x-dynamo-dp-rank", "x-dynamo-prefill-dp-rank", "x-dynamo-prefill-instance-id",
		"x-dynamo-request-priority", "x-dynamo-request-strict-priority", "x-dynamo-worker-instance-id",
	}

	// replacedHeaders are made anew by every hop. Accept-Encoding is among them because the relay
	// could not parse a compressed body.
	replacedHeaders = []string{"accept-encoding", "content-length", "expect", "host"}

	// ownResponseHeaders are response headers that this server sets itself, whatever the upstream
	// has sent. x-cgn-* headers are for one hop only.
	ownResponseHeaders = []string{"content-length", "date", "server", "x-cgn-*"}

	droppedOfRequests = newNameSet(HopByHopHeaders, IdentityHeaders, CredentialHeaders, RoutingHeaders,
		replacedHeaders)
	droppedOfResponses = newNameSet(HopByHopHeaders, ownResponseHeaders)
)

// nameSet finds names, ignoring case. nameSet treats - and _ as equal, because some servers do.
// slotOf selects a name's slot, so that a name is compared with few others.
type nameSet [64][]name

type name struct {
	text   string
	begins bool
}

func newNameSet(lists ...[]string) *nameSet {
	s := &nameSet{}
	for _, list := range lists {
		for _, text := range list {
			n := name{text: text}
			if last := len(text) - 1; text[last] == '*' {
				n = name{text[:last], true}
			}
			at := slotOf([]byte(n.text))
			s[at] = append(s[at], n)
		}
	}
	return s
}

// slotOf depends only on the first three bytes of a name.
func slotOf(b []byte) int {
	if len(b) > 2 && b[0]|0x20 == 'x' && folded(b[1]) == '-' {
		return 32 + int(b[2]&31)
	}
	if len(b) == 0 {
		return 0
	}
	return int(b[0] & 31)
}

// has tells whether b is in s.
func (s *nameSet) has(b []byte) bool {
next:
	for _, n := range s[slotOf(b)] {
		if len(b) != len(n.text) && (!n.begins || len(b) < len(n.text)) {
			continue
		}
		for i := range len(n.text) {
			if folded(b[i]) != n.text[i] {
				continue next
			}
		}
		return true
	}
	return false
}

func folded(c byte) byte {
	switch {
	case c >= 'A' && c <= 'Z':
		return c | 0x20
	case c == '_':
		return '-'
	}
	return c
}
