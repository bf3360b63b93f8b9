package router_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/tally"
)

// ofTenant returns the requests of a tenant by outcome, and its tokens.
func (p page) ofTenant(name string) (ended map[string]int, u tally.Use) {
	tenant := fmt.Sprintf("tenant=%q", name)
	ended = map[string]int{}
	for _, outcome := range []string{"ok", "limited", "refused", "failed", "left"} {
		if n := p.sum("cgn_router_tenant_requests_total", tenant, fmt.Sprintf("outcome=%q", outcome)); n > 0 {
			ended[outcome] = int(n)
		}
	}
	tokens := func(kind string) int64 {
		return int64(p.sum("cgn_router_tenant_tokens_total", tenant, fmt.Sprintf("kind=%q", kind)))
	}
	return ended, tally.Use{Prompt: tokens("prompt"), Cached: tokens("cached"), Completion: tokens("completion")}
}

// TestTenantsAreCounted checks the metrics of tenants against the answers that clients get, without
// a directory of usage and without limits for most keys.
func TestTenantsAreCounted(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	acme, _ := k.add()
	globex, _ := k.add(func(r *keys.Record) {
		r.Tenant, r.Limits = "globex", limits.Rates{RequestsPerDay: 1}
	})
	s := serve(t, simulate(t, 1), k.locked, func(c *router.Config) { c.Usage.Tenants = 100 })
	var want tally.Use
	prompt := document(1, 6000)
	for _, body := range []string{chatBody(prompt, plain), chatBody(prompt, withUsage), chatBody(prompt, plain)} {
		charge(t, &want, s.chat(body, bearer(acme)...))
	}
	s.chat(asking("nothing", "hello"), bearer(acme)...)
	s.chat(chatBody("hello", plain), append(bearer(acme), "x-sim-fault", "status=500")...)
	s.begin("/v1/chat/completions", chatBody("hello", streaming), append(bearer(acme), "x-sim-fault",
		"stall_after=1")...).Body.Close()
	for range 3 {
		s.chat(chatBody("hello", plain), bearer(globex)...)
	}
	s.chat(chatBody("hello", plain)) // of nobody
	s.idle()
	p := s.metrics()
	want.Requests = 0
	if ended, got := p.ofTenant("acme"); got != want || want.Cached == 0 ||
		fmt.Sprint(ended) != "map[failed:1 left:1 ok:3 refused:1]" {
		t.Errorf("acme: %v %+v, want %+v", ended, got, want)
	}
	if ended, _ := p.ofTenant("globex"); fmt.Sprint(ended) != "map[limited:2 ok:1]" {
		t.Errorf("globex: %v", ended)
	}
	if n := len(p.lines("cgn_router_tenant_requests_total")); n != 2*5 {
		t.Errorf("%d series", n)
	}
}

// TestFloodOfTenantNames checks that the names that a gateway makes up take half of the places at
// most, and that a tenant with a key of its own gets one after the flood.
func TestFloodOfTenantNames(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	gateway, _ := k.add(func(r *keys.Record) { r.Tenant = "front" }, scopes("inference", "act_as"))
	s := serve(t, simulate(t, 1), k.locked, func(c *router.Config) { c.Usage.Tenants = 4 })
	const flood = 40
	together(flood, func(i int) *reply {
		return s.chat(chatBody("hello", plain), append(bearer(gateway), "x-cgn-tenant", fmt.Sprint("made-up-", i))...)
	})
	s.chat(chatBody("hello", plain), bearer(gateway)...)
	for _, tenant := range []string{"acme", "late"} {
		text, _ := k.add(func(r *keys.Record) { r.Tenant = tenant })
		eventually(t, "the key counts", func() bool {
			return s.chat(chatBody("hello", plain), bearer(text)...).status == 200
		})
	}
	s.idle()
	p := s.metrics()
	for tenant, want := range map[string]int{"front": 1, "acme": 1, "late": 0, "(other)": flood - 2 + 1} {
		if ended, _ := p.ofTenant(tenant); ended["ok"] != want {
			t.Errorf("%s: %v, want %d", tenant, ended, want)
		}
	}
	if n := strings.Count(s.metricsText(), `tenant="made-up-`); n != 2*(5+3) {
		t.Errorf("%d series of made-up names", n)
	}
}
