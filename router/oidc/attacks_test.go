package oidc

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// hs256 returns a token signed by HMAC with this key.
func hs256(key []byte, kid string) string {
	head, claims := header(object{"alg": "HS256", "kid": kid}), payload()
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(encode(head) + "." + encode(claims)))
	return sign(head, claims, mac.Sum(nil))
}

// attack is a token, and the verdict on it.
type attack struct {
	what  string
	token string
	want  Refusal
}

// attacks are tokens that must not count, by the numbers of the list of attacks.
func attacks() (all []attack) {
	add := func(want Refusal, what string, token string) { all = append(all, attack{what, token, want}) }
	head := header
	for _, alg := range []string{"none", "None", "NONE", "nOnE", ""} {
		add(Algorithm, "1 alg "+alg, sign(head(object{"alg": alg}), payload(), []byte("x")))
		add(Malformed, "1 no signature, alg "+alg, encode(head(object{"alg": alg}))+"."+encode(payload())+".")
	}
	public := must(x509.MarshalPKIXPublicKey(rsaKey().Public()))
	block := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})
	add(Algorithm, "2 HMAC keyed by the PEM", hs256(block, "r1"))
	jwk := jose.JSONWebKey{Key: rsaKey().Public(), KeyID: "r1", Use: "sig"}
	add(Algorithm, "3 HMAC keyed by the JWK", hs256(must(json.Marshal(jwk)), "r1"))
	add(Algorithm, "3 HMAC keyed by an oct JWK", hs256([]byte("the secret of an HMAC, in the open"), "oct"))
	evil := jose.JSONWebKey{Key: otherRSA().Public(), KeyID: "evil"}
	chain := []string{base64.StdEncoding.EncodeToString(must(x509.CreateCertificate(rand.Reader,
		&x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{}, otherRSA().Public(), otherRSA())))}
	elsewhere := object{"jku": "https://evil.test/keys", "x5u": "https://evil.test/keys", "x5c": chain}
	for name, value := range elsewhere {
		there := object{name: value}
		add(UnknownKey, "4 "+name, sign(head(there, object{"kid": "evil"}), payload(), otherRSA()))
		add(Signature, "4 known kid, "+name, sign(head(there), payload(), otherRSA()))
	}
	add(Malformed, "4 jwk", sign(head(object{"jwk": evil, "kid": "evil"}), payload(), otherRSA()))
	add(Malformed, "5 crit", sign(head(object{"crit": []string{"exp"}, "exp": 1}), payload(), rsaKey()))
	add(Malformed, "5 crit b64", sign(head(object{"crit": []string{"b64"}, "b64": false}), payload(), rsaKey()))
	add(Malformed, "5 b64", sign(head(object{"b64": true}), payload(), rsaKey()))
	add(UnknownKey, "6 kid of the key of another algorithm", sign(head(object{"kid": "e1"}), payload(), rsaKey()))
	add(UnknownKey, "6 kid of a key for another algorithm", sign(head(object{"kid": "r512"}), payload(), rsaKey()))
	add(UnknownKey, "6 the other way", sign(head(object{"alg": "ES256"}), payload(), ecKey()))
	add(Signature, "6 kid of another key", sign(head(object{"kid": "e1", "alg": "ES256"}), payload(), otherEC()))
	add(Signature, "6 kid of its other key", sign(head(object{"kid": "e2", "alg": "ES256"}), payload(), ecKey()))
	add(Malformed, "7 no kid", sign(head(object{"kid": nil}), payload(), rsaKey()))
	add(Malformed, "7 empty kid", sign(head(object{"kid": ""}), payload(), rsaKey()))
	add(Malformed, "7 kid no text", sign(head(object{"kid": 1}), payload(), rsaKey()))
	add(UnknownKey, "8 kid a path", sign(head(object{"kid": "../../../dev/null"}), payload(), []byte("x")))
	add(UnknownKey, "8 kid a URL", sign(head(object{"kid": "https://evil.test/"}), payload(), []byte("x")))
	add(Malformed, "8 kid of 3 KB", sign(head(object{"kid": strings.Repeat("k", 3000)}), payload(), rsaKey()))
	add(TooLong, "8 kid of 1 MB", sign(head(object{"kid": strings.Repeat("k", 1<<20)}), payload(), []byte("x")))
	return append(all, formAttacks()...)
}

// formAttacks are attacks by the form of the token, and by its claims about whom it is for.
func formAttacks() (all []attack) {
	add := func(want Refusal, what string, token string) { all = append(all, attack{what, token, want}) }
	head, in := header, func(o object) string { return good(o) }
	add(Malformed, "11 dots", strings.Repeat(".", 16000))
	add(TooLong, "11 more dots", strings.Repeat(".", 1<<20))
	add(Malformed, "11 two dots", "..")
	add(Malformed, "12 JWE", "e30.e30.e30.e30.e30")
	pbes2 := object{"alg": "PBES2-HS256+A128KW", "enc": "A128GCM", "p2c": 1 << 30, "kid": "r1"}
	add(Malformed, "12 PBES2", encode(pbes2)+".e30.e30.e30.e30")
	add(Algorithm, "12 PBES2 in three parts", sign(pbes2, payload(), []byte("x")))
	part := strings.Split(good(), ".")
	add(Malformed, "13 JSON", fmt.Sprintf(`{"payload":%q,"protected":%q,"signature":%q}`, part[1], part[0], part[2]))
	one := fmt.Sprintf(`{"protected":%q,"signature":%q}`, part[0], part[2])
	add(Malformed, "13 a list of signatures", fmt.Sprintf(`{"payload":%q,"signatures":[%s]}`, part[1], one))
	add(Malformed, "13 several signatures", fmt.Sprintf(`{"payload":%q,"signatures":[%s,%s]}`, part[1], one, one))
	add(Malformed, "13 a line in it", part[0]+".\n"+part[1]+"."+part[2])
	add(Malformed, "13 padding", part[0]+"."+part[1]+"."+part[2]+"=")
	twice := func(first, second object) string {
		return "{" + quoted(payload(object{"aud": nil})) + "," + quoted(first) + "," + quoted(second) + "}"
	}
	add(Malformed, "14 claim twice", sign(head(), twice(object{"aud": "other"}, object{"aud": audience}), rsaKey()))
	add(Malformed, "14 the other way", sign(head(), twice(object{"aud": audience}, object{"aud": "other"}), rsaKey()))
	escaped := strings.Replace(twice(object{"aud": "other"}, object{"bud": audience}), `"bud"`, `"\u0061ud"`, 1)
	add(Malformed, "14 escaped", sign(head(), escaped, rsaKey()))
	add(Audience, "14 other case", sign(head(), twice(object{"aud": "other"}, object{"AUD": audience}), rsaKey()))
	add(Malformed, "14 kid twice", sign(`{"alg":"RS256","kid":"e1","kid":"r1"}`, payload(), rsaKey()))
	add(Issuer, "15 a slash more", in(object{"iss": issuer + "/"}))
	add(Issuer, "15 other case", in(object{"iss": strings.ToUpper(issuer)}))
	add(Issuer, "15 no issuer", in(object{"iss": nil}))
	add(Issuer, "15 several", in(object{"iss": []string{issuer}}))
	add(Audience, "16 another audience", in(object{"aud": "other"}))
	add(Audience, "16 several others", in(object{"aud": []string{"other", audience + "2"}}))
	add(Audience, "16 none", in(object{"aud": nil}))
	add(Audience, "16 a prefix", in(object{"aud": audience[:4]}))
	add(Audience, "16 an object", in(object{"aud": object{audience: true}}))
	marks := []object{{"nonce": "n"}, {"at_hash": "h"}, {"c_hash": "h"}, {"typ": "ID"}, {"token_use": "id"}}
	for _, mark := range marks {
		add(Kind, "17 ID token by "+quoted(mark), sign(head(object{"typ": "JWT"}), payload(mark), rsaKey()))
	}
	for _, typ := range []string{"logout+jwt", "secevent+jwt", "dpop+jwt", "application/oauth-authz-req+jwt"} {
		add(Kind, "17 typ "+typ, sign(head(object{"typ": typ}), payload(), rsaKey()))
	}
	add(Malformed, "17 typ no text", sign(head(object{"typ": 1}), payload(), rsaKey()))
	return append(all, laterAttacks()...)
}

// laterAttacks are attacks by a token's times, signature, key and groups.
func laterAttacks() (all []attack) {
	add := func(want Refusal, what string, token string) { all = append(all, attack{what, token, want}) }
	now := time.Now().Unix()
	for _, exp := range []string{"1e300", "1e999", "-1", `"99999999999"`, "null", "true", "253402300800", "[]", "NaN"} {
		claims := strings.Replace(string(must(json.Marshal(payload(object{"exp": 4711})))), "4711", exp, 1)
		add(Malformed, "18 exp "+exp, sign(header(), claims, rsaKey()))
	}
	add(Malformed, "18 no exp", good(object{"exp": nil}))
	add(Expired, "18 exp behind", good(object{"exp": now - 3600}))
	add(Expired, "18 exp behind the leeway", good(object{"exp": now - 30}))
	add(Expired, "18 exp 0", good(object{"exp": 0}))
	add(NotYet, "19 nbf ahead", good(object{"nbf": now + 300}))
	add(NotYet, "19 iat ahead", good(object{"iat": now + 300}))
	add(Malformed, "19 nbf no time", good(object{"nbf": "soon"}))
	add(Malformed, "19 iat endless", good(object{"iat": 1e300}))
	es := header(object{"alg": "ES256", "kid": "e1"})
	add(Signature, "22 zero r and s", sign(es, payload(), make([]byte, 64)))
	add(Signature, "22 zero r", sign(es, payload(), append(make([]byte, 32), []byte(strings.Repeat("s", 32))...)))
	add(Signature, "22 short", sign(es, payload(), make([]byte, 63)))
	add(UnknownKey, "23 key for encryption", sign(header(object{"kid": "enc"}), payload(), rsaKey()))
	add(UnknownKey, "23 short key", sign(header(object{"kid": "small"}), payload(), smallRSA()))
	add(NoGroup, "24 groups as an object", good(object{"groups": object{"ml": true}}))
	add(NoGroup, "24 groups in groups", good(object{"groups": []any{[]string{"ml"}}}))
	add(NoGroup, "24 a group among numbers", good(object{"groups": []any{1, "ml"}}))
	add(NoGroup, "24 a text with a group in it", good(object{"groups": "ml,ops"}))
	add(TooLong, "24 10,000 groups", good(object{"groups": append(make([]string, 9999), "ml")}))
	add(NoGroup, "25 a group that is not mapped", good(object{"groups": []string{"guests"}}))
	add(NoGroup, "25 no groups", good(object{"groups": nil}))
	add(NoGroup, "25 other case", good(object{"groups": "ML"}))
	add(Malformed, "no sub", good(object{"sub": nil}))
	add(Malformed, "sub a number", good(object{"sub": 7}))
	add(Malformed, "a payload that is no object", sign(header(), "[]", rsaKey()))
	add(Issuer, "a payload that is null", sign(header(), "null", rsaKey()))
	add(Malformed, "nothing", "")
	add(Malformed, "a key of another router", "sk-0123456789")
	add(Signature, "another's key", sign(header(), payload(), otherRSA()))
	add(Signature, "a payload of another token", func() string {
		a, b := strings.Split(good(), "."), strings.Split(good(object{"sub": "berta"}), ".")
		return a[0] + "." + b[1] + "." + a[2]
	}())
	return all
}

// TestAttacks checks that no token of the list counts, and why, also when it comes again.
func TestAttacks(t *testing.T) {
	s := provide()
	v := ready(t, options(s))
	for _, a := range attacks() {
		for range 2 {
			v.mu.Lock()
			v.began = time.Now() // the keys are not read again
			v.mu.Unlock()
			want := a.want
			if want == UnknownKey {
				want = Pending
			}
			if who, why := v.Identify([]byte(a.token), time.Now()); who != nil || why != want {
				t.Errorf("%s: %v, %v, want %v", a.what, who, why, want)
			}
		}
	}
	if read, strays := s.visits.Load(), s.strays.Load(); read != 1 || strays != 0 {
		t.Errorf("the keys were read %d times, and other documents %d times", read, strays)
	}
}

// TestDotsAllocateNothing (attack 11): a token of dots is refused before anything is made of it.
func TestDotsAllocateNothing(t *testing.T) {
	dots := bytes.Repeat([]byte{'.'}, maxToken)
	if n := testing.AllocsPerRun(100, func() {
		if _, why := parse(dots, nil); why != Malformed {
			t.Fatal(why)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestKeysThatCount checks the keys of a JWK Set, whatever the settings allow.
func TestKeysThatCount(t *testing.T) {
	doc := must(json.Marshal(map[string]any{"keys": provide().keys}))
	keys, err := parseKeys(doc, append(slices.Clone(signed), jose.HS256, jose.HS384, jose.HS512))
	want := []string{"e1 ES256", "e2 ES256", "r1 PS256", "r1 PS384", "r1 PS512", "r1 RS256", "r1 RS384", "r1 RS512",
		"r512 RS512"}
	var got []string
	for name := range keys {
		got = append(got, name.id+" "+string(name.alg))
	}
	if slices.Sort(got); err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v", got, err)
	}
}

// TestGoodTokens checks what the list of attacks must not forbid, and the rights of each token.
func TestGoodTokens(t *testing.T) {
	v := ready(t, options(provide()))
	now := time.Now().Unix()
	long := strings.Repeat("a", 100)
	for what, c := range map[string]struct{ token, id, tenant string }{
		"an access token": {good(), "oidc:anna", "acme"},
		"ECDSA":           {sign(header(object{"alg": "ES256", "kid": "e1"}), payload(), ecKey()), "oidc:anna", "acme"},
		"typ JWT":         {sign(header(object{"typ": "JWT"}), payload(), rsaKey()), "oidc:anna", "acme"},
		"no typ":          {sign(header(object{"typ": nil}), payload(), rsaKey()), "oidc:anna", "acme"},
		"typ in full":     {sign(header(object{"typ": "application/AT+JWT"}), payload(), rsaKey()), "oidc:anna", "acme"},
		"Keycloak's with nonce": {sign(header(object{"typ": "JWT"}), payload(object{"typ": "Bearer", "nonce": "n"}),
			rsaKey()), "oidc:anna", "acme"},
		"at+jwt with nonce":      {good(object{"nonce": "n"}), "oidc:anna", "acme"},
		"several audiences":      {good(object{"aud": []string{"other", audience}}), "oidc:anna", "acme"},
		"groups as text":         {good(object{"groups": "ml"}), "oidc:anna", "acme"},
		"several groups":         {good(object{"groups": []string{"guests", "ops", "ml"}}), "oidc:anna", "acme"},
		"a group without tenant": {good(object{"groups": []string{"ops"}}), "oidc:anna", "default"},
		"exp just behind":        {good(object{"exp": now - 20}), "oidc:anna", "acme"},
		"exp with a fraction":    {good(object{"exp": float64(now) + 9.5}), "oidc:anna", "acme"},
		"nbf just ahead":         {good(object{"nbf": now + 20}), "oidc:anna", "acme"},
		"jku that nobody reads":  {sign(header(object{"jku": "https://evil.test"}), payload(), rsaKey()), "oidc:anna", "acme"},
		"a subject with a line":  {good(object{"sub": "a\nb"}), "oidc:a_b~7e18f737311b2dc3", "acme"},
		"a long subject":         {good(object{"sub": long}), "oidc:" + long[:64] + "~2816597888e4a0d3", "acme"},
	} {
		for _, how := range []string{"first", "again"} {
			who, why := v.Identify([]byte(c.token), time.Now())
			if why != None || who.ID != c.id || who.Tenant != c.tenant {
				t.Errorf("%s, %s: %+v, %v", what, how, who, why)
			}
		}
	}
	who, _ := v.Identify([]byte(good()), time.Now())
	if !who.Uses("m-1") || who.Uses("n-1") || !who.Keyed() || who.Revoked() || len(who.Scopes.Names()) != 1 {
		t.Errorf("%+v", who)
	}
}

// TestSettings checks the settings that let in fewer tokens, or others.
func TestSettings(t *testing.T) {
	id := sign(header(object{"typ": "JWT"}), payload(object{"nonce": "n", "azp": "web"}), rsaKey())
	shared := sign(header(object{"typ": "JWT"}),
		payload(object{"nonce": "n", "azp": "web", "aud": []string{audience, "web"}}), rsaKey())
	for what, c := range map[string]struct {
		tweak func(*Options)
		token string
		want  Refusal
	}{
		"an ID token":                    {func(o *Options) { o.IDTokens = true }, id, None},
		"an ID token for another client": {func(o *Options) { o.IDTokens = true }, shared, Client},
		"one that is named":              {func(o *Options) { o.IDTokens, o.Clients = true, []string{"web"} }, shared, None},
		"no client":                      {func(o *Options) { o.Clients = []string{"web"} }, good(), Client},
		"another client":                 {func(o *Options) { o.Clients = []string{"web"} }, good(object{"client_id": "app"}), Client},
		"its client":                     {func(o *Options) { o.Clients = []string{"app"} }, good(object{"client_id": "app"}), None},
		"a tenant of the group":          {func(o *Options) { o.TenantClaim = "org" }, good(object{"org": "x y"}), None},
		"a tenant of the token": {func(o *Options) { o.TenantClaim = "org" },
			good(object{"org": "umbrella", "groups": "ops"}), None},
		"a tenant that cannot be one": {func(o *Options) { o.TenantClaim = "org" },
			good(object{"org": "x y", "groups": "ops"}), NoTenant},
		"no tenant":                       {func(o *Options) { o.TenantClaim = "org" }, good(object{"groups": "ops"}), NoTenant},
		"another claim with groups":       {func(o *Options) { o.GroupsClaim = "roles" }, good(object{"roles": "ml"}), None},
		"groups in the former claim":      {func(o *Options) { o.GroupsClaim = "roles" }, good(), NoGroup},
		"an algorithm that is left out":   {func(o *Options) { o.Algorithms = []string{"ES256"} }, good(), Algorithm},
		"a key with a name and algorithm": {func(o *Options) { o.Algorithms = []string{"RS256"} }, good(), None},
	} {
		o := options(provide())
		c.tweak(&o)
		who, why := ready(t, o).Identify([]byte(c.token), time.Now())
		if why != c.want {
			t.Errorf("%s: %v, want %v", what, why, c.want)
		}
		if what == "a tenant of the token" && (who == nil || who.Tenant != "umbrella") {
			t.Errorf("%s: %+v", what, who)
		}
	}
}
