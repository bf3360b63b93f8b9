package isolation

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"
	"testing"

	"github.com/cognitora/dataplane/router/trust"
)

var secret = bytes.Repeat([]byte("0123456789abcdef"), 2)

// TestSalts checks whose salts are the same: those of one client with one cache_salt of its own,
// and no others.
func TestSalts(t *testing.T) {
	who := func(tenant, id string) *trust.Principal { return &trust.Principal{Tenant: tenant, ID: id} }
	a := New(Tenant, secret)
	if a.Of(who("acme", "1"), nil) != a.Of(who("acme", "2"), nil) {
		t.Error("two keys of a tenant have two salts")
	}
	if a.Of(who("acme", "1"), nil) != New(Tenant, secret).Of(who("acme", "1"), nil) {
		t.Error("two routers have two salts")
	}
	k := New(Key, secret)
	of := map[Salt]string{}
	for what, salt := range map[string]Salt{
		"acme":                         a.Of(who("acme", "1"), nil),
		"beta":                         a.Of(who("beta", "1"), nil),
		"no tenant":                    a.Of(who("", "1"), nil),
		"a client's salt":              a.Of(who("acme", "1"), []byte("x")),
		"another":                      a.Of(who("acme", "1"), []byte("y")),
		"an empty one":                 a.Of(who("acme", "1"), []byte{}),
		"a long one":                   a.Of(who("acme", "1"), bytes.Repeat([]byte("x"), 64<<10)),
		"of another tenant":            a.Of(who("beta", "1"), []byte("x")),
		"another secret":               New(Tenant, append([]byte("z"), secret[1:]...)).Of(who("acme", "1"), nil),
		"key 1":                        k.Of(who("acme", "1"), nil),
		"key 2":                        k.Of(who("acme", "2"), nil),
		"key 1 of another tenant":      k.Of(who("beta", "1"), nil),
		"key 1, a client's salt":       k.Of(who("acme", "1"), []byte("x")),
		"the tenant's end in the salt": a.Of(who("acm", "1"), []byte("e")),
		"the key's end in the salt":    k.Of(who("acme", ""), []byte("1")),
		"a tenant like a salt":         a.Of(who("acmesx", "1"), nil),
		"a key like a salt":            k.Of(who("acme", "1sx"), nil),
		"a salt like a key":            a.Of(who("acme", ""), []byte("k\x011")),
	} {
		if other := of[salt]; other != "" {
			t.Errorf("%s and %s have the same salt", what, other)
		}
		of[salt] = what
		if strings.Trim(string(salt[:]), "0123456789abcdef") != "" {
			t.Errorf("%s: %q", what, salt)
		}
	}
}

// TestSaltIsStated holds salts to their form. Another form would empty all caches at an upgrade.
func TestSaltIsStated(t *testing.T) {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("cognitora.salt.v1\x04acmesx"))
	salt := New(Tenant, secret).Of(&trust.Principal{Tenant: "acme"}, []byte("x"))
	if want := hex.EncodeToString(m.Sum(nil)[:16]); string(salt[:]) != want {
		t.Errorf("%s, want %s", salt, want)
	}
}

func TestParseBy(t *testing.T) {
	for name, want := range map[string]By{"none": None, "tenant": Tenant, "key": Key} {
		if by, err := ParseBy(name); by != want || err != nil {
			t.Errorf("%s: %v, %v", name, by, err)
		}
	}
	if _, err := ParseBy("Tenant"); err == nil {
		t.Error("Tenant was taken")
	}
	if New(None, nil) != nil {
		t.Error("none has salts")
	}
}

func TestOfInParallel(t *testing.T) {
	s := New(Key, secret)
	want := s.Of(&trust.Principal{Tenant: "a", ID: "b"}, []byte("c"))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 200 {
				s.Of(&trust.Principal{Tenant: "x"}, nil)
				if s.Of(&trust.Principal{Tenant: "a", ID: "b"}, []byte("c")) != want {
					t.Error("another salt")
				}
			}
		})
	}
	all.Wait()
}

func BenchmarkOf(b *testing.B) {
	s, who := New(Tenant, secret), &trust.Principal{Tenant: "acme"}
	b.ReportAllocs()
	for b.Loop() {
		s.Of(who, nil)
	}
}
