package auth

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/trust"
)

// TestWithoutDoor: clients of this host and those with a certificate may steer.
func TestWithoutDoor(t *testing.T) {
	tcp := func(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 4711} }
	shown := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{}}}
	verified := &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}
	for _, c := range []struct {
		what string
		peer net.Addr
		conn *tls.ConnectionState
		want bool
	}{
		{"loopback", tcp("127.0.0.1"), nil, true},
		{"another address of loopback", tcp("127.9.9.9"), nil, true},
		{"IPv6 loopback", tcp("::1"), nil, true},
		{"loopback in IPv6", tcp("::ffff:127.0.0.1"), nil, true},
		{"a Unix socket", &net.UnixAddr{Net: "unix"}, nil, true},
		{"another host", tcp("10.0.0.1"), nil, false},
		{"another host with TLS alone", tcp("10.0.0.1"), &tls.ConnectionState{}, false},
		{"another host with a certificate that nobody verified", tcp("10.0.0.1"), shown, false},
		{"another host with a verified certificate", tcp("10.0.0.1"), verified, true},
		{"an unknown peer", nil, nil, false},
		{"an unspecified address", tcp("0.0.0.0"), nil, false},
	} {
		who, err := (*Door)(nil).Identify(new(fasthttp.RequestHeader), (*Door)(nil).PeerOf(c.peer, c.conn))
		if err != nil || who.Scopes.Has(trust.Pin) != c.want {
			t.Errorf("%s: %v", c.what, !c.want)
		}
	}
	if e := (*Door)(nil).Denied("x-cgn-node", near); e.Status != 403 || e.Param != "x-cgn-node" {
		t.Errorf("%+v", e)
	}
}

// accepting returns a door with one key, and that key's text.
func accepting(t testing.TB) (*Door, string) {
	t.Helper()
	text, id := keys.Generate()
	sum, _ := keys.Hash(text)
	set := new(keys.Set)
	r := &keys.Record{ID: id, SHA256: sum, Tenant: "acme", Scopes: []string{"inference"}, Models: []string{"m-*"},
		Created: time.Now()}
	if err := set.Put([]*keys.Record{r}); err != nil {
		t.Fatal(err)
	}
	return &Door{Keys: set}, text
}

// headOf returns the head of these lines, as the server reads it.
func headOf(lines ...string) *fasthttp.RequestHeader {
	h := new(fasthttp.RequestHeader)
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		h.Add(name, value)
	}
	return h
}

func TestIdentify(t *testing.T) {
	d, key := accepting(t)
	hash, _ := keys.Hash(key)
	other, _ := keys.Generate()
	host := &Peer{Near: true}
	for what, lines := range map[string][]string{
		"OpenAI's header":             {"Authorization: Bearer " + key},
		"the scheme in small letters": {"authorization: bearer " + key},
		"Anthropic's header":          {"x-api-key: " + key},
		"the same in both":            {"x-api-key: " + key, "Authorization: Bearer " + key},
		"among others":                {"Accept: a/b", "x-api-key: " + key, "Content-Type: application/json"},
	} {
		if who, err := d.Identify(headOf(lines...), host); err != nil || who.Tenant != "acme" {
			t.Errorf("%s: %v, %v", what, who, err)
		}
	}
	for what, lines := range map[string][]string{
		"nothing, of this host":          {},
		"two headers":                    {"Authorization: Bearer " + key, "Authorization: Bearer " + other},
		"two headers, the bad one first": {"Authorization: Bearer " + other, "Authorization: Bearer " + key},
		"one against the other":          {"Authorization: Bearer " + other, "x-api-key: " + key},
		"the other against the one":      {"x-api-key: " + other, "Authorization: Bearer " + key},
		"an empty one against the other": {"x-api-key: ", "Authorization: Bearer " + key},
		"another scheme":                 {"Authorization: Basic " + key},
		"no scheme":                      {"Authorization: " + key},
		"a tab for the blank":            {"Authorization: Bearer\t" + key},
		"two blanks":                     {"Authorization: Bearer  " + key},
		"NUL at the end":                 {"Authorization: Bearer " + key + "\x00"},
		"the hash":                       {"Authorization: Bearer " + hash},
		"the hash in the form of a key":  {"Authorization: Bearer cgn_" + hash[:47]},
		"a byte more":                    {"Authorization: Bearer " + key + "0"},
		"a byte less":                    {"Authorization: Bearer " + key[:len(key)-1]},
		"another key":                    {"x-api-key: " + other},
		"100 KB":                         {"x-api-key: " + strings.Repeat("k", 100<<10)},
		"only the word":                  {"Authorization: Bearer "},
	} {
		who, err := d.Identify(headOf(lines...), host)
		if who != nil || err == nil || err.Status != 401 || err.Code != Code {
			t.Errorf("%s: %v, %v", what, who, err)
		}
		for _, secret := range []string{key[13:45], other[13:45]} {
			if err != nil && strings.Contains(err.Message, secret) {
				t.Errorf("%s: the error has the key", what)
			}
		}
	}
}

// TestIdentifyAllocatesNothing holds a request with a good key to no allocation.
func TestIdentifyAllocatesNothing(t *testing.T) {
	d, key := accepting(t)
	h, peer := headOf("Accept: a/b", "Authorization: Bearer "+key), &Peer{}
	if n := testing.AllocsPerRun(100, func() {
		if who, _ := d.Identify(h, peer); !who.Uses("m-1") {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkIdentify(b *testing.B) {
	d, key := accepting(b)
	h := headOf("Accept: application/json", "Content-Type: application/json", "User-Agent: OpenAI/Python 2.0",
		"X-Stainless-Lang: python", "X-Stainless-Os: Linux", "X-Stainless-Arch: x64", "Authorization: Bearer "+key)
	peer := &Peer{}
	b.ReportAllocs()
	for b.Loop() {
		if who, err := d.Identify(h, peer); err != nil || !who.Uses("m-1") {
			b.Fatal(err)
		}
	}
}

// TestForeignPages checks that a router that asks nobody refuses what the pages of other sites make
// browsers of its host send, and nothing else.
func TestForeignPages(t *testing.T) {
	near, far := &Peer{Near: true}, &Peer{}
	for _, c := range []struct {
		peer    *Peer
		lines   []string
		refused bool
	}{
		{near, []string{"Host: router.example"}, false},
		{near, []string{"Host: localhost:8080", "Origin: http://localhost:8080"}, false},
		{near, []string{"Host: [::1]:8080", "Origin: http://[::1]:8080"}, false},
		{near, []string{"Host: localhost:8080", "Origin: http://localhost:3000"}, true},
		{near, []string{"Host: localhost:8080", "Origin: https://evil.example"}, true},
		{near, []string{"Host: evil.example:8080", "Origin: http://evil.example:8080"}, true},
		{near, []string{"Host: localhost:8080", "Origin: null"}, true},
		{near, []string{"Host: localhost:8080", "Origin: https://evil.example", "Sec-Fetch-Site: cross-site"}, true},
		{near, []string{"Host: 127.0.0.1:8080", "Origin: https://chat.example", "Sec-Fetch-Site: same-origin"}, false},
		{near, []string{"Host: localhost:8080", "Origin: app://notes"}, false},
		{far, []string{"Host: router.example", "Origin: https://evil.example"}, false},
		{&Peer{Near: true, Certified: true}, []string{"Host: a.example", "Origin: https://evil.example"}, false},
	} {
		who, err := (*Door)(nil).Identify(headOf(c.lines...), c.peer)
		if (err == errForeign) != c.refused || (who == nil) != c.refused {
			t.Errorf("%q: %v, %v", c.lines, who, err)
		}
	}
}

// BenchmarkIdentifyNobody measures a request to a router that asks nobody.
func BenchmarkIdentifyNobody(b *testing.B) {
	h := headOf("Accept: application/json", "Content-Type: application/json", "User-Agent: OpenAI/Python 2.0",
		"X-Stainless-Lang: python", "X-Stainless-Os: Linux", "X-Stainless-Arch: x64")
	peer := &Peer{Near: true}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := (*Door)(nil).Identify(h, peer); err != nil {
			b.Fatal(err)
		}
	}
}
