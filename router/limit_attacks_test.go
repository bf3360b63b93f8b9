package router_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/limits"
	tokenizer "github.com/cognitora/dataplane/router/tokens"
	"github.com/cognitora/dataplane/sim/engine"
)

// ofSim limits the model sim, without keys.
func ofSim(rates limits.Rates) func(*router.Config) {
	rates.Concurrent = 1000
	return limited(router.LimitTable{Model: "sim", Rates: rates})
}

// TestRequestsAtTheEdge: requests at the same time never generate more than the limit, streams
// among them.
func TestRequestsAtTheEdge(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2), ofSim(limits.Rates{OutputPerDay: 500}))
	var mu sync.Mutex
	answered := 0
	together(64, func(i int) *reply {
		more := `,"max_tokens":50,"ignore_eos":true`
		if i%2 == 0 {
			more += `,"stream":true`
		}
		r := s.chat(chatBody(fmt.Sprint("request ", i), more))
		mu.Lock()
		defer mu.Unlock()
		if r.status == 200 {
			answered++
		} else if r.status != 429 {
			t.Error(r)
		}
		return r
	})
	if used := s.used("output_tokens_per_day", 500); answered != 10 || used < 499 || used > 500 {
		t.Errorf("%d requests of 50 tokens were answered, and %d tokens are used", answered, used)
	}
}

// TestShortMessages: requests at the same time never use more than the limit, though a chat
// template has more tokens in each message than their texts.
func TestShortMessages(t *testing.T) {
	t.Parallel()
	for what, messages := range map[string]string{
		"short":  strings.Repeat(`{"role":"user","content":"a"},`, 500),
		"empty":  strings.Repeat(`{"role":"user","content":""},`, 1500),
		"single": `{"role":"user","content":"a"},`,
		"parts":  `{"role":"user","content":[` + strings.Repeat(`"a",`, 1000) + `"a"]},`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			limit := int64(10000)
			if what == "single" { // a request needs few tokens
				limit = 1000
			}
			s := serve(t, simulate(t, 1), ofSim(limits.Rates{TokensPerDay: limit}))
			body := fmt.Sprintf(`{"model":"sim","max_tokens":1,"messages":[%s]}`, strings.TrimSuffix(messages, ","))
			var answered atomic.Int64
			together(200, func(int) *reply {
				r := s.chat(body)
				if r.status == 200 {
					answered.Add(1)
				} else if r.status != 429 {
					t.Error(r)
				}
				return r
			})
			if used := s.used("tokens_per_day", limit); used > limit || answered.Load() == 0 {
				t.Errorf("%d requests were answered, and %d tokens are used", answered.Load(), used)
			}
		})
	}
}

// TestReservations checks how many tokens a request reserves for its answers, whatever its members
// claim.
func TestReservations(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1), ofSim(limits.Rates{OutputPerDay: 160}), func(c *router.Config) {
		c.Models = []router.ModelConfig{{Name: "sim", MaxOutput: 50}}
	})
	const chat, completions = "/v1/chat/completions", "/v1/completions"
	for _, c := range []struct {
		path, members string
		reserved      int
		code          string // of a refusal
	}{
		{chat, ``, 50, ""}, {chat, `"max_tokens":20`, 20, ""}, {chat, `"max_tokens":null`, 50, ""},
		{chat, `"max_tokens":999999`, 50, ""}, {chat, `"max_tokens":20,"max_completion_tokens":1`, 20, ""},
		{chat, `"max_tokens":20,"n":2`, 40, ""}, {chat, `"n":3,"max_tokens":50`, 150, ""},
		{chat, `"n":4`, 0, "rate_limit_exceeded"}, {chat, `"n":999999999999999999`, 0, "rate_limit_exceeded"},
		{chat, `"n":368934881474191033`, 0, "rate_limit_exceeded"}, // 50 of these are 2^64 and 34
		{chat, `"n":"4"`, 0, "invalid_type"}, {chat, `"n":1e30`, 0, "invalid_type"},
		{completions, `"prompt":"a","n":1,"best_of":3`, 150, ""},
		{completions, `"prompt":"a","best_of":4`, 0, "rate_limit_exceeded"},
		{completions, `"prompt":["a","b","c"],"max_tokens":40`, 120, ""},
		{completions, `"prompt":["a","b","c","d"]`, 0, "rate_limit_exceeded"},
		{chat, `"max_tokens":10,"n_predict":40`, 40, ""}, {chat, `"n_predict":10,"max_tokens":40`, 40, ""},
		{chat, `"max_tokens":10,"n_predict":-1`, 50, ""}, {chat, `"n_predict":10`, 50, ""},
		{chat, `"max_tokens":10,"n_cmpl":3`, 30, ""}, {chat, `"n_cmpl":4`, 0, "rate_limit_exceeded"},
		{completions, `"prompt":["a","b"],"max_tokens":1,"n_predict":20,"n_cmpl":2`, 80, ""},
		{chat, `"max_output_tokens":1`, 50, ""}, {completions, `"prompt":"a","max_completion_tokens":1`, 50, ""},
		{chat, `"max_tokens":-5`, 50, ""}, {chat, `"max_tokens":9223372036854775808`, 50, ""},
		{chat, `"max_tokens":"20"`, 50, ""}, {chat, `"max_tokens":0`, 50, ""},
	} {
		body := `{"model":"sim","stream":true`
		if c.path == chat {
			body += `,"messages":[{"role":"user","content":"hello"}]`
		}
		if c.members != "" {
			body += "," + c.members
		}
		s.reserves(c.path, body+"}", c.reserved, c.code)
	}
}

// TestRecordings: an upload reserves tokens by its size, at most those of the limit,
// and counts for them if its engine does not tell how many it has.
func TestRecordings(t *testing.T) {
	t.Parallel()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := `{"object":"list","data":[{"id":"sim","object":"model"}]}`
		if r.Method == "POST" {
			answer = `{"text":"hello"}`
			if io.Copy(io.Discard, r.Body); r.URL.RawQuery != "" {
				answer = `{"text":"hello","usage":{"input_tokens":7,"output_tokens":2,"total_tokens":9}}`
			}
		}
		io.WriteString(w, answer)
	}))
	t.Cleanup(web.Close)
	s := serve(t, nil, ofSim(limits.Rates{InputPerDay: 1000, OutputPerDay: 100}), func(c *router.Config) {
		c.Router.Backends = []string{web.URL + ",id=e,model=sim"}
	})
	eventually(t, "the engine is eligible", func() bool { return s.eligible() == 1 })
	upload := func(query string, bytes int) *reply {
		const part = "--b\r\nContent-Disposition: form-data; name="
		form := part + "model\r\n\r\nsim\r\n" + part + "file; filename=a.mp3\r\n\r\n" + strings.Repeat("x", bytes)
		return s.post("/v1/audio/transcriptions"+query, form+"\r\n--b--\r\n",
			"Content-Type", "multipart/form-data; boundary=b")
	}
	for _, c := range []struct {
		query         string
		bytes         int
		status        int
		input, output int64
	}{
		{"?usage", 640000, 200, 7, 2}, {"", 128000, 200, 407, 42}, {"", 320000, 429, 407, 42}, {"", 128000, 200, 807, 82},
		{"", 128000, 429, 807, 82},
	} {
		if r := upload(c.query, c.bytes); r.status != c.status {
			t.Error(r)
		}
		in, out := s.used("input_tokens_per_day", 1000), s.used("output_tokens_per_day", 100)
		if in < c.input-2 || in > c.input+2 || out < c.output-2 || out > c.output {
			t.Errorf("%d bytes: %d and %d tokens are used, not %d and %d", c.bytes, in, out, c.input, c.output)
		}
	}
}

// reserves holds a request open, and checks what it has reserved of 160 tokens of answers. With a
// code the request must be refused.
func (s *site) reserves(path, body string, reserved int, code string) {
	s.t.Helper()
	ctx, leave := context.WithCancel(s.t.Context())
	defer leave()
	if code != "" {
		if r := s.post(path, body); r.code() != code {
			s.t.Errorf("%s: %v", body, r)
		}
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if resp, err := s.send(ctx, "POST", path, body, "x-sim-fault", "hang"); err == nil {
			resp.Body.Close()
		}
	}()
	eventually(s.t, "the request runs", func() bool { return s.metrics().sum("cgn_router_in_flight") == 1 })
	ratio := s.metrics().sum("cgn_router_limit_used_ratio", `limit="output_tokens_per_day"`)
	if held := int(ratio*160 + .5); held != reserved {
		s.t.Errorf("%s: %d are reserved, not %d", body, held, reserved)
	}
	leave()
	<-done
	s.idle()
}

// TestHangingUp: a client that leaves a stream pays for its prompt and for what it has got, and one
// that leaves before an answer pays as much as it had reserved. Its engine has worked for it.
func TestHangingUp(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1), ofSim(limits.Rates{OutputPerDay: 10000, InputPerDay: 8000}))
	output := func() int64 { return s.used("output_tokens_per_day", 10000) }
	input := func() int64 { return s.used("input_tokens_per_day", 8000) }
	leave := func(body, fault string, tokens int) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended, sent := make(chan struct{}), chatsOf(s.engines[0])
		go func() {
			defer close(ended)
			resp, err := s.send(ctx, "POST", "/v1/chat/completions", body, "x-sim-fault", fault)
			if err != nil {
				return
			}
			defer resp.Body.Close()
			readTokens(t, resp, `"content":"`, tokens)
			cancel()
		}()
		if tokens == 0 {
			eventually(t, "the engine is asked", func() bool { return chatsOf(s.engines[0]) > sent })
			cancel()
		}
		<-ended
	}
	stream := chatBody(document(1, 4000), `,"stream":true,"max_tokens":500`)
	leave(stream, "stall_after=30", 30)
	if in, out := input(), output(); in < 500 || in > 2000 || out < 26 || out > 31 {
		t.Errorf("after 30 tokens of a stream: %d and %d tokens", in, out)
	}
	in, out := input(), output()
	leave(stream, "hang", 0)
	if more := input() - in; more < 500 || more > 2000 || output() != out {
		t.Errorf("before a stream begins: %d tokens, and %d", more, output()-out)
	}
	out = output()
	leave(chatBody("hello", `,"max_tokens":500`), "hang", 0)
	if more := output() - out; more != 500 {
		t.Errorf("before an answer: %d tokens", more)
	}
	out = output()
	r := s.chat(chatBody("hello", `,"max_tokens":500`), "x-sim-fault", "hang", "x-cgn-deadline-ms", "300")
	if r.status != 504 {
		t.Error(r)
	}
	if more := output() - out; more != 500 {
		t.Errorf("with a deadline of the client: %d tokens", more)
	}
}

// TestHangingUpWithTokenizer: a client that leaves before the engine's count pays for the tokens of
// its prompt, of which this one has far more than one for each four bytes.
func TestHangingUpWithTokenizer(t *testing.T) {
	t.Parallel()
	dir := modelFiles(t, chatML)
	s := serve(t, simulate(t, 1), ofSim(limits.Rates{InputPerDay: 8000}), func(c *router.Config) {
		c.Models = []router.ModelConfig{{Name: "sim", Tokenizer: dir}}
	})
	model, err := tokenizer.Load(dir, "")
	if err != nil {
		t.Fatal(err)
	}
	body := chatBody(strings.Repeat("8 1 4 ", 100), streaming)
	set := tokenizer.NewSet(map[string]*tokenizer.Model{"sim": model}, 1<<20, 1<<20)
	want := int64(len(set.Make("sim", tokenizer.Chat, []byte(body), 0, nil).IDs))
	if want < 500 {
		t.Fatalf("the prompt has %d tokens", want)
	}
	for n := range int64(2) {
		ctx, cancel := context.WithCancel(t.Context())
		resp, err := s.send(ctx, "POST", "/v1/chat/completions", body, "x-sim-fault", "stall_after=5")
		if err != nil {
			t.Fatal(err)
		}
		readTokens(t, resp, `"content":"`, 5)
		cancel()
		resp.Body.Close()
		if got := s.used("input_tokens_per_day", 8000); got < (n+1)*want-1 || got > (n+1)*want+1 {
			t.Errorf("after %d clients: %d tokens, each prompt has %d", n+1, got, want)
		}
	}
}

// TestLyingEngines: a stream counts for as many tokens as the client has got, whatever its engine
// claims, and no claim moves a limit by more than its bound.
func TestLyingEngines(t *testing.T) {
	t.Parallel()
	var claim string
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			io.WriteString(w, `{"object":"list","data":[{"id":"sim","object":"model"}]}`)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range 100 {
			io.WriteString(w, `data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"x"}}]}`+"\n\n")
		}
		fmt.Fprintf(w, "data: {\"id\":\"c\",\"choices\":[]%s}\n\ndata: [DONE]\n\n", claim)
	}))
	t.Cleanup(web.Close)
	s := serve(t, nil, ofSim(limits.Rates{OutputPerDay: 8000, InputPerDay: 8000}), func(c *router.Config) {
		c.Router.Backends = []string{web.URL + ",id=liar,model=sim"}
	})
	eventually(t, "the engine is eligible", func() bool { return s.eligible() == 1 })
	before := int64(0)
	for i, c := range []string{
		`,"usage":{"prompt_tokens":1,"completion_tokens":1}`, `,"usage":{"prompt_tokens":1,"completion_tokens":0}`,
		``, `,"usage":null`, `,"usage":{"prompt_tokens":-5,"completion_tokens":-1000}`,
	} {
		claim = c
		mustAll(t, c, []*reply{s.chat(chatBody("hello", `,"stream":true,"max_tokens":200`))})
		used := s.used("output_tokens_per_day", 8000)
		if more := used - before; more < 97 || more > 101 {
			t.Errorf("%d: %s counts as %d", i, c, more)
		}
		before = used
	}
	claim = `,"usage":{"prompt_tokens":1,"completion_tokens":900000000000000000}`
	mustAll(t, claim, []*reply{s.chat(chatBody("hello", `,"stream":true,"max_tokens":200`))})
	if r := s.chat(chatBody("hello", streaming)); r.status != 429 || r.header.Get("retry-after") == "" {
		t.Error(r)
	}
	if days := s.used("output_tokens_per_day", 8000) / 8000; days > 10 {
		t.Errorf("the limit is used up for %d days", days)
	}
}

// TestTotals: a count that the engine reports only as a part of the total counts.
func TestTotals(t *testing.T) {
	t.Parallel()
	var usage string
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			io.WriteString(w, `{"object":"list","data":[{"id":"sim","object":"model"}]}`)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"id":"c","choices":[],"usage":`+usage+`}`)
	}))
	t.Cleanup(web.Close)
	const limit = 8000
	s := serve(t, nil, ofSim(limits.Rates{OutputPerDay: limit, InputPerDay: limit}), func(c *router.Config) {
		c.Router.Backends = []string{web.URL + ",id=e,model=sim"}
	})
	eventually(t, "the engine is eligible", func() bool { return s.eligible() == 1 })
	const chat, embed, other = "/v1/chat/completions", "/v1/embeddings", "/v1/classify"
	estimate := int64(13) // of the chat's prompt
	for _, c := range []struct {
		path, usage   string
		input, output int64
	}{
		{chat, `{"prompt_tokens":300,"total_tokens":500}`, 300, 200},
		{chat, `{"completion_tokens":200,"total_tokens":500}`, 300, 200},
		{chat, `{"prompt_tokens":300,"total_tokens":200}`, 300, 0},
		{chat, `{"total_tokens":513}`, estimate, 500}, {chat, `{"total_tokens":3}`, estimate, 0},
		{embed, `{"total_tokens":300}`, 300, 0}, {other, `{"total_tokens":300}`, 300, 0},
		{other, `{"prompt_tokens":300,"total_tokens":300}`, 300, 0},
	} {
		usage = c.usage
		body := `{"model":"sim","input":"hello","messages":[{"role":"user","content":"hello"}]}`
		in, out := s.used("input_tokens_per_day", limit), s.used("output_tokens_per_day", limit)
		mustAll(t, c.path+c.usage, []*reply{s.post(c.path, body)})
		in, out = s.used("input_tokens_per_day", limit)-in, s.used("output_tokens_per_day", limit)-out
		if in < c.input-2 || in > c.input || out < c.output-2 || out > c.output {
			t.Errorf("%s %s counts as %d and %d", c.path, c.usage, in, out)
		}
	}
}

// TestRetriesCountOnce: a request that several nodes were asked counts once, for what its client
// has got, and one without an answer counts for nothing.
func TestRetriesCountOnce(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2), ofSim(limits.Rates{Budget: 80000, OutputPerDay: 8000, RequestsPerDay: 100}),
		func(c *router.Config) { c.Router.Mode = "round_robin" })
	used := func() [3]int64 {
		return [3]int64{
			s.used("requests_per_day", 100), s.used("budget", 80000), s.used("output_tokens_per_day", 8000),
		}
	}
	near := func(got, want [3]int64) bool { // a day's tokens come back while the test runs
		return got[0] == want[0] && got[1] == want[1] && got[2] <= want[2] && got[2] >= want[2]-8
	}
	body := chatBody(document(1, 2000), `,"max_tokens":40,"ignore_eos":true`)
	first := s.chat(body)
	prompt, completion := charged(t, first)
	want := [3]int64{1, prompt + completion, 40}
	if got := used(); !near(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
	for i, fault := range []engine.Fault{{Reset: true, Count: 1}, {Status: 500, Count: 1}, {Status: 503, Count: 1}} {
		s.engines[0].SetFault(&fault)
		for range 8 {
			r := s.chat(body)
			mustAll(t, "retried", []*reply{r})
			want = [3]int64{want[0] + 1, want[1] + prompt + completion, want[2] + 40}
			if got := used(); !near(got, want) {
				t.Errorf("fault %d: %v, want %v", i, got, want)
			}
			if r.attempts() == "2" {
				break
			}
		}
		noFault(s.engines[0])
	}
	three := 3 // a stream that another node goes on with
	s.engines[0].SetFault(&engine.Fault{DieAfter: &three, Count: 1})
	for range 8 {
		r := s.chat(strings.Replace(body, `,"max`, `,"stream":true,"max`, 1))
		mustAll(t, "resumed", []*reply{r})
		want = [3]int64{want[0] + 1, want[1] + prompt + completion, want[2] + 40}
		if got := used(); got[0] != want[0] || got[1] < want[1]-2 || got[1] > want[1]+4 || got[2] > want[2]+4 {
			t.Errorf("a stream of two nodes: %v, want %v", got, want)
		} else {
			want = got
		}
		if strings.Contains(s.metricsText(), `cgn_router_resumed_total{`) {
			break
		}
	}
	noFault(s.engines[0])
	for _, header := range [][]string{
		{"x-sim-fault", "status=503"}, {"x-sim-fault", "reset"}, {"x-sim-fault", "garbage"}, {"x-cgn-node", "none"},
	} {
		if r := s.chat(body, header...); r.status < 400 {
			t.Error(r)
		}
		if got := used(); !near(got, want) {
			t.Errorf("%v: %v, want %v", header, got, want)
		}
	}
	if r := s.chat(body, "x-sim-fault", "status=400"); r.status != 400 { // the client's own mistake
		t.Error(r)
	}
	want[0]++
	if got := used(); !near(got, want) {
		t.Errorf("400: %v, want %v", got, want)
	}
}

func (s *site) metricsText() string { return string(s.metrics()) }

// TestFloodOfNames: names that clients make up add no account and no series.
func TestFloodOfNames(t *testing.T) {
	t.Parallel()
	k := newKeyring(t)
	key, _ := k.add(func(r *keys.Record) { r.Limits = limits.Rates{RequestsPerDay: 1 << 30, TokensPerMinute: 20} })
	one := limits.Rates{RequestsPerDay: 1 << 30}
	s := serve(t, simulate(t, 1), k.locked, limited(router.LimitTable{Tenant: "*", Rates: one},
		router.LimitTable{Tenant: "*", Model: "sim", Rates: one}, router.LimitTable{Model: "sim", Rates: one}))
	ask := func(i int) {
		s.chat(asking(fmt.Sprint("model-", i), "hello"), append(bearer(key), "x-cgn-tenant", fmt.Sprint("tenant-", i),
			"OpenAI-Organization", fmt.Sprint("org-", i))...)
		s.chat(chatBody("hello", `,"max_tokens":500`), append(bearer(key), "x-cgn-tenant", fmt.Sprint("tenant-", i))...)
	}
	ask(0)
	series := func() int { return strings.Count(s.metricsText(), "\n") }
	accounted := func() float64 { return s.metrics().sum("cgn_router_limit_accounts") }
	before := series()
	together(8, func(i int) *reply {
		for j := range 25 {
			ask(1 + i*25 + j)
		}
		return &reply{}
	})
	const names = 200
	// A busy machine moves metrics that did not exist before.
	if n := series(); n > before+names/4 || accounted() != 3 {
		t.Errorf("%d series became %d, and there are %v accounts", before, n, accounted())
	}
}
