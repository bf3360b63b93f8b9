package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// chain runs a router with the cascade smart, of the models small and large. An engine each serves
// them.
func chain(t *testing.T, threshold float64, tweak ...func(*router.Config)) (s *site, small, large *engine.Engine) {
	t.Helper()
	engines := append(
		simulate(t, 1, func(c *engine.Config) { c.Models, c.Quality = []string{"small"}, 0.5 }),
		simulate(t, 1, func(c *engine.Config) { c.Models, c.Quality, c.Seed = []string{"large"}, 1, 1 })...)
	s = serve(t, engines, append([]func(*router.Config){func(c *router.Config) {
		c.Router.Cascade.Enabled, c.Router.Cascade.Threshold = true, threshold
		c.Models = []router.ModelConfig{{Name: "smart", Cascade: []string{"small", "large"}}}
	}}, tweak...)...)
	return s, engines[0], engines[1]
}

// Every answer is sure enough for the first threshold, and none for the second.
const (
	lenient = -100
	strict  = 0
)

// early lets streams be judged by their first tokens.
func early(tokens int) func(*router.Config) {
	return func(c *router.Config) { c.Router.Cascade.Judge, c.Router.Cascade.Tokens = "stream", tokens }
}

func smart(more string) string {
	return `{"model":"smart","messages":[{"role":"user","content":"hello"}]` + more + `}`
}

// told is what a client sees of an answer: the model, the ids in it, its text and usage.
type told struct {
	model    string
	ids      int
	text     string
	logprobs int // objects that are not null
	done     bool
	output   int // completion tokens of the usage
}

// tellOf reads a chat, a completion or the stream of one.
func tellOf(t *testing.T, r *reply) (a told) {
	t.Helper()
	type piece struct {
		ID, Model string
		Choices   []struct {
			Delta, Message struct{ Content string }
			Text           string
			Logprobs       json.RawMessage
		}
		Usage struct {
			Output int `json:"completion_tokens"`
		}
	}
	ids := map[string]bool{}
	read := func(doc string) {
		var p piece
		if err := json.Unmarshal([]byte(doc), &p); err != nil {
			t.Fatalf("%v in %s", err, doc)
		}
		ids[p.ID], a.model = true, p.Model
		for _, c := range p.Choices {
			a.text += c.Delta.Content + c.Message.Content + c.Text
			if len(c.Logprobs) > 0 && string(c.Logprobs) != "null" {
				a.logprobs++
			}
		}
		a.output += p.Usage.Output
	}
	if !strings.HasPrefix(r.header.Get("content-type"), "text/event-stream") {
		a.done = true
		read(string(r.body))
	} else {
		for _, e := range r.events() {
			if a.done = e.data == "[DONE]"; !a.done {
				read(e.data)
			}
		}
	}
	a.ids = len(ids)
	return a
}

// chats counts the engine's requests for an answer.
func chats(e *engine.Engine) (n int) {
	for _, r := range e.Requests() {
		if strings.Contains(r.Path, "completions") {
			n++
		}
	}
	return n
}

// steps and unjudged read the counters of the cascade smart.
func (p page) steps(model, outcome string) float64 {
	return p.sum("cgn_router_cascade_steps_total", `model="smart"`, `step="`+model+`"`, `outcome="`+outcome+`"`)
}

func (p page) unjudged(reason string) float64 {
	return p.sum("cgn_router_cascade_unjudged_total", `model="smart"`, `reason="`+reason+`"`)
}

// step is the step that has answered, from 1.
func (r *reply) step() string { return r.header.Get("x-cgn-cascade-step") }

// dropped returns the tokens that the steps before have cost.
func (r *reply) dropped() (prompt, output int) {
	fmt.Sscanf(r.header.Get("x-cgn-cascade-tokens"), "%d/%d", &prompt, &output)
	return prompt, output
}

// cascadeForms are the forms of requests whose answers can be judged.
var cascadeForms = map[string]struct{ path, body string }{
	"chat":              {"/v1/chat/completions", smart(`,"max_tokens":24`)},
	"chat stream":       {"/v1/chat/completions", smart(`,"max_tokens":24,"stream":true`)},
	"completion":        {"/v1/completions", `{"model":"smart","prompt":"hello","max_tokens":24}`},
	"completion stream": {"/v1/completions", `{"model":"smart","prompt":"hello","max_tokens":24,"stream":true}`},
}

// TestCascade checks every form: the client gets the answer of the small model if that model was
// confident, and otherwise of the large one, in each case as if it had asked that model itself.
func TestCascade(t *testing.T) {
	t.Parallel()
	for name, judge := range map[string]func(*router.Config){"whole": func(*router.Config) {}, "early": early(8)} {
		for _, threshold := range []float64{lenient, strict} {
			t.Run(fmt.Sprint(name, threshold), func(t *testing.T) {
				s, small, large := chain(t, threshold, judge)
				model, step, outcome, e := "small", "1", "confident", small
				if threshold == strict {
					model, step, outcome, e = "large", "2", "escalated", large
				}
				for form, c := range cascadeForms {
					alone := s.post(c.path, strings.Replace(c.body, `"smart"`, `"`+model+`"`, 1))
					r := s.post(c.path, c.body)
					got, want := tellOf(t, r), tellOf(t, alone)
					if got != want || got.ids != 1 || !got.done || r.status != 200 || r.err != nil {
						t.Errorf("%s: %+v, want %+v; %v", form, got, want, r)
					}
					if h := r.step(); h != step {
						t.Errorf("%s: step %q, want %s", form, h, step)
					}
					sent := string(lastTo(t, e, c.path).Body)
					if strings.Contains(sent, "logprobs") != (threshold == lenient) {
						t.Errorf("%s: the engine got %s", form, sent)
					}
				}
				page, n := s.metrics(), float64(len(cascadeForms))
				if got := page.steps("small", outcome); got != n {
					t.Errorf("%s steps: %v, want %v", outcome, got, n)
				}
				if got := page.steps("large", "last"); got > 0 != (threshold == strict) {
					t.Errorf("last steps: %v", got)
				}
			})
		}
	}
}

// TestCascadeCosts checks that the client is told what the dropped answers have cost.
func TestCascadeCosts(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access.log")
	s, _, _ := chain(t, strict, func(c *router.Config) { c.Log.Access = file })
	r := s.chat(smart(`,"max_tokens":24`), "x-request-id", "r")
	s.idle() // so that all steps are counted
	prompt, output := r.dropped()
	if prompt < 1 || output != 24 {
		t.Errorf("cascade tokens %d/%d", prompt, output)
	}
	page := s.metrics()
	for kind, want := range map[string]int{"prompt": prompt, "completion": output} {
		got := page.sum("cgn_router_cascade_tokens_total", `kind="`+kind+`"`, `model="smart"`, `step="small"`)
		if got != float64(want) {
			t.Errorf("%s tokens: %v, want %d", kind, got, want)
		}
	}
	for _, model := range []string{"small", "large"} {
		if got := page.sum("cgn_router_completion_tokens_total", `model="`+model+`"`); got != 24 {
			t.Errorf("completion tokens of %s: %v", model, got)
		}
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	line := accessLines(t, file)["r"]
	if line.Cascade != "smart" || line.CascadeStep != 2 || line.Model != "large" || line.CascadeEarlier <= 0 ||
		line.Completion != 24 || line.Attempts != 2 {
		t.Errorf("access log: %+v", line)
	}
}

// TestCascadeKeepsWhatTheClientAskedFor checks that log-probabilities stay in the answer of a
// client that asks for them.
func TestCascadeKeepsWhatTheClientAskedFor(t *testing.T) {
	t.Parallel()
	s, small, _ := chain(t, lenient)
	for _, stream := range []string{"", `,"stream":true`} {
		r := s.chat(smart(`,"max_tokens":4,"logprobs":true,"top_logprobs":3` + stream))
		if got := tellOf(t, r); got.model != "small" || got.logprobs == 0 ||
			!strings.Contains(string(r.body), `"top_logprobs":[{`) {
			t.Errorf("%+v: %v", got, r)
		}
	}
	r := s.chat(smart(`,"max_tokens":4,"logprobs":false`))
	if got := tellOf(t, r); got.model != "small" || got.logprobs != 0 {
		t.Errorf("logprobs false: %v", r)
	}
	if body := string(lastTo(t, small, "/v1/chat/completions").Body); !strings.Contains(body, `"logprobs":true`) {
		t.Errorf("the engine got %s", body)
	}
}

// TestCascadeCannotJudge checks that requests whose answers cannot be judged go to the model that
// the chain names for them, and that no other model is asked.
func TestCascadeCannotJudge(t *testing.T) {
	t.Parallel()
	const tool = `[{"type":"function","function":{"name":"f","parameters":{}}}]`
	asks := map[string]struct{ path, more string }{
		"tools":   {"/v1/chat/completions", `,"tools":` + tool},
		"format":  {"/v1/chat/completions", `,"response_format":{"type":"json_object"}`},
		"choices": {"/v1/chat/completions", `,"n":2`},
		"api":     {"/v1/embeddings", `,"input":"hello"`},
	}
	for _, direct := range []string{"", "small"} {
		s, small, large := chain(t, strict, func(c *router.Config) { c.Models[0].CascadeDirect = direct })
		e, other, step := large, small, "2"
		if direct == "small" {
			e, other, step = small, large, "1"
		}
		for reason, c := range asks {
			r := s.post(c.path, smart(`,"max_tokens":4`+c.more))
			if r.status != 200 || r.step() != step {
				t.Errorf("%s: step %q; %v", reason, r.step(), r)
			}
			if got := s.metrics().unjudged(reason); got != 1 {
				t.Errorf("%s is counted %v times", reason, got)
			}
		}
		if chats(e) != 3 || chats(other) != 0 {
			t.Errorf("direct %q: %d and %d requests", direct, chats(e), chats(other))
		}
		for _, judged := range []string{`,"tools":[]`, `,"tools":` + tool + `,"tool_choice":"none"`, `,"n":1`,
			`,"response_format":{"type":"text"}`} {
			if r := s.chat(smart(`,"max_tokens":4` + judged)); r.step() != "2" || r.attempts() != "2" {
				t.Errorf("%s is not judged: %v", judged, r)
			}
		}
	}
}

// TestCascadePinned checks that a request for one node goes to the model that this node serves.
func TestCascadePinned(t *testing.T) {
	t.Parallel()
	s, _, _ := chain(t, strict)
	for node, step := range map[string]string{"sim-0": "1", "sim-1": "2"} {
		r := s.chat(smart(`,"max_tokens":4`), "x-cgn-node", node)
		if r.status != 200 || r.node() != node || r.step() != step {
			t.Errorf("%s: %v", node, r)
		}
	}
}

// TestCascadeGoesOnWithoutAnAnswer checks that the next model answers if a model does not, and that
// the small model's answer counts if no other can follow.
func TestCascadeGoesOnWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]*engine.Fault{
		"500": {Status: 500}, "429": {Status: 429}, "400": {Status: 400}, "reset": {Reset: true},
		"dies": {DieAfter: new(3)}, "truncated": {Truncate: true},
	} {
		t.Run(name, func(t *testing.T) {
			s, small, _ := chain(t, lenient)
			small.SetFault(fault)
			for form, c := range cascadeForms {
				if r := s.post(c.path, c.body); tellOf(t, r).model != "large" || r.step() != "2" {
					t.Errorf("%s: %v", form, r)
				}
			}
		})
	}
	s, small, large := chain(t, strict)
	small.SetFault(&engine.Fault{Status: 404})
	if r := s.chat(smart("")); r.status != 404 || chats(large) != 0 {
		t.Errorf("an error of the client: %v", r)
	}
	small.SetFault(nil)
	large.Kill()
	eventually(t, "the large model is gone", func() bool { return s.eligible() == 1 })
	for form, c := range cascadeForms {
		if r := s.post(c.path, c.body); tellOf(t, r).model != "small" || r.step() != "1" {
			t.Errorf("%s: %v", form, r)
		}
	}
	if got := s.metrics().unjudged("no_next"); got != 4 {
		t.Errorf("no_next is counted %v times", got)
	}
}

// TestCascadeClosesTheSmallStream checks that an early judgement ends the small model's work.
func TestCascadeClosesTheSmallStream(t *testing.T) {
	t.Parallel()
	s, small, _ := chain(t, strict, early(8))
	r := s.chat(smart(`,"max_tokens":1000,"stream":true`))
	if got := tellOf(t, r); got.model != "large" || got.output != 0 || !got.done {
		t.Errorf("%+v", got)
	}
	eventually(t, "the small engine is idle", func() bool { return small.Stats().Running == 0 })
	if prompt, output := r.dropped(); output < 8 || output > 900 || prompt == 0 {
		t.Errorf("cascade tokens %d/%d", prompt, output)
	}
}

// TestCascadeIsBounded checks that an answer beyond max_held, and one that comes slowly, goes to
// the client without a judgement, and complete.
func TestCascadeIsBounded(t *testing.T) {
	t.Parallel()
	s, _, _ := chain(t, strict, func(c *router.Config) { c.Router.Cascade.MaxHeld = 16 << 10 })
	for form, c := range cascadeForms {
		r := s.post(c.path, strings.Replace(c.body, `"max_tokens":24`, `"max_tokens":400`, 1))
		if got := tellOf(t, r); got.model != "small" || len(got.text) != 1600 || !got.done || r.err != nil {
			t.Errorf("%s: %+v; %v", form, got, r)
		}
	}
	if got := s.metrics().unjudged("bound"); got != 4 {
		t.Errorf("bound is counted %v times", got)
	}
	slow, _, _ := chain(t, strict, early(1000), func(c *router.Config) {
		c.Router.Cascade.Latency = config.Duration(5 * time.Millisecond)
	})
	r := slow.chat(smart(`,"max_tokens":50,"stream":true`))
	if got := tellOf(t, r); got != (told{model: "small", ids: 1, text: got.text, done: true}) || len(got.text) != 200 {
		t.Errorf("late: %+v; %v", got, r)
	}
	if got := slow.metrics().unjudged("latency"); got != 1 {
		t.Errorf("latency is counted %v times", got)
	}
}

// TestCascadeClientLeaves checks that a client that leaves during a trial leaves nothing behind.
func TestCascadeClientLeaves(t *testing.T) {
	t.Parallel()
	s, small, large := chain(t, strict)
	for _, stream := range []string{"", `,"stream":true`} {
		ctx, leave := context.WithCancel(t.Context())
		go func() {
			for small.Stats().Running == 0 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			leave()
		}()
		body := smart(`,"max_tokens":100000` + stream)
		if resp, err := s.send(ctx, http.MethodPost, "/v1/chat/completions", body); err == nil {
			resp.Body.Close()
			t.Errorf("an answer: %v", resp.Status)
		}
		eventually(t, "the small engine is idle", func() bool { return small.Stats().Running == 0 })
		s.idle()
	}
	if chats(large) != 0 {
		t.Error("the large model was asked")
	}
}

// TestCascadeDeadline checks that the client's deadline covers the chain: a small model that cannot
// be judged in time is not asked, and an answer that nothing can follow in time counts. It runs
// alone, because the router learns how fast the models are.
func TestCascadeDeadline(t *testing.T) {
	s, small, large := chain(t, strict)
	const asks = `,"max_tokens":600`
	for range 2 { // the router learns that both models need 1.2 s
		mustAll(t, "learning", together(12, func(i int) *reply {
			return s.chat(strings.Replace(smart(asks+`,"stream":true`), "smart", []string{"small", "large"}[i%2], 1))
		}))
	}
	before := chats(small)
	r := s.chat(smart(asks+`,"stream":true`), "x-cgn-deadline-ms", "1000")
	if chats(small) != before || r.step() != "2" {
		t.Errorf("the small model has %d requests; %v", chats(small)-before, r)
	}
	if got := s.metrics().steps("small", "skipped"); got != 1 {
		t.Errorf("skipped is counted %v times", got)
	}
	if r = s.chat(smart(asks), "x-cgn-deadline-ms", "2200"); tellOf(t, r).model != "small" {
		t.Errorf("no time for two models: %v", r)
	}
	if got := s.metrics().unjudged("deadline"); got != 1 {
		t.Errorf("deadline is counted %v times", got)
	}
	large.SetFault(&engine.Fault{Hang: true})
	if r = s.chat(smart(`,"max_tokens":8`), "x-cgn-deadline-ms", "1000"); r.status != 504 {
		t.Errorf("the large model does not answer: %v", r)
	}
}

// TestCascadeIsListed checks what people and clients see of a cascade.
func TestCascadeIsListed(t *testing.T) {
	t.Parallel()
	s, _, _ := chain(t, strict)
	if _, page := s.get(s.url + "/v1/models"); !strings.Contains(string(page), `"id":"smart"`) {
		t.Errorf("models: %s", page)
	}
	if status, page := s.get(s.url + "/v1/models/smart"); status != 200 {
		t.Errorf("%d %s", status, page)
	}
	if e := s.explain(smart("")); e.Winner != "sim-0" {
		t.Errorf("explained: %+v", e)
	}
	off, _, _ := chain(t, strict, func(c *router.Config) { c.Router.Cascade.Enabled = false })
	if r := off.chat(smart("")); r.status != 503 || r.step() != "" {
		t.Errorf("not enabled: %v", r)
	}
	if _, problems := off.models(); !strings.Contains(problems, "router.cascade.enabled is false") {
		t.Errorf("problems: %s", problems)
	}
	if off.log.count("model[0].cascade has no effect") == 0 {
		t.Error("the log does not tell that the cascade has no effect")
	}
}

// TestCascadeWithAnUnknownModel checks that a model of a chain that does not exist is named to the
// client, and once in the log.
func TestCascadeWithAnUnknownModel(t *testing.T) {
	t.Parallel()
	unfit := smart(`,"n":2`)
	s, small, _ := chain(t, lenient, func(c *router.Config) { c.Models[0].Cascade = []string{"small", "lage"} })
	if r := s.chat(smart(`,"max_tokens":4`)); r.status != 200 || r.step() != "1" {
		t.Errorf("the small model answers: %v", r)
	}
	const line = "a model's cascade cannot answer as configured"
	eventually(t, "the warning", func() bool { return s.log.count(line) > 0 })
	small.SetFault(&engine.Fault{Status: 500})
	for _, body := range []string{unfit, smart("")} {
		r := s.chat(body)
		if text := string(r.body); r.status != 503 || !strings.Contains(text, `"code":"cascade_model_missing"`) ||
			!strings.Contains(text, "`smart` is a cascade of small, lage, and no node here serves `lage`") {
			t.Errorf("%v", r)
		}
	}
	resp, err := s.client.Post(s.admin+"/debug/route", "application/json", strings.NewReader(unfit))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if page, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 503 ||
		!strings.Contains(string(page), "serves `lage`") {
		t.Errorf("explained: %s %s %v", resp.Status, page, err)
	}
	if _, problems := s.models(); s.log.count(line) != 1 || !strings.Contains(problems, "its cascade names lage") {
		t.Errorf("problems: %s\n%s", problems, s.log.text())
	}
}

// TestCascadeOfEtcd checks that a cascade in etcd is in force without a restart, with its
// thresholds, and that a step that nothing serves is a problem and no failure.
func TestCascadeOfEtcd(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t).endpoint
	store := dialEtcd(t, etcd)
	s, _, _ := chain(t, strict, func(c *router.Config) {
		c.Etcd.Endpoints, c.Models[0].Name, c.Models[0].Cascade = []string{etcd}, "other", nil
	})
	put := func(c cluster.Cascade, step string) {
		t.Helper()
		m := cluster.Model{Aliases: []string{"clever"}, Cascade: c}
		if err := store.PutModel(t.Context(), "smart", m); err != nil {
			t.Fatal(err)
		}
		eventually(t, "step "+step, func() bool {
			r := s.chat(strings.Replace(smart(`,"max_tokens":4`), "smart", "clever", 1))
			return r.status == 200 && r.step() == step
		})
	}
	put(cluster.Cascade{Chain: []string{"small", "large"}, Thresholds: []float64{lenient}}, "1")
	put(cluster.Cascade{Chain: []string{"small", "large"}}, "2")
	put(cluster.Cascade{Chain: []string{"none", "small", "large"}, Thresholds: []float64{lenient, strict}}, "3")
	if _, problems := s.models(); !strings.Contains(problems, "its cascade names none, which no node serves") {
		t.Errorf("problems: %s", problems)
	}
	outer := cluster.Model{Aliases: []string{"outer"}, Cascade: cluster.Cascade{Chain: []string{"clever", "large"}}}
	if err := store.PutModel(t.Context(), "large", outer); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the cascade of a cascade is named", func() bool {
		_, problems := s.models()
		return strings.Contains(problems, "its cascade names clever, which has a cascade itself, and does not count")
	})
	if r := s.chat(strings.Replace(smart(`,"max_tokens":4`), "smart", "outer", 1)); r.status != 200 || r.step() != "" {
		t.Errorf("a cascade of a cascade: %v", r)
	}
	eventually(t, "the log has it", func() bool { return s.log.count("names clever, which has a cascade itself") == 1 })
}
