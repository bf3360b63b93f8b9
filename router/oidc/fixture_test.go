package oidc

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/cognitora/dataplane/router/trust"
)

const (
	issuer   = "https://id.test"
	audience = "cgn-test"
)

// keys of the test's provider, and one of an attacker.
var (
	rsaKey   = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	otherRSA = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 2048)) })
	smallRSA = sync.OnceValue(func() *rsa.PrivateKey { return must(rsa.GenerateKey(rand.Reader, 1024)) })
	ecKey    = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })
	secondEC = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })
	otherEC  = sync.OnceValue(func() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) })
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// site is a provider that is reached without a network.
type site struct {
	mu    sync.Mutex
	keys  []any // jose.JSONWebKey, or raw JSON
	down  bool
	serve http.HandlerFunc // in place of the provider, if not nil

	visits atomic.Int64 // of the keys
	strays atomic.Int64 // requests for other documents
}

func (s *site) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, fmt.Errorf("no route to %s", r.URL.Host)
	}
	w := httptest.NewRecorder()
	switch {
	case s.serve != nil:
		s.serve(w, r)
		if r.Context().Err() != nil {
			return nil, r.Context().Err()
		}
	case r.URL.String() == issuer+"/.well-known/openid-configuration":
		fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, issuer, issuer+"/keys")
	case r.URL.String() == issuer+"/keys":
		s.visits.Add(1)
		json.NewEncoder(w).Encode(map[string]any{"keys": s.keys})
	default:
		s.strays.Add(1)
		return nil, fmt.Errorf("the router asks for %s", r.URL)
	}
	return w.Result(), nil
}

// set changes the provider.
func (s *site) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// provide returns a provider with an RSA key r1, EC keys e1 and e2, and keys that must not count.
func provide() *site {
	return &site{keys: []any{
		jose.JSONWebKey{Key: rsaKey().Public(), KeyID: "r1", Use: "sig"},
		jose.JSONWebKey{Key: ecKey().Public(), KeyID: "e1", Use: "sig", Algorithm: "ES256"},
		jose.JSONWebKey{Key: secondEC().Public(), KeyID: "e2", Use: "sig"},
		jose.JSONWebKey{Key: rsaKey().Public(), KeyID: "enc", Use: "enc"},
		jose.JSONWebKey{Key: rsaKey().Public(), KeyID: ""},
		jose.JSONWebKey{Key: rsaKey().Public(), KeyID: "r512", Algorithm: "RS512"},
		jose.JSONWebKey{Key: smallRSA().Public(), KeyID: "small"},
		jose.JSONWebKey{Key: []byte("the secret of an HMAC, in the open"), KeyID: "oct"},
		json.RawMessage(`{"kty":"from the future","kid":"new"}`),
	}}
}

// options maps the groups ml and ops, in this order.
func options(s *site) Options {
	return Options{
		Issuer: issuer, Audience: []string{audience}, Algorithms: []string{"RS256", "ES256"}, Leeway: 30 * time.Second,
		GroupsClaim: "groups", Groups: []Group{
			{"ml", trust.Grant{Tenant: "acme", Scopes: trust.Inference, Models: trust.NewModelList([]string{"m-*"})}},
			{"ops", trust.Grant{Scopes: trust.Inference | trust.Models | trust.Pin}},
		},
		Transport: s, Log: slog.New(slog.DiscardHandler),
	}
}

// ready returns a verifier that has read the provider's keys once, and reads them no more.
func ready(t testing.TB, o Options) *Verifier {
	t.Helper()
	v := New(o)
	v.begin()
	err := v.look(t.Context())
	v.end()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

type object = map[string]any

// with returns a copy of an object with other members; nil leaves one out.
func with(o object, changes ...object) object {
	o = maps.Clone(o)
	for _, c := range changes {
		maps.Copy(o, c)
	}
	maps.DeleteFunc(o, func(_ string, v any) bool { return v == nil })
	return o
}

func header(changes ...object) object {
	return with(object{"alg": "RS256", "kid": "r1", "typ": "at+jwt"}, changes...)
}

func payload(changes ...object) object {
	now := time.Now().Unix()
	return with(object{
		"iss": issuer, "aud": audience, "sub": "anna", "iat": now, "exp": now + 600, "groups": []string{"ml"},
	}, changes...)
}

func encode(v any) string {
	switch v := v.(type) {
	case string:
		return base64.RawURLEncoding.EncodeToString([]byte(v))
	case []byte:
		return base64.RawURLEncoding.EncodeToString(v)
	}
	return base64.RawURLEncoding.EncodeToString(must(json.Marshal(v)))
}

// sign returns a token of these parts, which are objects or texts, signed with key.
func sign(head, claims, key any) string {
	input := encode(head) + "." + encode(claims)
	sum := sha256.Sum256([]byte(input))
	switch k := key.(type) {
	case *rsa.PrivateKey:
		return input + "." + encode(must(rsa.SignPKCS1v15(rand.Reader, k, crypto.SHA256, sum[:])))
	case *ecdsa.PrivateKey:
		r, s, err := ecdsa.Sign(rand.Reader, k, sum[:])
		if err != nil {
			panic(err)
		}
		return input + "." + encode(slices.Concat(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))))
	case []byte:
		return input + "." + encode(k)
	}
	panic("no such key")
}

// good returns a valid token.
func good(changes ...object) string { return sign(header(), payload(changes...), rsaKey()) }

// quoted returns the JSON of an object without its braces.
func quoted(o object) string { return strings.Trim(string(must(json.Marshal(o))), "{}") }
