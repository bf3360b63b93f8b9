package auth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/cognitora/dataplane/router/oidc"
	"github.com/cognitora/dataplane/router/trust"
)

// issuing returns a door for the tokens of a provider, and a function that signs tokens.
func issuing(t testing.TB) (*Door, func(claims map[string]any) string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var issuer string
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/keys" {
			json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k"}}})
			return
		}
		fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":"%s/keys"}`, issuer, issuer)
	}))
	t.Cleanup(site.Close)
	issuer = site.URL
	tokens := oidc.New(oidc.Options{
		Issuer: issuer, Audience: []string{"router"}, Algorithms: []string{"ES256"}, GroupsClaim: "groups",
		Groups:    []oidc.Group{{Name: "ml", Grant: trust.Grant{Tenant: "acme", Scopes: trust.Inference}}},
		Transport: site.Client().Transport, Log: slog.New(slog.DiscardHandler),
	})
	var run sync.WaitGroup
	run.Go(func() { tokens.Run(t.Context()) })
	t.Cleanup(run.Wait)
	signing := jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}
	signer, err := jose.NewSigner(signing, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &Door{Tokens: tokens}, func(claims map[string]any) string {
		all := map[string]any{
			"iss": issuer, "aud": "router", "sub": "anna", "exp": time.Now().Unix() + 600, "groups": []string{"ml"},
		}
		for name, v := range claims {
			all[name] = v
		}
		doc, err := json.Marshal(all)
		if err != nil {
			t.Fatal(err)
		}
		signed, err := signer.Sign(doc)
		if err != nil {
			t.Fatal(err)
		}
		token, err := signed.CompactSerialize()
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
}

func TestTokens(t *testing.T) {
	d, sign := issuing(t)
	withKeys, key := accepting(t)
	both := &Door{Keys: withKeys.Keys, Tokens: d.Tokens}
	token := sign(nil)
	for what, c := range map[string]struct {
		door *Door
		line string
		id   string // of whom is let in; or
		says string // a part of the error
	}{
		"a token":                      {d, "Authorization: Bearer " + token, "oidc:anna", ""},
		"a token in Anthropic's way":   {d, "x-api-key: " + token, "oidc:anna", ""},
		"a token beside keys":          {both, "Authorization: Bearer " + token, "oidc:anna", ""},
		"a key beside tokens":          {both, "Authorization: Bearer " + key, key[4:12], ""},
		"a bad key beside tokens":      {both, "Authorization: Bearer " + key + "0", "", "keys begin with cgn_"},
		"a key where none counts":      {d, "Authorization: Bearer " + key, "", "takes no API keys"},
		"a token where none counts":    {withKeys, "Authorization: Bearer " + token, "", "no API key of this router"},
		"nothing":                      {d, "Accept: a/b", "", "no token or API key was sent"},
		"an old token":                 {d, "Authorization: Bearer " + sign(map[string]any{"exp": 1}), "", "has expired"},
		"for another":                  {d, "Authorization: Bearer " + sign(map[string]any{"aud": "a"}), "", "another audience"},
		"without rights":               {d, "Authorization: Bearer " + sign(map[string]any{"groups": "a"}), "", "none of its groups"},
		"another's key":                {d, "Authorization: Bearer sk-0123", "", "neither an API key nor a signed token"},
		"a signature that is cut":      {d, "Authorization: Bearer " + token[:len(token)-4], "", "signature is wrong"},
		"a token of more than 16 KiB ": {d, "Authorization: Bearer " + strings.Repeat("a", 17<<10), "", "more than 16 KiB"},
	} {
		who, err := c.door.Identify(headOf(c.line), &Peer{Near: true})
		if c.id != "" && (err != nil || who.ID != c.id) ||
			c.says != "" && (err == nil || !strings.Contains(err.Message, c.says)) {
			t.Errorf("%s: %+v, %v", what, who, err)
		}
		if err != nil && strings.Contains(err.Message, token[len(token)-40:]) {
			t.Errorf("%s: the error has the token", what)
		}
	}
	if ok, detail := d.Ready(); !ok || detail != "" {
		t.Errorf("%v, %s", ok, detail)
	}
}

// TestEveryRefusalHasAnError checks that each reason has an error with a status and a fix.
func TestEveryRefusalHasAnError(t *testing.T) {
	for why := oidc.None + 1; why <= oidc.Busy; why++ {
		if e := tokenErrors[why]; e == nil || e.Status != 401 && e.Status != 403 && e.RetryAfterSeconds == 0 {
			t.Errorf("%s: %+v", why, e)
		}
	}
}

// TestUnreachedProvider: without keys the router is not ready, and beside keys it is, in part.
func TestUnreachedProvider(t *testing.T) {
	tokens := oidc.New(oidc.Options{Issuer: "https://id.test"})
	withKeys, _ := accepting(t)
	for d, want := range map[*Door]bool{
		{Tokens: tokens}: false, {Tokens: tokens, Keys: withKeys.Keys}: true,
		{Tokens: tokens, Certificates: map[string]*trust.Principal{"a": near}}: true,
	} {
		if ok, detail := d.Ready(); ok != want || !strings.Contains(detail, "https://id.test has not been reached") {
			t.Errorf("%v, %s", ok, detail)
		}
	}
}

// TestCertificates checks whom a client certificate names, and that a key decides before it.
func TestCertificates(t *testing.T) {
	uri := func(s string) []*url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return []*url.URL{u}
	}
	later := time.Now().Add(time.Hour)
	named := func(name string) *trust.Principal {
		return &trust.Principal{ID: "cert:" + name, Scopes: trust.Inference}
	}
	withKeys, key := accepting(t)
	d := &Door{Keys: withKeys.Keys, Certificates: map[string]*trust.Principal{
		"spiffe://acme/ci": named("spiffe://acme/ci"), "ci.acme.test": named("ci.acme.test"), "ci": named("ci"),
	}}
	own := &x509.Certificate{URIs: uri("spiffe://acme/ci"), NotAfter: later}
	for what, c := range map[string]struct {
		cert *x509.Certificate
		line string
		want string // id, or a part of the error
	}{
		"a URI":         {own, "", "cert:spiffe://acme/ci"},
		"a DNS name":    {&x509.Certificate{DNSNames: []string{"a", "ci.acme.test"}, NotAfter: later}, "", "cert:ci.acme.test"},
		"a common name": {&x509.Certificate{Subject: pkix.Name{CommonName: "ci"}, NotAfter: later}, "", "cert:ci"},
		"a common name too": {&x509.Certificate{Subject: pkix.Name{CommonName: "ci"}, DNSNames: []string{"a"},
			NotAfter: later}, "", "names nobody"},
		"another":             {&x509.Certificate{URIs: uri("spiffe://acme/ci/2"), NotAfter: later}, "", "names nobody"},
		"expired since":       {&x509.Certificate{URIs: uri("spiffe://acme/ci"), NotAfter: time.Now()}, "", "has expired"},
		"with a key":          {own, "x-api-key: " + key, key[4:12]},
		"with a bad key":      {own, "x-api-key: a", "no API key of this router"},
		"none, without a key": {nil, "", "no API key was sent"},
	} {
		state := &tls.ConnectionState{}
		if c.cert != nil {
			state.VerifiedChains = [][]*x509.Certificate{{c.cert}}
		}
		peer := d.PeerOf(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}, state)
		who, err := d.Identify(headOf("Accept: a/b", c.line), peer)
		if who != nil && who.ID != c.want || who == nil && !strings.Contains(err.Message, c.want) {
			t.Errorf("%s: %+v, %v", what, who, err)
		}
	}
}

// TestTokenAllocatesNothing holds a request with a token that is remembered to no allocation.
func TestTokenAllocatesNothing(t *testing.T) {
	d, sign := issuing(t)
	h, peer := headOf("Accept: a/b", "Authorization: Bearer "+sign(nil)), &Peer{}
	if n := testing.AllocsPerRun(100, func() {
		if who, _ := d.Identify(h, peer); who == nil {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkIdentifyToken is BenchmarkIdentify with a token of about 1 KB that is remembered.
func BenchmarkIdentifyToken(b *testing.B) {
	d, sign := issuing(b)
	token := sign(map[string]any{"more": strings.Repeat("x", 520)})
	h := headOf("Accept: application/json", "Content-Type: application/json", "User-Agent: OpenAI/Python 2.0",
		"X-Stainless-Lang: python", "X-Stainless-Os: Linux", "X-Stainless-Arch: x64", "Authorization: Bearer "+token)
	peer := &Peer{}
	b.SetBytes(int64(len(token)))
	b.ReportAllocs()
	for b.Loop() {
		if who, err := d.Identify(h, peer); err != nil || !who.Uses("m-1") {
			b.Fatal(err)
		}
	}
}
