package router_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestKeyedModels checks that a key reaches only the models of its list.
func TestKeyedModels(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	list := func(names ...string) []string {
		text, _ := k.add(func(r *keys.Record) { r.Models = names })
		return bearer(text)
	}
	free := list()
	small, alias, tiny, most := list("small"), list("fast"), list("tiny"), list("small", "tiny", "large*")
	smart, part := list("smart"), list("smart", "small") // without all steps of the cascade
	engines := simulate(t, 2, func(c *engine.Config) { c.Models = []string{"small", "large", "tiny"} })
	s := serve(t, engines, k.locked, func(c *router.Config) {
		c.Router.Cascade.Enabled, c.Router.Cascade.Threshold = true, 0 // no answer is good enough
		c.Models = []router.ModelConfig{
			{Name: "small", Aliases: []string{"fast"}},
			{Name: "smart", Cascade: []string{"small", "large"}},
			{Name: "tiny", Cascade: []string{"tiny", "large"}},
		}
	})
	for _, c := range []struct {
		who    []string
		model  string
		status int
		step   string // of a cascade
	}{
		{small, "small", 200, ""}, {small, "fast", 200, ""}, {small, "large", 404, ""}, {small, "smart", 404, ""},
		{small, "none", 404, ""}, {alias, "fast", 200, ""}, {alias, "small", 404, ""}, {alias, "large", 404, ""},
		{tiny, "tiny", 200, ""}, {tiny, "large", 404, ""},
		{smart, "smart", 404, ""}, {part, "smart", 404, ""}, {part, "small", 200, ""},
		{most, "tiny", 200, "2"}, {most, "large", 200, ""}, {most, "fast", 200, ""}, {most, "smart", 404, ""},
	} {
		r := s.chat(asking(c.model, "hello"), c.who...)
		if r.status != c.status || c.status == 404 && !bytes.Contains(r.body, []byte("model_not_found")) {
			t.Errorf("%s by %v: %v", c.model, c.who, r)
		}
		if step := r.header.Get("x-cgn-cascade-step"); step != c.step {
			t.Errorf("%s by %v: step %q of a cascade", c.model, c.who, step)
		}
		if one := s.ask("GET", "/v1/models/"+c.model, "", c.who...); one.status != c.status {
			t.Errorf("%s by %v: %v", c.model, c.who, one)
		}
	}
	for _, member := range []string{"lora_path", "lora", "lora_request", `lora\u005fpath`} {
		body := chatBody("hello", `,"`+member+`":null`)
		body = strings.Replace(body, `"sim"`, `"small"`, 1)
		if r := s.chat(body, small...); r.status != 403 || r.code() != "adapter_denied" {
			t.Errorf("%s: %v", member, r)
		}
		if r := s.chat(body, free...); r.status == 401 || r.code() == "adapter_denied" {
			t.Errorf("%s by a key for all models: %v", member, r)
		}
	}
	for want, who := range map[string][]string{
		"": smart, "small fast": small, "fast": alias, "tiny": tiny, "large small fast tiny": most,
	} {
		var page struct{ Data []struct{ ID string } }
		r := s.ask("GET", "/v1/models", "", who...)
		if err := json.Unmarshal(r.body, &page); err != nil || r.status != 200 {
			t.Fatalf("%v, %v", r, err)
		}
		var names []string
		for _, m := range page.Data {
			names = append(names, m.ID)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("a key for %s sees %s", want, got)
		}
	}
}

// TestForbiddenIsUnknown checks that no status or code tells a forbidden model from one that does
// not exist, while a backend has not yet said what it serves.
func TestForbiddenIsUnknown(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	text, _ := k.add(func(r *keys.Record) { r.Models = []string{"small"} })
	who := bearer(text)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // which nobody else gets meanwhile
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	engines := simulate(t, 1, func(c *engine.Config) { c.Models = []string{"small", "large"} })
	s := serve(t, engines, k.locked, func(c *router.Config) {
		c.Router.Backends = append(c.Router.Backends, "http://"+silent.Addr().String()+",id=silent")
	})
	for what, ask := range map[string]func(model string) *reply{
		"POST": func(model string) *reply { return s.chat(asking(model, "hello"), who...) },
		"GET":  func(model string) *reply { return s.ask("GET", "/v1/models/"+model, "", who...) },
	} {
		forbidden, unknown := ask("large"), ask("none")
		if unknown.status != 503 || forbidden.status != unknown.status || forbidden.code() != unknown.code() {
			t.Errorf("%s: forbidden %v, unknown %v", what, forbidden, unknown)
		}
	}
}

// TestKeyedResponses checks that a stored response is there for those keys of its tenant only that
// may use its model.
func TestKeyedResponses(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	add := func(tenant string, models ...string) []string {
		text, _ := k.add(func(r *keys.Record) { r.Tenant, r.Models = tenant, models })
		return bearer(text)
	}
	own, alias, narrow, other := add("acme"), add("acme", "fast"), add("acme", "large"), add("other")
	engines := simulate(t, 2, func(c *engine.Config) { c.Models = []string{"small", "large"} })
	named := func(c *router.Config) { c.Models = []router.ModelConfig{{Name: "small", Aliases: []string{"fast"}}} }
	s := serve(t, engines, k.locked, named)
	body := func(model, more string) string { return fmt.Sprintf(`{"model":%q,"input":"question"%s}`, model, more) }
	make := func(s *site, who ...string) string {
		r := s.post("/v1/responses", body("small", ""), who...)
		var doc struct{ ID string }
		if err := json.Unmarshal(r.body, &doc); err != nil || doc.ID == "" {
			t.Fatalf("%v", r)
		}
		return doc.ID
	}
	id := make(s, own...)
	after := `,"previous_response_id":"` + id + `"`
	for what, c := range map[string]struct {
		who    []string
		model  string
		status int
	}{
		"its key": {own, "small", 200}, "a key for an alias": {alias, "fast", 200},
		"a key for another model": {narrow, "large", 404}, "a key of another tenant": {other, "small", 404},
	} {
		asked := []*reply{
			s.ask("GET", "/v1/responses/"+id, "", c.who...),
			s.ask("GET", "/v1/responses/"+id+"/input_items", "", c.who...),
			s.post("/v1/responses", body(c.model, after), c.who...),
		}
		if c.status == 404 {
			asked = append(asked, s.ask("DELETE", "/v1/responses/"+id, "", c.who...),
				s.post("/v1/responses/"+id+"/cancel", "", c.who...),
				s.post("/v1/responses/compact", body(c.model, after), c.who...))
		}
		for _, r := range asked {
			if known := r.code() != "response_not_found"; known != (c.status == 200) {
				t.Errorf("%s: %v", what, r)
			}
		}
	}
	// A response that the router does not remember is nobody's.
	for _, who := range [][]string{own, other} {
		if r := s.ask("GET", "/v1/responses/"+make(serve(t, engines, named)), "", who...); r.status != 404 {
			t.Errorf("of another router: %v", r)
		}
	}
	if r := s.ask("DELETE", "/v1/responses/"+id, "", own...); r.status != 200 {
		t.Errorf("delete: %v", r)
	}
}
