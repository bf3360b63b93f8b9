package request

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/race"
	"github.com/cognitora/dataplane/router/isolation"
	"github.com/cognitora/dataplane/router/trust"
)

var salts = isolation.New(isolation.Tenant, bytes.Repeat([]byte("s"), isolation.SecretBytes))

// of reads a chat of a tenant, with a session and the given further members.
func of(t *testing.T, r *Request, tenant, session, members string) {
	t.Helper()
	r.Who, r.Salts = &trust.Principal{Tenant: tenant}, salts
	r.SetHead(Head{Method: []byte("POST"), Path: []byte("/v1/chat/completions"), Session: []byte(session)})
	if err := read(r, members); err != nil {
		t.Fatal(err)
	}
}

// TestClientsAreApart checks what two tenants with the same words have in common: nothing by which
// prompts, sessions and bodies are remembered.
func TestClientsAreApart(t *testing.T) {
	a, b, again := New(), New(), New()
	of(t, a, "acme", "session", "")
	of(t, b, "beta", "session", "")
	of(t, again, "acme", "session", "")
	if bytes.Equal(a.Session, b.Session) || bytes.Equal(a.Scan.CacheSalt, b.Scan.CacheSalt) ||
		a.Scan.Space == b.Scan.Space {
		t.Error("two tenants share something")
	}
	if !bytes.Equal(a.Session, again.Session) || !bytes.Equal(a.Scan.CacheSalt, again.Scan.CacheSalt) ||
		a.Scan.Space != again.Scan.Space || a.Scan.Space == 0 {
		t.Error("a tenant is apart from itself")
	}
	seen := string(a.Scan.CacheSalt)
	for _, members := range []string{`,"cache_salt":"` + seen + `"`, `,"nvext":{"cache_salt":"` + seen + `"}`,
		`,"cache_salt":""`} {
		own := New()
		of(t, own, "beta", "session", members)
		if s := string(own.Scan.CacheSalt); s == seen || s == string(b.Scan.CacheSalt) || len(s) != len(seen) {
			t.Errorf("%s: the salt is %s", members, s)
		}
		if own.Scan.Space != b.Scan.Space || !bytes.Equal(own.Session, b.Session) {
			t.Errorf("%s: the client is apart from itself", members)
		}
	}
	if b.Reset(); b.Salts != nil || b.own.salt != (isolation.Salt{}) || b.Session != nil {
		t.Error("the salt outlives its request")
	}
}

// TestSharedPrompts checks that without salts all is as clients send it.
func TestSharedPrompts(t *testing.T) {
	for what, r := range map[string]*Request{"without salts": New(), "of the router itself": New()} {
		if what != "without salts" {
			r.Salts = salts
		}
		r.SetHead(Head{Session: []byte("session")})
		if err := read(r, `,"cache_salt":"s"`); err != nil {
			t.Fatal(err)
		}
		if string(r.Session) != "session" || string(r.Scan.CacheSalt) != "s" || r.Scan.Space != 0 {
			t.Errorf("%s: session %q, salt %q, space %d", what, r.Session, r.Scan.CacheSalt, r.Scan.Space)
		}
	}
}

func TestApartDoesNotAllocate(t *testing.T) {
	if race.Enabled {
		t.Skip("pools forget under the race detector")
	}
	r, who := New(), &trust.Principal{Tenant: "acme"}
	head := Head{Method: []byte("POST"), Path: []byte("/v1/chat/completions"), Session: []byte("session")}
	body := []byte(`{"model":"m","cache_salt":"` + strings.Repeat("s", 500) + `","messages":[]}`)
	if n := testing.AllocsPerRun(100, func() {
		r.Reset()
		r.Who, r.Salts = who, salts
		r.SetHead(head)
		r.Own(body, nil)
		if r.Read(nil, nil) != nil {
			t.Fatal("not read")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
