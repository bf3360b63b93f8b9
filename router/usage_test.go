package router_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/tally"
	"github.com/cognitora/dataplane/sim/engine"
)

// tallied is a tweak for a router that adds up use in dir.
func tallied(dir string) func(*router.Config) {
	return func(c *router.Config) { c.Usage.Dir, c.Usage.KeepDays = dir, 400 }
}

// usage returns the sums of the router's answer about today, and about yesterday in case that the
// test began then.
func (s *site) usage() map[tally.Subject]tally.Use {
	s.t.Helper()
	s.idle()
	all := map[tally.Subject]tally.Use{}
	today := tally.DayOf(time.Now())
	for _, d := range []tally.Day{today - 1, today} {
		var a tally.Answer
		status, doc := s.get(s.admin + "/usage?day=" + d.String())
		if err := json.Unmarshal(doc, &a); status != 200 || err != nil || a.Day != d {
			s.t.Fatalf("%d %v %.200s", status, err, doc)
		}
		for _, f := range a.Files {
			addUse(all, f)
		}
	}
	return all
}

func addUse(all map[tally.Subject]tally.Use, f tally.File) {
	for _, r := range f.Rows {
		u := all[r.Subject]
		u.Add(&r.Use)
		all[r.Subject] = u
	}
}

// charge adds the usage of an answer in any API's words to u, as one request.
func charge(t *testing.T, u *tally.Use, r *reply) {
	t.Helper()
	mustAll(t, "charged", []*reply{r})
	doc := r.body
	if all := eventsOf(r.body); len(all) > 0 {
		for _, e := range all {
			if strings.Contains(e.data, `"usage":{`) {
				doc = []byte(e.data)
			}
		}
	}
	var page struct {
		Usage struct {
			Prompt     int64 `json:"prompt_tokens"`
			Completion int64 `json:"completion_tokens"`
			Input      int64 `json:"input_tokens"`
			Output     int64 `json:"output_tokens"`
			Read       int64 `json:"cache_read_input_tokens"`
			Chat       struct {
				Cached int64 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
			Responses struct {
				Cached int64 `json:"cached_tokens"`
			} `json:"input_tokens_details"`
		}
	}
	if err := json.Unmarshal(doc, &page); err != nil || page.Usage.Prompt+page.Usage.Input == 0 {
		t.Fatalf("no usage, %v: %v", err, r)
	}
	p := page.Usage
	u.Add(&tally.Use{Requests: 1, Prompt: p.Prompt + p.Input + p.Read, Completion: p.Completion + p.Output,
		Cached: p.Chat.Cached + p.Responses.Cached + p.Read})
}

// TestUsageIsWhatEnginesReport checks the sums of a router without keys and limits against the
// engines' reports, for each API, and that the client of a stream gets only what it has asked for.
func TestUsageIsWhatEnginesReport(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1), tallied(t.TempDir()), func(c *router.Config) {
		c.Prefix.Feedback = false
		c.Models = []router.ModelConfig{{Name: "sim", Aliases: []string{"alias"}}}
	})
	var want tally.Use
	long := document(1, 4000)
	const stream = `,"stream":true,"max_tokens":20,"ignore_eos":true`
	for range 2 { // the second time the engine has the prompt
		charge(t, &want, s.chat(chatBody(long, `,"max_tokens":8`)))
		charge(t, &want, s.chat(chatBody(long, stream+`,"stream_options":{"include_usage":true}`)))
	}
	charge(t, &want, s.chat(strings.Replace(chatBody(long, `,"max_tokens":8,"n":3`), `"sim"`, `"alias"`, 1)))
	for path, body := range map[string]string{
		"/v1/completions": `{"model":"sim","prompt":["one","two"],"max_tokens":8}`,
		"/v1/embeddings":  `{"model":"sim","input":["one","two"]}`,
		"/v1/responses":   `{"model":"sim","input":"hello","max_output_tokens":20}`,
		"/v1/messages":    `{"model":"sim","max_tokens":8,"messages":[{"role":"user","content":"hello"}]}`,
	} {
		charge(t, &want, s.post(path, body))
	}
	if want.Cached == 0 {
		t.Error("the engine has no cache")
	}
	of := tally.Subject{Tenant: "default", Model: "sim"}
	if got := s.usage(); len(got) != 1 || got[of] != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	r := s.chat(chatBody(long, stream))
	mustAll(t, "a stream", []*reply{r})
	if bytes.Contains(r.body, []byte(`"usage"`)) {
		t.Errorf("the client gets the usage: %v", r)
	}
	got := s.usage()[of]
	if got.Completion != want.Completion+20 || got.Prompt < want.Prompt+500 || got.Estimated != 0 {
		t.Errorf("%+v after %+v", got, want)
	}
	for _, r := range []*reply{ // requests without tokens; n that is no number is the engine's to refuse
		s.post("/tokenize", `{"model":"sim","prompt":"hello"}`),
		s.chat(chatBody("hello", ""), "x-sim-fault", "status=400"), s.chat(chatBody("hello", `,"n":"two"`)),
	} {
		if r.status >= 500 || strings.Contains(string(r.body), "whole numbers") {
			t.Error(r)
		}
	}
	want, got = got, s.usage()[of]
	if got.Requests != want.Requests+3 || got.Prompt != want.Prompt || got.Completion != want.Completion {
		t.Errorf("%+v after %+v", got, want)
	}
}

// TestUsageThatIsLostIsLogged checks that a router that cannot write usage at its end says so.
func TestUsageThatIsLostIsLogged(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "usage")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := serve(t, simulate(t, 1), tallied(dir))
	if err := os.Rename(dir, dir+"-away"); err != nil {
		t.Fatal(err)
	}
	mustAll(t, "a request", []*reply{s.chat(chatBody("hello", plain))})
	s.drain()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"usage is lost", "1 requests not written", "usage.dir=" + dir} {
		if n := s.log.count(want); n != 1 {
			t.Errorf("%d lines with %s", n, want)
		}
	}
}

// TestUsageOfTrouble checks what requests count for that are refused, retried, left or not counted
// by their engine, and that names that clients make up get no rows.
func TestUsageOfTrouble(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	key, id := k.add()
	poor, _ := k.add(func(r *keys.Record) { r.Tenant, r.Limits = "poor", limits.Rates{TokensPerMinute: 20} })
	engines := simulate(t, 2, func(c *engine.Config) { c.RecordRequests = 1000 })
	s := serve(t, engines, k.locked, tallied(t.TempDir()))
	of := tally.Subject{Tenant: "acme", Key: id, Model: "sim"}
	want := tally.Use{}
	check := func(what string) {
		t.Helper()
		if got := s.usage(); len(got) > 1 || got[of] != want {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	body := chatBody("hello", `,"max_tokens":50,"ignore_eos":true`)
	for i := range 20 {
		s.chat(asking(fmt.Sprint("made-up-", i), "hello"), bearer(key)...)
		s.chat(`{"model":5}`, bearer(key)...)
		s.chat(body, bearer("cgn_nobody")...)
		if r := s.chat(body, bearer(poor)...); r.status != 429 {
			t.Error(r)
		}
	}
	for _, fault := range []string{"status=503", "reset", "garbage"} {
		if r := s.chat(body, append(bearer(key), "x-sim-fault", fault)...); r.status < 500 {
			t.Error(r)
		}
	}
	check("refused")
	s.engines[0].SetFault(&engine.Fault{Reset: true})
	for range 8 {
		charge(t, &want, s.chat(body, bearer(key)...))
	}
	noFault(s.engines[0])
	check("retried")
	s.leave(body, "hang", 0, key)
	u := s.usage()[of]
	want.Requests, want.Completion, want.Estimated = want.Requests+1, want.Completion+50, 1
	if want.Prompt++; u.Prompt > want.Prompt && u.Prompt < want.Prompt+20 {
		want.Prompt = u.Prompt // one for each four bytes
	}
	check("left before an answer")
	s.leave(strings.Replace(body, `,"max`, `,"stream":true,"max`, 1), "stall_after=30", 30, key)
	u = s.usage()[of]
	if n := u.Completion - want.Completion; n < 26 || n > 31 || u.Requests != want.Requests+1 || u.Estimated != 2 {
		t.Errorf("left after 30 tokens: %+v after %+v", u, want)
	}
}

// leave sends a request, and leaves once a node was asked and the answer has so many tokens.
func (s *site) leave(body, fault string, tokens int, key string) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	asked := func() (n int) {
		for _, e := range s.engines {
			n += chatsOf(e)
		}
		return n
	}
	before, left := asked(), make(chan struct{})
	go func() {
		defer close(left)
		resp, err := s.send(ctx, "POST", "/v1/chat/completions", body, append(bearer(key), "x-sim-fault", fault)...)
		if err == nil {
			defer resp.Body.Close()
			readTokens(s.t, resp, `"content":"`, tokens)
			cancel()
		}
	}()
	eventually(s.t, "an engine is asked", func() bool { return asked() > before })
	if tokens == 0 {
		cancel()
	}
	<-left
}

// TestUsageOfPlans checks that a cascade counts for its own name, for the answer that the client
// gets, and that a prompt that is handed over counts once.
func TestUsageOfPlans(t *testing.T) {
	t.Parallel()
	s, _, _ := chain(t, strict, tallied(t.TempDir()))
	var want tally.Use
	for range 3 {
		charge(t, &want, s.chat(smart(`,"max_tokens":8`)))
	}
	if got := s.usage(); len(got) != 1 || got[tally.Subject{Tenant: "default", Model: "smart"}] != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	d := divide(t, 1, 1, tallied(t.TempDir()))
	want = tally.Use{}
	for i := range 3 {
		charge(t, &want, d.chat(chatBody(longPrompt(fmt.Sprint("request ", i)), `,"max_tokens":8`)))
	}
	if n := d.handovers("split"); n != 3 {
		t.Errorf("%v prompts are handed over", n)
	}
	got := d.usage()[tally.Subject{Tenant: "default", Model: "sim"}]
	if got.Cached = want.Cached; got != want { // the prefill node's, which the client is not told
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestUsageAddsUp checks that restarts and several routers on one directory lose nothing and count
// nothing twice, and that each router answers for the whole directory.
func TestUsageAddsUp(t *testing.T) {
	t.Parallel()
	dir, engines := t.TempDir(), simulate(t, 1)
	k := newKeyring(t)
	a, ida := k.add(func(r *keys.Record) { r.Tenant = "a" })
	b, idb := k.add(func(r *keys.Record) { r.Tenant = "b" })
	want := map[tally.Subject]tally.Use{}
	ask := func(s *site, n int) {
		t.Helper()
		for range n {
			for tenant, key := range map[string][2]string{"a": {a, ida}, "b": {b, idb}} {
				of := tally.Subject{Tenant: tenant, Key: key[1], Model: "sim"}
				u := want[of]
				charge(t, &u, s.chat(chatBody("hello "+tenant, plain), bearer(key[0])...))
				want[of] = u
			}
		}
	}
	first := serve(t, engines, k.locked, tallied(dir))
	second := serve(t, engines, k.locked, tallied(dir))
	ask(first, 3)
	ask(second, 2)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	if got := second.usage(); !maps.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	again := serve(t, engines, k.locked, tallied(dir))
	ask(again, 1)
	ask(second, 1)
	for _, s := range []*site{second, again} {
		s.idle()
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
	}
	got := map[tally.Subject]tally.Use{}
	for d := tally.DayOf(time.Now()) - 1; d <= tally.DayOf(time.Now()); d++ {
		files, err := tally.ReadDay(dir, d)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			addUse(got, f)
		}
	}
	if !maps.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestUsageErrors checks the errors of the configuration and of the admin port, and the metrics.
func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for dir, want := range map[string]string{
		filepath.Join(t.TempDir(), "none"): "usage.dir: ", "/dev/null": "usage.dir: /dev/null is not a directory",
	} {
		c := settings(t, &logged{t: t})
		c.Router.Backends = []string{"http://127.0.0.1:1"}
		c.Usage.Dir = dir
		if _, err := router.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		if err := c.Examine(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("examined: %v, want %s", err, want)
		}
		if c.Usage.KeepDays = -1; config.Check(&c) == nil {
			t.Error("keep_days = -1 is taken")
		}
	}
	off := serve(t, simulate(t, 1))
	if status, doc := off.get(off.admin + "/usage"); status != 404 || !bytes.Contains(doc, []byte("usage.dir")) ||
		strings.Contains(off.metricsText(), "cgn_router_usage") {
		t.Errorf("%d %s", status, doc)
	}
	dir := t.TempDir()
	s := serve(t, simulate(t, 1), tallied(dir))
	if status, doc := s.get(s.admin + "/usage?day=today"); status != 400 || !bytes.Contains(doc, []byte("2026-11-29")) {
		t.Errorf("%d %s", status, doc)
	}
	mustAll(t, "counted", []*reply{s.chat(chatBody("hello", plain))})
	s.idle()
	if p := s.metrics(); p.sum("cgn_router_usage_rows") != 1 || p.sum("cgn_router_usage_unwritten") != 0 ||
		p.sum("cgn_router_usage_folded_total")+p.sum("cgn_router_usage_lost_total") != 0 {
		t.Error(p)
	}
	bad := filepath.Join(dir, "2026-01-01.0123456789abcdef.jsonl")
	if err := os.WriteFile(bad, []byte("{\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	status, doc := s.get(s.admin + "/usage?day=2026-01-01")
	if status != 500 || !bytes.Contains(doc, []byte("line 1")) {
		t.Errorf("%d %s", status, doc)
	}
}
