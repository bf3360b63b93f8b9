package router_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router"
)

// TestGatewayInFront checks that a key with the scope act_as names the tenant and the user of a
// request, that stored responses and the access log are theirs, and that no other key does.
func TestGatewayInFront(t *testing.T) {
	t.Parallel()
	k, log := newKeyring(t), filepath.Join(t.TempDir(), "access.log")
	text, id := k.add(scopes("inference", "models", "act_as"))
	own, ownID := k.add() // of the tenant acme
	s := serve(t, simulate(t, 1), k.locked, func(c *router.Config) { c.Log.Access = log })
	as := func(header ...string) []string { return append(bearer(text), header...) }
	acme := as("x-cgn-tenant", "acme", "x-cgn-user", "ada@acme.example", "x-cgn-priority", "5")
	spoofed := append(bearer(own), "x-cgn-tenant", "globex", "x-cgn-user", "eve", "x-cgn-priority", "9")

	made := s.post("/v1/responses", `{"model":"sim","input":"question"}`, acme...)
	var doc struct{ ID string }
	if err := json.Unmarshal(made.body, &doc); err != nil || doc.ID == "" {
		t.Fatalf("%v", made)
	}
	for what, c := range map[string]struct {
		who    []string
		status int
	}{
		"the tenant":                       {acme, 200},
		"another tenant":                   {as("x-cgn-tenant", "globex"), 404},
		"another letter":                   {as("x-cgn-tenant", "Acme"), 404},
		"a key of the tenant":              {bearer(own), 200},
		"a key that spoofs another tenant": {spoofed, 200},
	} {
		if r := s.ask("GET", "/v1/responses/"+doc.ID, "", c.who...); r.status != c.status {
			t.Errorf("%s: %v", what, r)
		}
	}
	mustAll(t, "chats", []*reply{
		s.chat(chatBody("hello", plain), acme...), s.chat(chatBody("hello", streaming), spoofed...),
	})
	twice := as("x-cgn-tenant", "a,b")
	if r := s.chat(chatBody("hello", plain), twice...); r.status != 400 || r.code() != "invalid_identity" {
		t.Errorf("two tenants in one header: %v", r)
	}
	if r := s.post("/v1/messages", "{}", as("x-cgn-user", "a b")...); r.status != 400 ||
		!strings.Contains(string(r.body), `"type":"invalid_request_error"`) {
		t.Errorf("Anthropic's envelope: %v", r)
	}
	for _, r := range s.engines[0].Requests() {
		if all := strings.ToLower(fmt.Sprint(r.Header)); strings.Contains(all, "x-cgn-tenant") ||
			strings.Contains(all, "x-cgn-user") || strings.Contains(all, "x-cgn-priority") {
			t.Errorf("an engine gets %s", all)
		}
	}
	s.drain()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(page, []byte(`"key":"`+id+`","tenant":"acme","user":"ada@acme.example"`)) ||
		!bytes.Contains(page, []byte(`"key":"`+ownID+`","tenant":"acme",`)) || bytes.Contains(page, []byte("eve")) {
		t.Errorf("the access log names others: %s", page)
	}
}
