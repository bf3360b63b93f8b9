package auth

import (
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/trust"
)

// gateway returns a door with a key of the scopes inference and act_as, and the key's text.
func gateway(t testing.TB) (d *Door, key string) {
	t.Helper()
	text, id := keys.Generate()
	r := &keys.Record{ID: id, Tenant: "front", Scopes: []string{"inference", "act_as"}, Models: []string{"m-1"}}
	r.SHA256, _ = keys.Hash(text)
	set := new(keys.Set)
	if err := set.Put([]*keys.Record{r}); err != nil {
		t.Fatal(err)
	}
	return &Door{Keys: set}, text
}

// TestActAs checks for whom a gateway with the scope act_as asks, and which headers it must not
// send.
func TestActAs(t *testing.T) {
	d, key := gateway(t)
	long := strings.Repeat("u", maxUser)
	type as struct{ tenant, user string }
	for _, c := range []struct {
		lines []string
		want  as
	}{
		{nil, as{"front", ""}},
		{[]string{"x-cgn-tenant: acme"}, as{"acme", ""}},
		{[]string{"x-cgn-user: a@acme.example"}, as{"front", "a@acme.example"}},
		{[]string{"X-CGN-TENANT: a.b_c:d-e", "x-cgn-user: " + long, "x-cgn-priority: -7"}, as{"a.b_c:d-e", long}},
		{[]string{"x_cgn_tenant: acme", "x-cgn-tenants: acme", "x-tenant: acme"}, as{"front", ""}},
	} {
		who, err := d.Identify(headOf(append(c.lines, "x-api-key: "+key)...), &Peer{})
		if err != nil || (as{who.Tenant, who.User}) != c.want {
			t.Errorf("%v: %+v, %v", c.lines, who, err)
			continue
		}
		if !who.Keyed() || !who.Uses("m-1") || who.Uses("m-2") || !who.Scopes.Has(trust.Inference) {
			t.Errorf("%v: its rights are not those of the gateway: %+v", c.lines, who)
		}
	}
	for header, values := range map[string][]string{
		"X-Cgn-Tenant": {"", "a b", "a,b", "\xc3\xa4", strings.Repeat("t", 129), "a/b", "a\x00"},
		"X-Cgn-User":   {"", "a b", "a,b", "\xc3\xa4", long + "u", "a\x7f"},
	} {
		for _, value := range values {
			who, err := d.Identify(headOf("x-api-key: "+key, header+": "+value), &Peer{})
			if who != nil || err == nil || err.Status != 400 || err.Param != header {
				t.Errorf("%s: %q: %+v, %v", header, value, who, err)
			}
		}
		twice := headOf("x-api-key: "+key, header+": 1", header+": 1")
		if who, err := d.Identify(twice, &Peer{}); who != nil || err == nil || err.Param != header {
			t.Errorf("%s twice: %+v, %v", header, who, err)
		}
	}
}

// TestActAsNeedsTheScope checks that the headers of all others count for nothing, whatever is in
// them.
func TestActAsNeedsTheScope(t *testing.T) {
	d, key := accepting(t)
	h := headOf("x-cgn-tenant: other", "x-cgn-user: u", "x-cgn-priority: high", "x-cgn-tenant: b", "x-api-key: "+key)
	if who, err := d.Identify(h, &Peer{}); err != nil || who.Tenant != "acme" || who.User != "" {
		t.Errorf("%+v, %v", who, err)
	}
	if who, err := (*Door)(nil).Identify(h, &Peer{Near: true}); err != nil || who.Tenant != trust.DefaultTenant {
		t.Errorf("without keys: %+v, %v", who, err)
	}
}

// TestRevokedGateway checks that the requests of a gateway end with its key, for whomever it asks.
func TestRevokedGateway(t *testing.T) {
	d, key := gateway(t)
	who, err := d.Identify(headOf("x-cgn-tenant: acme", "x-api-key: "+key), &Peer{})
	if err != nil || who.Revoked() {
		t.Fatal(who, err)
	}
	if err := d.Keys.Put(nil); err != nil || !who.Revoked() {
		t.Errorf("revoked: %v, %v", who.Revoked(), err)
	}
}
