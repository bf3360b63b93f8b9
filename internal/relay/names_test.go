package relay

import (
	"os"
	"slices"
	"strings"
	"testing"
)

var requestLists = [][]string{HopByHopHeaders, IdentityHeaders, CredentialHeaders, RoutingHeaders, replacedHeaders}

func TestNamesAreFound(t *testing.T) {
	for _, list := range requestLists {
		for _, name := range list {
			text, begins := strings.CutSuffix(name, "*")
			for _, as := range []string{text, strings.ToUpper(text), strings.ReplaceAll(text, "-", "_")} {
				if !droppedOfRequests.has([]byte(as)) || begins != droppedOfRequests.has([]byte(as+"x")) {
					t.Errorf("%s, of %s", as, name)
				}
			}
			if len(text) < 2 || strings.HasPrefix(text, "x-") && len(text) < 3 || strings.ContainsAny(text, "*_") {
				t.Errorf("%s cannot be found by its first bytes", name)
			}
		}
	}
	for _, name := range HopByHopHeaders {
		if !droppedOfResponses.has([]byte(name)) {
			t.Error(name)
		}
	}
}

// TestIdentities: header names with which gateways and proxies identify users are not forwarded.
// Names that trace and describe a request are forwarded.
func TestIdentities(t *testing.T) {
	dropped := `X-Forwarded-User x-auth-request-email X-CGN-Tenant X-User-ID x-forwarded-client-cert
		X-Consumer-Username X-Consumer-Custom-ID X-Credential-Identifier
		X-Authenticated-Userid X-Authenticated-Scope X-Userinfo X-Auth-User X-Auth-Token
		X-Authentik-Username X-Authorization True-Client-IP CF-Connecting-IP CF-Connecting-IPv6
		CF-Access-Jwt-Assertion Cf-Access-Authenticated-User-Email CF-IPCountry X-Client-IP
		X-Client-Cert X-Client-Cert-Dn X-Real-IP Remote-User Remote-Groups REMOTE_USER
		X_User_Id X-Remote-Extra-Scopes Impersonate-User X-Webauth-Role OIDC_CLAIM_email
		X-Scope-OrgID Tailscale-User-Profile-Pic X-Amzn-Oidc-Data
		X-Goog-IAP-JWT-Assertion X-MS-Token-AAD-Access-Token Forwarded Client-Cert-Chain
		X-SSL-Client-Verify X-Jwt-Payload X-Vouch-User X-Openwebui-User-Email X-Id-Token`
	for name := range strings.FieldsSeq(dropped) {
		if !droppedOfRequests.has([]byte(name)) {
			t.Errorf("%s travels", name)
		}
	}
	for name := range strings.FieldsSeq(ordinary) {
		if droppedOfRequests.has([]byte(name)) {
			t.Errorf("%s does not travel", name)
		}
	}
	for _, name := range []string{"", "x", "x-", "_", "x_", "te ", "x-user-", "cf-", "\xff\xfe"} {
		if droppedOfRequests.has([]byte(name)) {
			t.Errorf("%q is found", name)
		}
	}
}

const ordinary = `Traceparent Tracestate Baggage B3 X-B3-Traceid X-B3-Sampled X-Request-Id
	X-Correlation-Id X-Client-Request-Id X-Client-Trace-Id X-Trace-Id
	X-Amzn-Trace-Id X-Cloud-Trace-Context Uber-Trace-Id X-Datadog-Trace-Id X-Ot-Span-Context
	Sentry-Trace Cf-Ray X-Envoy-Attempt-Count X-Session-Id Session-Id
	Accept Accept-Language Content-Type User-Agent X-User-Agent Openai-Organization Openai-Project
	Openai-Beta Anthropic-Version Anthropic-Beta
	X-Stainless-Lang X-Stainless-Package-Version X-Stainless-Retry-Count X-Title Http-Referer
	Referer Origin Idempotency-Key Priority Cache-Control
	X-Model X-Vllm-Priority`

func TestNamesAreFoundWithoutAllocation(t *testing.T) {
	names := strings.Fields(ordinary)
	b := make([][]byte, len(names))
	for i, name := range names {
		b[i] = []byte(name)
	}
	n := testing.AllocsPerRun(100, func() {
		for _, name := range b {
			droppedOfRequests.has(name)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
	for i, slot := range droppedOfRequests {
		if len(slot) > 20 {
			t.Errorf("slot %d has %d names; a header is compared with each", i, len(slot))
		}
	}
}

// TestHeadersAreDocumented: docs/headers.md names exactly the headers that are not forwarded.
func TestHeadersAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/headers.md")
	if err != nil {
		t.Fatal(err)
	}
	var named []string
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(line, "|"); len(cells) == 4 {
			for i, part := range strings.Split(cells[2], "`") {
				if i%2 == 1 {
					named = append(named, part)
				}
			}
		}
	}
	all := slices.Concat(requestLists...)
	slices.Sort(all)
	slices.Sort(named)
	if !slices.Equal(all, named) {
		t.Errorf("docs/headers.md lists\n%q, dropped are\n%q", named, all)
	}
}

// BenchmarkDropped looks up the header names that an SDK and tracing send.
func BenchmarkDropped(b *testing.B) {
	var names [][]byte
	for _, name := range strings.Fields(`Host Accept Accept-Encoding Content-Type Content-Length User-Agent
		Authorization X-Stainless-Lang X-Stainless-Os Traceparent X-Request-Id X-Many`) {
		names = append(names, []byte(name))
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, name := range names {
			droppedOfRequests.has(name)
		}
	}
}
