package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/sim/engine"
)

// limited is a tweak for limits of tables.
func limited(tables ...router.LimitTable) func(*router.Config) {
	return func(c *router.Config) { c.LimitTables = tables }
}

// used returns the used units of a limit of the model sim, once nothing runs.
func (s *site) used(limit string, of int64) int64 {
	s.t.Helper()
	s.idle()
	p := s.metrics()
	if n := p.sum("cgn_router_limit_used_ratio", `model="sim"`, `limit="concurrent"`); n != 0 {
		s.t.Errorf("%v requests are counted while nothing runs", n)
	}
	return int64(math.Round(p.sum("cgn_router_limit_used_ratio", `model="sim"`, `limit="`+limit+`"`) * float64(of)))
}

// charged returns the tokens of an answer as its usage has them.
func charged(t *testing.T, r *reply) (prompt, completion int64) {
	t.Helper()
	usage := regexp.MustCompile(`"prompt_tokens":(\d+),.*"completion_tokens":(\d+)`)
	m := usage.FindStringSubmatch(string(r.body))
	if m == nil {
		t.Fatalf("no usage in %v", r)
	}
	fmt.Sscan(m[1]+" "+m[2], &prompt, &completion)
	return prompt, completion
}

// TestLimitHeaders checks the headers about limits on answers, streams and refusals of both APIs,
// and that there are none without limits.
func TestLimitHeaders(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	free, _ := k.add(func(r *keys.Record) { r.Tenant = "free" })
	key, _ := k.add(func(r *keys.Record) {
		r.Limits = limits.Rates{RequestsPerDay: 6, RequestsPerMinute: 100, TokensPerDay: 5000, InputPerDay: 3000}
	})
	s := serve(t, simulate(t, 1), k.locked)
	body := chatBody("hello", `,"max_tokens":8`)
	for name := range s.chat(body, bearer(free)...).header {
		if strings.Contains(strings.ToLower(name), "ratelimit") {
			t.Errorf("%s without limits", name)
		}
	}
	const messages = `{"model":"sim","max_tokens":8,"messages":[{"role":"user","content":"hello"}]`
	for i, r := range []*reply{
		s.chat(body, bearer(key)...), s.chat(chatBody("hello", streaming), bearer(key)...),
		s.post("/v1/completions", `{"model":"sim","prompt":"hello","max_tokens":8}`, bearer(key)...),
	} {
		mustAll(t, "openai", []*reply{r})
		left := r.header.Get("x-ratelimit-remaining-requests")
		tokens, err := strconv.Atoi(r.header.Get("x-ratelimit-remaining-tokens"))
		if r.header.Get("x-ratelimit-limit-requests") != "6" || left != fmt.Sprint(5-i) || err != nil ||
			tokens > 4992 || tokens < 4700 || r.header.Get("x-ratelimit-limit-tokens") != "5000" {
			t.Errorf("request %d: %v", i, r.header)
		}
		reset, hours := r.header.Get("x-ratelimit-reset-requests"), 4*(i+1)
		if !strings.HasPrefix(reset, fmt.Sprint(hours-1, "h59m")) && reset != fmt.Sprint(hours, "h0m0s") {
			t.Errorf("request %d: reset %s", i, reset)
		}
		s.idle()
	}
	for i, more := range []string{`}`, `,"stream":true}`} {
		r := s.post("/v1/messages", messages+more, "x-api-key", key)
		mustAll(t, "anthropic", []*reply{r})
		reset, err := time.Parse(time.RFC3339, r.header.Get("anthropic-ratelimit-requests-reset"))
		if r.header.Get("anthropic-ratelimit-requests-remaining") != fmt.Sprint(2-i) || err != nil ||
			time.Until(reset) < 15*time.Hour || r.header.Get("anthropic-ratelimit-input-tokens-limit") != "3000" ||
			r.header.Get("anthropic-ratelimit-tokens-limit") != "5000" ||
			r.header.Get("x-ratelimit-limit-requests") != "" ||
			r.header.Get("anthropic-ratelimit-output-tokens-limit") != "" {
			t.Errorf("%v, %v", err, r.header)
		}
	}
	mustAll(t, "the last", []*reply{s.chat(body, bearer(key)...)})
	r := s.post("/v1/messages", messages+"}", "x-api-key", key)
	if r.status != 429 || !strings.Contains(string(r.body), `"type":"rate_limit_error"`) ||
		r.header.Get("anthropic-ratelimit-requests-remaining") != "0" || r.header.Get("retry-after") == "" {
		t.Errorf("%v, %v", r, r.header)
	}
	if n := s.metrics().sum("cgn_router_limited_total", `limit="requests_per_day"`, `of="key"`); n != 1 {
		t.Errorf("%v refusals are counted", n)
	}
}

// TestLimitErrors checks the bodies and headers of refusals, by which SDKs decide whether to retry.
func TestLimitErrors(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		rates                  limits.Rates
		kind, code, text       string
		retry, afterMs, should bool // Retry-After, Retry-After-Ms, no x-should-retry: false
	}{
		"requests": {limits.Rates{RequestsPerMinute: 1}, "requests", "rate_limit_exceeded",
			`on requests per min \(requests_per_minute\): Limit 1, Used 1, Requested 1\. Please try again in [0-9.]+m?s\.`,
			true, true, true},
		"tokens": {limits.Rates{TokensPerMinute: 100}, "tokens", "rate_limit_exceeded",
			`Limit 100, Used \d+, Requested \d+\. Please try again in [0-9.]+m?s\.`, true, true, true},
		"a day": {limits.Rates{OutputPerDay: 60}, "tokens", "rate_limit_exceeded",
			`on output tokens per day \(output_tokens_per_day\): Limit 60, Used 50, Requested 50\. Please try again in \d+h`,
			true, false, false},
		"quota": {limits.Rates{Budget: 100}, "insufficient_quota", "insufficient_quota",
			`quota of this API key on tokens per month \(budget\): Limit 100, Used \d+, Requested`, true, false, false},
		"never": {limits.Rates{TokensPerMinute: 40}, "tokens", "rate_limit_exceeded",
			`^Request too large for this API key on tokens per min .*: Limit 40, Requested \d+\.`, false, false, false},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			k := newKeyring(t)
			key, _ := k.add(func(r *keys.Record) { r.Limits = c.rates })
			s := serve(t, simulate(t, 1), k.locked)
			body := chatBody("hello", `,"max_tokens":50,"ignore_eos":true`)
			if what != "never" {
				mustAll(t, "the first", []*reply{s.chat(body, bearer(key)...)})
				s.idle()
			}
			for _, stream := range []string{"", `,"stream":true`} {
				r := s.chat(strings.Replace(body, `,"max`, stream+`,"max`, 1), bearer(key)...)
				var page struct {
					Error struct{ Message, Type, Code string }
				}
				if err := json.Unmarshal(r.body, &page); err != nil {
					t.Fatal(err, r)
				}
				e, has := page.Error, func(name string) bool { return r.header.Get(name) != "" }
				if r.status != 429 || e.Type != c.kind || e.Code != c.code ||
					!regexp.MustCompile(c.text).MatchString(e.Message) {
					t.Errorf("%v", r)
				}
				if has("retry-after") != c.retry || has("retry-after-ms") != c.afterMs ||
					(r.header.Get("x-should-retry") != "false") != c.should {
					t.Errorf("%v", r.header)
				}
			}
			if n := chatsOf(s.engines[0]); n > 1 || what == "never" && n > 0 {
				t.Errorf("an engine was asked %d times", n)
			}
		})
	}
}

// chatsOf returns how many chats an engine was asked for.
func chatsOf(e *engine.Engine) (n int) {
	for _, r := range e.Requests() {
		if r.Path == "/v1/chat/completions" {
			n++
		}
	}
	return n
}

// TestLimitsOfSubjects checks whose requests count for which table.
func TestLimitsOfSubjects(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	of := func(tenant string) []string {
		text, _ := k.add(func(r *keys.Record) { r.Tenant = tenant })
		return bearer(text)
	}
	one := func(tenant, model string, n int64) router.LimitTable {
		return router.LimitTable{Tenant: tenant, Model: model, Rates: limits.Rates{RequestsPerDay: n}}
	}
	a1, a2, b, c, d := of("a"), of("a"), of("b"), of("c"), of("d")
	engines := simulate(t, 1, func(c *engine.Config) { c.Models = []string{"small", "large"} })
	s := serve(t, engines, k.locked,
		limited(one("a", "", 3), one("b", "small", 1), one("*", "", 2), one("", "large", 3)),
		func(c *router.Config) { c.Models = []router.ModelConfig{{Name: "small", Aliases: []string{"fast"}}} })
	for i, c := range []struct {
		who   []string
		model string
		want  int
	}{
		{a1, "small", 200}, {a2, "fast", 200}, {a1, "large", 200}, {a2, "small", 429}, // three of tenant a
		{b, "fast", 200}, {b, "small", 429}, {b, "large", 200}, // one of b for small, none other is limited
		{c, "small", 200}, {c, "small", 200}, {c, "large", 429}, // each other tenant has two
		{d, "large", 200}, {d, "large", 429}, {d, "small", 200}, {d, "small", 429}, // large has had three
		{b, "none", 404}, {b, "none", 404},
	} {
		if r := s.chat(asking(c.model, "hello"), c.who...); r.status != c.want {
			t.Errorf("request %d for %s: %v", i, c.model, r)
		}
	}
}

// TestLimitReload checks that a change of limits counts, and that what was used stays used.
func TestLimitReload(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	key, id := k.add(func(r *keys.Record) { r.Limits = limits.Rates{RequestsPerDay: 2} })
	table := func(n int64) router.LimitTable {
		return router.LimitTable{Tenant: "acme", Rates: limits.Rates{RequestsPerDay: n}}
	}
	s := serve(t, simulate(t, 1), k.locked, limited(table(100)))
	ask := func() *reply { return s.chat(chatBody("hello", plain), bearer(key)...) }
	mustAll(t, "two", []*reply{ask(), ask()})
	if r := ask(); r.status != 429 {
		t.Error(r)
	}
	k.edit(func(all []*keys.Record) []*keys.Record {
		for _, r := range all {
			if r.ID == id {
				r.Limits.RequestsPerDay = 4
			}
		}
		return all
	})
	eventually(t, "the key has more", func() bool { return ask().status == 200 })
	reload := func(tables ...router.LimitTable) {
		t.Helper()
		next := settings(t, s.log)
		next.Router.Backends, next.Auth.KeysFile = []string{s.engines[0].URL() + ",id=sim-0"}, k.file
		next.LimitTables = tables
		if _, kept, err := s.ReloadConfig(t.Context(), &next); err != nil || len(kept) > 0 {
			t.Fatal(kept, err)
		}
	}
	ratio := func() float64 { return s.metrics().sum("cgn_router_limit_used_ratio", `tenant="acme"`) }
	if r := ratio(); math.Abs(r-.03) > .001 {
		t.Errorf("%v of the tenant's limit are used", r)
	}
	reload()
	if s.metrics().sum("cgn_router_limit_used_ratio") != 0 {
		t.Error("the table is still there")
	}
	reload(table(100))
	if r := ratio(); math.Abs(r-.03) > .001 {
		t.Errorf("%v of the tenant's limit are used after it came back", r)
	}
	reload(table(1))
	if r := s.chat(chatBody("hello", plain), bearer(key)...); r.status == 200 {
		t.Error(r) // one of 4 of the key is used at least, but the tenant has had its one
	}
}

// TestCountedWithoutFeedback checks that an engine is asked for the usage of a stream that counts,
// although nothing else needs it, and that a client that has not asked for it does not get it.
func TestCountedWithoutFeedback(t *testing.T) {
	t.Parallel()
	table := router.LimitTable{Model: "sim", Rates: limits.Rates{Budget: 8000, Concurrent: 4}}
	s := serve(t, simulate(t, 1), limited(table), func(c *router.Config) { c.Prefix.Feedback = false })
	r := s.chat(chatBody("hello", `,"stream":true,"max_tokens":40,"ignore_eos":true`))
	mustAll(t, "a stream", []*reply{r})
	if strings.Contains(string(r.body), `"usage"`) {
		t.Errorf("the client gets the usage: %v", r)
	}
	streamed := s.used("budget", 8000)
	prompt, completion := charged(t, s.chat(chatBody("hello", `,"max_tokens":40,"ignore_eos":true`)))
	if all := s.used("budget", 8000); streamed != prompt+completion || all != 2*streamed || completion != 40 {
		t.Errorf("%d and %d are counted, %d are used", streamed, all, prompt+completion)
	}
}

// TestStoredResponsesCountOnce checks that reading a stored response does not count its tokens
// again.
func TestStoredResponsesCountOnce(t *testing.T) {
	t.Parallel()
	table := router.LimitTable{Tenant: "default", Rates: limits.Rates{Budget: 80000, RequestsPerDay: 100}}
	s := serve(t, simulate(t, 1), limited(table))
	used := func(limit string, of float64) int {
		s.idle()
		return int(math.Round(s.metrics().sum("cgn_router_limit_used_ratio", `limit="`+limit+`"`) * of))
	}
	made := s.post("/v1/responses", `{"model":"sim","input":"hello","max_output_tokens":20}`)
	mustAll(t, "made", []*reply{made})
	var response struct{ ID string }
	if err := json.Unmarshal(made.body, &response); err != nil {
		t.Fatal(err)
	}
	tokens := used("budget", 80000)
	for range 3 {
		r := s.ask("GET", "/v1/responses/"+response.ID, "")
		mustAll(t, "read", []*reply{r})
		if !strings.Contains(string(r.body), `"output_tokens"`) {
			t.Fatalf("no usage: %v", r)
		}
	}
	mustAll(t, "counted", []*reply{
		s.post("/tokenize", `{"model":"sim","prompt":"hello"}`),
		s.post("/v1/messages/count_tokens", `{"model":"sim","messages":[{"role":"user","content":"hello"}]}`),
	})
	if n := used("budget", 80000); n != tokens || tokens == 0 || used("requests_per_day", 100) != 6 {
		t.Errorf("%d tokens became %d, in %d requests", tokens, n, used("requests_per_day", 100))
	}
}

// TestOneAtATime checks that a client that waits for its answer is never told that it still runs.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	table := router.LimitTable{Model: "sim", Rates: limits.Rates{Concurrent: 1}}
	s := serve(t, simulate(t, 1), limited(table))
	var all []*reply
	for i := range 60 {
		all = append(all, s.chat(chatBody("hello", []string{plain, streaming}[i%2])))
	}
	mustAll(t, "in turn", all)
}

// TestConcurrentLimit checks the limit of requests at a time, which a client that leaves frees.
func TestConcurrentLimit(t *testing.T) {
	t.Parallel()
	table := router.LimitTable{Model: "sim", Rates: limits.Rates{Concurrent: 2}}
	s := serve(t, simulate(t, 1), limited(table))
	var running []*http.Response
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	for range 2 {
		resp, err := s.send(ctx, "POST", "/v1/chat/completions", chatBody("hello", streaming),
			"x-sim-fault", "stall_after=1")
		if err != nil || resp.StatusCode != 200 {
			t.Fatal(resp, err)
		}
		running = append(running, resp)
	}
	r := s.chat(chatBody("hello", plain))
	if r.status != 429 || r.header.Get("retry-after") != "1" || r.header.Get("x-should-retry") != "" ||
		!strings.Contains(string(r.body), "on concurrent requests (concurrent): Limit 2, Used 2, Requested 1.") {
		t.Errorf("%v, %v", r, r.header)
	}
	leave()
	for _, resp := range running {
		resp.Body.Close()
	}
	s.used("", 0)
	mustAll(t, "afterwards", []*reply{s.chat(chatBody("hello", plain)), s.chat(chatBody("hello", plain))})
}

// TestLimitTablesAreChecked checks that a mistake in [[limit]] names its field.
func TestLimitTablesAreChecked(t *testing.T) {
	one := limits.Rates{Concurrent: 1}
	for want, tables := range map[string][]router.LimitTable{
		"limit[0].tenant: empty, as model is":                        {{Rates: one}},
		`limit[0].tenant: "a b" holds ' '`:                           {{Tenant: "a b", Rates: one}},
		`limit[0].model: "si*" holds '*'`:                            {{Model: "si*", Rates: one}},
		`limit[0].model: "*" holds '*'`:                              {{Tenant: "a", Model: "*", Rates: one}},
		`limit[0].model: "fast" is an alias of small`:                {{Model: "fast", Rates: one}},
		"limit[1].tenant: another table is for the same tenant":      {{Tenant: "a", Rates: one}, {Tenant: "a", Rates: one}},
		"limit[0].requests_per_minute: 0, as all limits of the":      {{Tenant: "a"}},
		"limit[0]: tokens_per_day: -1 is not in 1..1000000000000":    {{Tenant: "a", Rates: limits.Rates{TokensPerDay: -1}}},
		"limit[0]: budget: 2000000000000 is not in 1..1000000000000": {{Tenant: "a", Rates: limits.Rates{Budget: 2e12}}},
		"": {{Tenant: "a", Rates: one}, {Tenant: "a", Model: "small", Rates: one}, {Tenant: "*", Rates: one},
			{Model: "small", Rates: one}, {Model: "not known here", Rates: one}},
	} {
		c := settings(t, &logged{t: t})
		c.Router.Backends, c.LimitTables = []string{"http://127.0.0.1:8001"}, tables
		c.Models = []router.ModelConfig{{Name: "small", Aliases: []string{"fast"}}}
		err := c.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v", want, err)
		}
	}
	c := settings(t, &logged{t: t})
	c.Router.Backends, c.Limits.Output = []string{"http://127.0.0.1:8001"}, 0
	c.Models = []router.ModelConfig{{Name: "small", MaxOutput: -1}}
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "limits.output_tokens: 0 is too small") ||
		!strings.Contains(err.Error(), "model[0].max_output: -1 is negative") {
		t.Error(err)
	}
}
