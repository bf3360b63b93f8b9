package router_test

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/router"
)

// idp is an OpenID Connect provider with one key.
type idp struct {
	*httptest.Server
	t    *testing.T
	key  *rsa.PrivateKey
	down atomic.Bool
}

func newIDP(t *testing.T) *idp {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p := &idp{t: t, key: key}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *idp) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case p.down.Load():
		w.WriteHeader(http.StatusServiceUnavailable)
	case r.URL.Path == "/keys":
		json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: p.key.Public(), KeyID: "k"}}})
	default:
		fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":"%s/keys"}`, p.URL, p.URL)
	}
}

// sign returns a token of a subject with groups.
func (p *idp) sign(subject string, ends time.Time, groups ...string) string {
	p.t.Helper()
	key := jose.SigningKey{Algorithm: jose.RS256, Key: jose.JSONWebKey{Key: p.key, KeyID: "k"}}
	signer, err := jose.NewSigner(key, new(jose.SignerOptions).WithType("at+jwt"))
	if err != nil {
		p.t.Fatal(err)
	}
	doc, err := json.Marshal(map[string]any{
		"iss": p.URL, "aud": "router", "sub": subject, "exp": ends.Unix(), "groups": groups,
	})
	if err != nil {
		p.t.Fatal(err)
	}
	signed, err := signer.Sign(doc)
	if err != nil {
		p.t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		p.t.Fatal(err)
	}
	return token
}

// trusted is a tweak for a router that takes the tokens of p.
func (p *idp) trusted(c *router.Config) {
	c.Auth.OIDC.Issuer, c.Auth.OIDC.Audience = p.URL, []string{"router"}
	grant := func(tenant string, scopes ...string) router.GrantConfig {
		return router.GrantConfig{Tenant: tenant, Scopes: scopes}
	}
	c.Auth.OIDC.Groups = []router.OIDCGroupConfig{
		{Name: "ml", GrantConfig: grant("acme", "inference", "models")},
		{Name: "lists", GrantConfig: grant("", "models")},
		{Name: "ops", GrantConfig: grant("", "inference", "route.pin")},
	}
	c.Auth.OIDC.Groups[0].Models = []string{"sim"}
}

// TestTokens checks who may ask with a token, beside API keys, and that no log has a token.
func TestTokens(t *testing.T) {
	t.Parallel()
	p, k, log := newIDP(t), newKeyring(t), filepath.Join(t.TempDir(), "access.log")
	key, _ := k.add()
	s := serve(t, simulate(t, 2), p.trusted, k.locked, func(c *router.Config) { c.Log.Access = log })
	later, body := time.Now().Add(time.Hour), chatBody("hello", plain)
	anna, lists, ops := p.sign("anna", later, "ml"), p.sign("lea", later, "lists"), p.sign("otto", later, "ops")
	mustAll(t, "with a token", []*reply{
		s.chat(body, bearer(anna)...), s.chat(chatBody("hello", streaming), "x-api-key", anna),
		s.chat(body, bearer(key)...),
		s.ask("GET", "/v1/models", "", bearer(lists)...), s.chat(body, append(bearer(ops), "x-cgn-node", "sim-1")...),
	})
	old := p.sign("anna", time.Now().Add(-time.Hour), "ml")
	for what, c := range map[string]struct {
		r      *reply
		status int
		has    string
	}{
		"no token":               {s.chat(body), 401, "no token or API key was sent"},
		"an old token":           {s.chat(body, bearer(old)...), 401, "has expired"},
		"Anthropic's envelope":   {s.post("/v1/messages", "{}", bearer("a.b.c")...), 401, `"type":"authentication_error"`},
		"no mapped group":        {s.chat(body, bearer(p.sign("gast", later, "guests"))...), 403, "none of its groups"},
		"no scope for inference": {s.chat(body, bearer(lists)...), 403, "this token lacks the scope inference"},
		"no scope to steer":      {s.chat(body, append(bearer(anna), "x-cgn-node", "sim-1")...), 403, "route.pin"},
		"a model of others":      {s.chat(asking("large", "hello"), bearer(anna)...), 404, "model_not_found"},
		"an unknown key":         {s.chat(body, bearer(strings.Replace(key, "_", "_0", 1))...), 401, "invalid_api_key"},
	} {
		if c.r.status != c.status || !bytes.Contains(c.r.body, []byte(c.has)) {
			t.Errorf("%s: %v", what, c.r)
		}
	}
	page := s.metrics()
	for result, want := range map[string]float64{
		"valid": 3, "remembered": 4, "expired": 1, "malformed": 1, "no_group": 1, "signature": 0,
	} {
		if got := page.sum("cgn_router_oidc_tokens_total", `result="`+result+`"`); got != want {
			t.Errorf("%v tokens were %s, want %v", got, result, want)
		}
	}
	if page.sum("cgn_router_oidc_readings_total", `result="done"`) != 1 || page.sum("cgn_router_oidc_keys") != 1 ||
		page.sum("cgn_router_oidc_keys_age_seconds") <= 0 {
		t.Error("the metrics do not show the reading of the keys")
	}
	s.drain()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	lines, err := os.ReadFile(log)
	if err != nil || !bytes.Contains(lines, []byte(`"key":"oidc:anna","tenant":"acme"`)) {
		t.Errorf("the access log does not say who asked: %v", err)
	}
	for _, token := range []string{anna, lists, ops} {
		part := token[len(token)-60:]
		if bytes.Contains(lines, []byte(part)) || s.log.count(part) > 0 {
			t.Error("a log has a token")
		}
	}
}

// TestRefusedTokenUploads checks that no body is read for a token without rights.
func TestRefusedTokenUploads(t *testing.T) {
	t.Parallel()
	p := newIDP(t)
	s := serve(t, simulate(t, 1), p.trusted)
	guest := p.sign("gast", time.Now().Add(time.Hour), "guests")
	for token, status := range map[string]int{guest: 403, guest[:len(guest)-9]: 401} {
		conn := s.dial()
		fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n"+
			"Content-Length: %d\r\n\r\n", token, 50<<20)
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || resp.StatusCode != status {
			t.Errorf("%v, %v", resp, err)
		}
		if held := s.metrics().sum("cgn_router_body_bytes"); held != 0 {
			t.Errorf("%v bytes are held", held)
		}
		conn.Close()
	}
	again := s.dial() // a short body is dropped, and the connection goes on
	read := bufio.NewReader(again)
	for range 2 {
		fmt.Fprintf(again, "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\n"+
			"Content-Length: 2\r\n\r\n{}", guest)
		resp, err := http.ReadResponse(read, nil)
		if err != nil || resp.StatusCode != 403 || resp.Close {
			t.Fatalf("%v, %v", resp, err)
		}
		io.Copy(io.Discard, resp.Body)
	}
}

// TestProviderDown checks that a router starts without its provider, says so, and takes tokens once
// the provider is back.
func TestProviderDown(t *testing.T) {
	t.Parallel()
	p := newIDP(t)
	p.down.Store(true)
	s := serve(t, simulate(t, 1), p.trusted)
	k := newKeyring(t)
	key, _ := k.add()
	both := serve(t, s.engines, p.trusted, k.locked)
	token, body := p.sign("anna", time.Now().Add(time.Hour), "ml"), chatBody("hello", plain)
	if r := s.chat(body, bearer(token)...); r.status != 503 || r.code() != "keys_not_known_yet" ||
		r.header.Get("Retry-After") != "10" {
		t.Errorf("a token: %v", r)
	}
	mustAll(t, "with a key", []*reply{both.chat(body, bearer(key)...)})
	for which, status := range map[*site]int{s: 503, both: 200} {
		if got, page := which.get(which.admin + "/readyz"); got != status ||
			!bytes.Contains(page, []byte(p.URL+" has not been reached yet")) {
			t.Errorf("/readyz: %d, %s", got, page)
		}
	}
	if _, page := s.get(s.admin + "/debug/fleet"); !bytes.Contains(page, []byte("OIDC provider")) {
		t.Error("/debug/fleet does not tell the problem")
	}
	p.down.Store(false)
	eventually(t, "the provider is reached", func() bool { return s.chat(body, bearer(token)...).status == 200 })
	if got, page := s.get(s.admin + "/readyz"); got != 200 || string(page) != "ready\n" {
		t.Errorf("/readyz: %d, %s", got, page)
	}
}

// TestClientCertificates checks the rights of client certificates, and that keys count beside them.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	own, roots, k := pki.FilesIn(dir, pki.Router), x509.NewCertPool(), newKeyring(t)
	page, err := os.ReadFile(own.CA)
	if err != nil || !roots.AppendCertsFromPEM(page) {
		t.Fatal(err)
	}
	key, _ := k.add()
	s := serve(t, simulate(t, 1), k.locked, func(c *router.Config) {
		c.TLS = router.TLSConfig{Cert: own.Cert, Key: own.Key, ClientCA: own.CA, Optional: true}
		c.Auth.Certificates = []router.CertificateConfig{{Name: "spiffe://cognitora/role/agent",
			GrantConfig: router.GrantConfig{Tenant: "ci", Scopes: []string{"inference"}}}}
	})
	s.url = "https" + strings.TrimPrefix(s.url, "http")
	plainly := s.client
	defer func() { s.client = plainly }()
	for what, c := range map[string]struct {
		role   pki.Role
		path   string
		header []string
		status int
		has    string
	}{
		"a certificate":            {pki.Agent, "/v1/chat/completions", nil, 200, ""},
		"one that is not mapped":   {pki.Ctl, "/v1/chat/completions", nil, 401, "names nobody"},
		"a right that it lacks":    {pki.Agent, "/v1/models", nil, 403, "this certificate lacks the scope models"},
		"a key beside it":          {pki.Agent, "/v1/models", bearer(key), 200, ""},
		"a bad key beside it":      {pki.Agent, "/v1/chat/completions", bearer("a"), 401, "no API key of this router"},
		"a key, no certificate":    {"", "/v1/chat/completions", bearer(key), 200, ""},
		"neither":                  {"", "/v1/chat/completions", nil, 401, "no API key was sent"},
		"no key, not mapped, list": {pki.Ctl, "/v1/models", nil, 401, "invalid_api_key"},
	} {
		conf := &tls.Config{RootCAs: roots}
		if c.role != "" {
			f := pki.FilesIn(dir, c.role)
			pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
			if err != nil {
				t.Fatal(err)
			}
			conf.Certificates = []tls.Certificate{pair}
		}
		s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: conf}, Timeout: soon}
		method, body := "POST", chatBody("hello", plain)
		if c.path == "/v1/models" {
			method, body = "GET", ""
		}
		r := s.ask(method, c.path, body, c.header...)
		if r.status != c.status || !bytes.Contains(r.body, []byte(c.has)) {
			t.Errorf("%s: %v", what, r)
		}
		s.client.CloseIdleConnections()
	}
	conf := &tls.Config{RootCAs: roots, GetClientCertificate: ofAnotherCA(t)}
	s.client = &http.Client{Transport: &http.Transport{TLSClientConfig: conf}, Timeout: soon}
	if r := s.chat(chatBody("hello", plain), bearer(key)...); r.err == nil {
		t.Errorf("with a certificate of another CA: %v", r)
	}
}

// ofAnotherCA returns a certificate of another CA, also to a server that asks for one of its own.
func ofAnotherCA(t *testing.T) func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	t.Helper()
	dir := t.TempDir()
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	f := pki.FilesIn(dir, pki.Agent)
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		t.Fatal(err)
	}
	return func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
}

// TestProvidersCA checks that a change of auth.oidc.ca counts without a restart, and that a file
// without a certificate leaves the CAs read last in use.
func TestProvidersCA(t *testing.T) {
	t.Parallel()
	provider := httptest.NewUnstartedServer(http.NotFoundHandler())
	provider.Config.ErrorLog = log.New(io.Discard, "", 0)
	provider.StartTLS()
	t.Cleanup(provider.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if _, err := (&router.OIDCConfig{CA: ca}).Connections(); err == nil ||
		!strings.Contains(err.Error(), "auth.oidc.ca") {
		t.Errorf("without the file: %v", err)
	}
	other := t.TempDir()
	if err := pki.Bootstrap(other, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(other, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, ca, string(page))
	transport, err := (&router.OIDCConfig{CA: ca}).Connections()
	if err != nil {
		t.Fatal(err)
	}
	reached := func() bool {
		resp, err := (&http.Client{Transport: transport}).Get(provider.URL)
		if err == nil {
			resp.Body.Close()
		}
		return err == nil
	}
	if reached() {
		t.Error("the provider is reached with another CA")
	}
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: provider.Certificate().Raw})
	write(t, ca, string(own))
	eventually(t, "the provider is reached with its CA", reached)
	write(t, ca, "none")
	time.Sleep(pki.CheckEvery + 100*time.Millisecond) // the next connection looks at the file
	if !reached() {
		t.Error("the CA read last does not count any more")
	}
}

// TestAuthSettings checks that settings which would let in others than meant are refused.
func TestAuthSettings(t *testing.T) {
	good := func(c *router.Config) {
		c.Auth.OIDC.Issuer, c.Auth.OIDC.Audience = "https://id.test", []string{"router"}
		grant := router.GrantConfig{Scopes: []string{"inference"}}
		c.Auth.OIDC.Groups = []router.OIDCGroupConfig{{Name: "ml", GrantConfig: grant}}
	}
	o := func(change func(o *router.OIDCConfig)) func(*router.Config) {
		return func(c *router.Config) { change(&c.Auth.OIDC) }
	}
	for want, tweak := range map[string]func(*router.Config){
		"":                           func(*router.Config) {},
		"auth.oidc.issuer: ":         o(func(o *router.OIDCConfig) { o.Issuer = "http://id.test" }),
		"auth.oidc.issuer: empty":    o(func(o *router.OIDCConfig) { o.Issuer = "" }),
		"auth.oidc.audience":         o(func(o *router.OIDCConfig) { o.Audience = nil }),
		`algorithms: "HS256" cannot`: o(func(o *router.OIDCConfig) { o.Algorithms = []string{"HS256"} }),
		`algorithms: "none" cannot`:  o(func(o *router.OIDCConfig) { o.Algorithms = []string{"none"} }),
		"algorithms: empty":          o(func(o *router.OIDCConfig) { o.Algorithms = nil }),
		"auth.oidc.leeway":           o(func(o *router.OIDCConfig) { o.Leeway = config.Duration(time.Hour) }),
		"auth.oidc.groups_claim":     o(func(o *router.OIDCConfig) { o.GroupsName = "" }),
		"auth.oidc.group: no group":  o(func(o *router.OIDCConfig) { o.Groups = nil }),
		"group[1].name":              o(func(o *router.OIDCConfig) { o.Groups = append(o.Groups, o.Groups[0]) }),
		"group[0].scopes":            o(func(o *router.OIDCConfig) { o.Groups[0].Scopes = []string{"admin"} }),
		"group[0].scopes: empty":     o(func(o *router.OIDCConfig) { o.Groups[0].Scopes = nil }),
		"group[0].tenant":            o(func(o *router.OIDCConfig) { o.Groups[0].Tenant = "a b" }),
		"group[0].models":            o(func(o *router.OIDCConfig) { o.Groups[0].Models = []string{""} }),
		"auth.certificate: needs":    func(c *router.Config) { c.Auth.Certificates = make([]router.CertificateConfig, 1) },
		"tls.client_optional":        func(c *router.Config) { c.TLS.Optional = true },
	} {
		c := settings(t, &logged{t: t})
		c.Router.Backends = []string{"http://127.0.0.1:1"}
		good(&c)
		tweak(&c)
		if err := c.Validate(); (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
