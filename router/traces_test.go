package router_test

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	tracing "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestTraceOfAnAnswer checks a whole answer and a stream, over both protocols, with a parent and
// without.
func TestTraceOfAnAnswer(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"http", "grpc"} {
		for kind, more := range map[string]string{"plain": plain, "stream": streaming} {
			t.Run(protocol+"/"+kind, func(t *testing.T) {
				t.Parallel()
				c := collect(t)
				key := filepath.Join(t.TempDir(), "headers")
				write(t, key, "# of the collector\n\nX-Key: secret of the collector\n")
				s := serve(t, simulate(t, 1), c.traced, scored, func(o *router.Config) {
					if o.Traces.HeadersFile, o.Traces.Protocol = key, protocol; protocol == "grpc" {
						o.Traces.Endpoint = c.grpc
					}
				})
				answer := s.chat(chatBody(strings.Repeat("tell me more ", 20), more), "x-request-id", "r-1")
				mustAll(t, kind, []*reply{answer})
				got := lastTo(t, s.engines[0], "/v1/chat/completions")
				r := c.tree(t, s)
				r.has(1, 1)
				streams := fmt.Sprint(kind == "stream")
				first := map[string]string{"true": "*", "false": ""}[streams]
				r.is(r.request, false, "http.request.method", "POST", "http.route", "/v1/chat/completions",
					"http.response.status_code", "200", "cgn.request.id", "r-1", "cgn.end", "complete",
					"cgn.attempts", "1", "gen_ai.operation.name", "chat", "gen_ai.request.model", "sim",
					"gen_ai.response.model", "sim", "gen_ai.request.stream", streams,
					"gen_ai.usage.input_tokens", "*", "gen_ai.usage.output_tokens", "*",
					"gen_ai.response.time_to_first_chunk", first, "error.type", "")
				r.is(r.legs[0], false, "cgn.leg.work", "answer", "gen_ai.request.model", "sim",
					"cgn.policy.mode", "score", "cgn.overlap.matched", "0", "cgn.overlap.total", "*",
					"cgn.node.id", "sim-0", "cgn.attempts", "1")
				host, port, _ := strings.Cut(strings.TrimPrefix(s.engines[0].URL(), "http://"), ":")
				r.is(r.attempts[0], false, "cgn.attempt.verdict", "answered", "server.address", host,
					"server.port", port, "cgn.node.id", "sim-0", "http.response.status_code", "200",
					"gen_ai.request.model", "sim", "gen_ai.provider.name", "*", "cgn.end", "complete",
					"gen_ai.response.time_to_first_chunk", first)
				p, want := got.Header.Get("traceparent"), parentOf(r.attempts[0])
				if p != want || len(r.request.ParentSpanId) != 0 {
					t.Errorf("the engine's parent is %s, want %s", p, want)
				}
				if r.attempts[0].Name != "chat sim" || r.request.Name != "POST /v1/chat/completions" ||
					r.legs[0].Name != "leg answer" {
					t.Errorf("%q, %q, %q", r.request.Name, r.legs[0].Name, r.attempts[0].Name)
				}
				if c.keys[0] != "secret of the collector" || textOf(c.source, "service.name") != "cgn-router" {
					t.Errorf("the collector's key is %q, the service %v", c.keys[0], c.source)
				}
			})
		}
	}
}

// TestTraceOfARetry checks that each attempt has a span, with its node and its verdict.
func TestTraceOfARetry(t *testing.T) {
	t.Parallel()
	for verdict, fault := range map[string]engine.Fault{"reset": {Reset: true}, "status_500": {Status: 500}} {
		t.Run(verdict, func(t *testing.T) {
			t.Parallel()
			c := collect(t)
			s := serve(t, simulate(t, 2), c.traced)
			for _, e := range s.engines {
				e.SetFault(&fault)
			}
			answer := s.chat(chatBody("hello", streaming))
			r := c.tree(t, s)
			r.has(1, 2)
			status := map[string]string{"status_500": "500"}[verdict]
			for _, a := range r.attempts {
				r.is(a, true, "cgn.attempt.verdict", verdict, "error.type", verdict,
					"http.response.status_code", status)
			}
			a, b := textOf(r.attempts[0].Attributes, "cgn.node.id"), textOf(r.attempts[1].Attributes, "cgn.node.id")
			if a == b {
				t.Errorf("both attempts are at %s", a)
			}
			r.is(r.request, true, "http.response.status_code", fmt.Sprint(answer.status), "error.type", verdict)
			r.is(r.legs[0], true, "error.type", "*", "cgn.attempts", "2")
		})
	}
}

// TestTraceOfASuccessAfterARetry checks the spans of a request that another node answers.
func TestTraceOfASuccessAfterARetry(t *testing.T) {
	t.Parallel()
	c := collect(t)
	s := serve(t, simulate(t, 2), c.traced, func(o *router.Config) { o.Router.Mode = "round_robin" })
	s.engines[0].SetFault(&engine.Fault{Reset: true})
	var answer *reply
	for i := 0; i < 8 && (answer == nil || answer.attempts() != "2"); i++ {
		answer = s.chat(chatBody("hello", plain))
	}
	mustAll(t, "retried", []*reply{answer})
	if answer.attempts() != "2" {
		t.Fatal("none was retried")
	}
	parent := lastTo(t, s.engines[1], "/v1/chat/completions").Header.Get("traceparent")
	s.idle()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	other := func(s *tracing.Span) bool { return hex.EncodeToString(s.TraceId) != parent[3:35] }
	c.all = slices.DeleteFunc(c.all, other)
	r := c.treeOfStopped(t)
	r.has(1, 2)
	slices.SortFunc(r.attempts, func(a, b *tracing.Span) int {
		return cmp.Compare(a.StartTimeUnixNano, b.StartTimeUnixNano)
	})
	r.is(r.attempts[0], true, "cgn.attempt.verdict", "reset", "cgn.node.id", "sim-0")
	r.is(r.attempts[1], false, "cgn.attempt.verdict", "answered", "cgn.node.id", "sim-1")
	r.is(r.request, false, "cgn.attempts", "2", "error.type", "")
	if parent != parentOf(r.attempts[1]) {
		t.Errorf("the engine's parent is %s, want %s", parent, parentOf(r.attempts[1]))
	}
}

// stalled serves one engine, whose stream has stopped after its first tokens.
func stalled(t *testing.T, c *spans, tweak ...func(*router.Config)) (*site, *http.Response, context.CancelFunc) {
	s := serve(t, simulate(t, 1), append(tweak, c.traced)...)
	ctx, leave := context.WithCancel(t.Context())
	resp, err := s.send(ctx, http.MethodPost, apis[0].path, apis[0].body, "x-sim-fault", "stall_after=10")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { leave(); resp.Body.Close() })
	readTokens(t, resp, apis[0].token, 10)
	return s, resp, leave
}

// TestTraceOfABrokenStream checks the ends of streams that have begun.
func TestTraceOfABrokenStream(t *testing.T) {
	t.Parallel()
	t.Run("client gone", func(t *testing.T) {
		t.Parallel()
		c := collect(t)
		s, _, leave := stalled(t, c)
		leave()
		r := c.tree(t, s)
		r.has(1, 1)
		r.is(r.request, false, "cgn.end", "client_gone", "http.response.status_code", "200", "error.type", "",
			"gen_ai.response.time_to_first_chunk", "*")
		r.is(r.attempts[0], false, "cgn.end", "client_gone", "cgn.attempt.verdict", "answered")
	})
	t.Run("engine gone", func(t *testing.T) {
		t.Parallel()
		c := collect(t)
		s, resp, _ := stalled(t, c, func(o *router.Config) { o.Router.Resume.Mode = "off" })
		s.engines[0].Kill()
		if _, err := io.ReadAll(resp.Body); err != nil {
			t.Error(err)
		}
		r := c.tree(t, s)
		r.has(1, 1)
		r.is(r.request, true, "cgn.end", "upstream_failed", "error.type", "cut")
		r.is(r.legs[0], true, "error.type", "cut")
		r.is(r.attempts[0], true, "error.type", "cut", "cgn.attempt.verdict", "answered")
	})
	t.Run("shutdown", func(t *testing.T) {
		t.Parallel()
		c := collect(t)
		s, _, _ := stalled(t, c, func(o *router.Config) { o.Router.DrainTimeout = 0 })
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		r := c.treeOfStopped(t)
		r.has(1, 1)
		r.is(r.request, true, "cgn.end", "shutdown", "error.type", "shutdown")
	})
}

// TestTraceWithoutAnAnswer checks requests that no engine answers.
func TestTraceWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	t.Run("client gone", func(t *testing.T) {
		t.Parallel()
		c := collect(t)
		s := serve(t, simulate(t, 1), c.traced)
		ctx, leave := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := s.send(ctx, http.MethodPost, apis[0].path, apis[0].body, "x-sim-fault", "hang")
			ended <- err
		}()
		eventually(t, "the engine has the request", func() bool { return hasRequest(s.engines[0], apis[0].path) })
		leave()
		if err := <-ended; err == nil {
			t.Error("an answer")
		}
		r := c.tree(t, s)
		r.has(1, 1)
		r.is(r.request, false, "cgn.end", "client_gone")
		r.is(r.attempts[0], false, "cgn.attempt.verdict", "left", "http.response.status_code", "")
	})
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		c := collect(t)
		s := serve(t, simulate(t, 1), c.traced)
		if r := s.chat(`{"model":"sim"`); r.status != 400 {
			t.Error(r)
		}
		r := c.tree(t, s)
		r.has(0, 0)
		r.is(r.request, false, "cgn.end", "refused", "http.response.status_code", "400", "error.type", "invalid_json")
	})
	t.Run("no model", func(t *testing.T) {
		t.Parallel()
		c := collect(t)
		s := serve(t, simulate(t, 1), c.traced)
		if r := s.chat(strings.Replace(chatBody("hello", plain), "sim", "nothing", 1)); r.status != 404 {
			t.Error(r)
		}
		r := c.tree(t, s)
		r.has(1, 0)
		r.is(r.legs[0], true, "error.type", "model_not_found")
		r.is(r.request, false, "gen_ai.request.model", "nothing", "gen_ai.response.model", "",
			"error.type", "model_not_found")
	})
}

// hasRequest says whether the engine has a request for path.
func hasRequest(e *engine.Engine, path string) bool {
	return slices.ContainsFunc(e.Requests(), func(r engine.Request) bool { return r.Path == path })
}

// TestTraceparent checks which requests are recorded, and what their engines get.
func TestTraceparent(t *testing.T) {
	t.Parallel()
	client := func(flag string) string { return "00-" + clientTrace + "-" + clientSpan + "-" + flag }
	for name, tc := range map[string]struct {
		off             bool // no collector
		sample          float64
		parent, state   string
		recorded        bool
		wants, stateOut string // what the engine gets, if it is known
	}{
		"off":                 {off: true, parent: client("01"), state: "a=b", wants: client("01"), stateOut: "a=b"},
		"off, malformed":      {off: true, parent: "00-1", state: "?", wants: "00-1", stateOut: "?"},
		"flag 1, sample 0":    {parent: client("01"), state: "a=b", recorded: true, stateOut: "a=b"},
		"flag 0, sample 1":    {sample: 1, parent: client("00"), state: "a=b", wants: client("00"), stateOut: "a=b"},
		"none, sample 1":      {sample: 1, recorded: true},
		"none, sample 0":      {},
		"malformed, sample 1": {sample: 1, parent: "00-1-2-01", state: "a=b", recorded: true},
		"malformed, sample 0": {parent: client("0g"), state: "a=b"},
		"malformed state":     {parent: client("01"), state: "a==?,,=", recorded: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := collect(t)
			s := serve(t, simulate(t, 1), func(o *router.Config) {
				if o.Traces.Sample = tc.sample; !tc.off {
					o.Traces.Endpoint = c.http
				}
			})
			var head []string
			if tc.parent != "" {
				head = append(head, "traceparent", tc.parent)
			}
			if tc.state != "" {
				head = append(head, "tracestate", tc.state)
			}
			mustAll(t, name, []*reply{s.chat(chatBody("hello", streaming), head...)})
			got := lastTo(t, s.engines[0], "/v1/chat/completions").Header
			sent := got.Values("traceparent")
			if state := strings.Join(got.Values("tracestate"), "; "); state != tc.stateOut {
				t.Errorf("the engine's tracestate is %q, want %q", state, tc.stateOut)
			}
			if len(sent) != 1 || tc.wants != "" && sent[0] != tc.wants {
				t.Fatalf("the engine's traceparent is %q, want %q", sent, tc.wants)
			}
			if tc.wants == "" && strings.HasSuffix(sent[0], "-01") != tc.recorded {
				t.Errorf("the engine's traceparent is %s", sent[0])
			}
			if !tc.recorded {
				s.idle()
				if err := s.stop(); err != nil || len(c.all) != 0 {
					t.Errorf("%d spans, %v", len(c.all), err)
				}
				return
			}
			r := c.tree(t, s)
			r.has(1, 1)
			if sent[0] != parentOf(r.attempts[0]) {
				t.Errorf("the engine's parent is %s, want %s", sent[0], parentOf(r.attempts[0]))
			}
			ofClient := tc.parent == client("01")
			above := map[bool]string{true: clientSpan}[ofClient]
			if hex.EncodeToString(r.request.ParentSpanId) != above || r.request.TraceState != tc.stateOut ||
				(hex.EncodeToString(r.request.TraceId) == clientTrace) != ofClient {
				t.Errorf("the request's span is %s", prototext.Format(r.request))
			}
		})
	}
}

// TestTracesHoldNoSecret looks for what clients send in everything that the collector gets.
func TestTracesHoldNoSecret(t *testing.T) {
	t.Parallel()
	c := collect(t)
	s := serve(t, simulate(t, 1), c.traced, func(o *router.Config) { o.Router.ForwardAuth = true })
	var head []string
	for _, name := range []string{
		"authorization", "cookie", "x-api-key", "x-user-id", "x-forwarded-for", "from", "user-agent", "baggage",
		"x-session-id", "openai-organization", "referer", "x-end-user-id",
	} {
		head = append(head, name, "hidden-"+name)
	}
	body := chatBody("hidden-prompt", `,"user":"hidden-user","max_tokens":4,"metadata":{"k":"hidden-metadata"}`)
	mustAll(t, "answer", []*reply{s.post("/v1/chat/completions?key=hidden-query", body, head...)})
	s.idle()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if len(c.all) != 3 {
		t.Errorf("%d spans", len(c.all))
	}
	for _, span := range c.all {
		if text := prototext.Format(span); strings.Contains(text, "hidden") {
			t.Error(text)
		}
	}
}

// TestTraceOfASearch checks that nodes that are asked for a stored response get the request's span
// as their parent.
func TestTraceOfASearch(t *testing.T) {
	t.Parallel()
	c := collect(t)
	s := serve(t, simulate(t, 2), c.traced)
	if r := s.ask(http.MethodGet, "/v1/responses/resp_0123", ""); r.status != 404 {
		t.Error(r)
	}
	var parents []string
	for _, e := range s.engines {
		got := lastTo(t, e, "/v1/responses/resp_0123").Header.Get("traceparent")
		parents = append(parents, got)
	}
	r := c.tree(t, s)
	r.has(0, 0)
	for _, got := range parents {
		if want := parentOf(r.request); got != want {
			t.Errorf("the parent is %s, want %s", got, want)
		}
	}
	r.is(r.request, false, "http.route", "/v1/responses/{id}", "gen_ai.operation.name", "", "error.type", "*")
}

// TestTraceOfAHandover checks that both legs of a prompt that is handed over are in the trace, and
// that each engine gets its own attempt's span as parent.
func TestTraceOfAHandover(t *testing.T) {
	t.Parallel()
	c := collect(t)
	s := divide(t, 1, 1, c.traced)
	mustAll(t, "answer", []*reply{s.chat(chatBody(longPrompt("a"), streaming))})
	parents := map[string]string{}
	for work, e := range map[string]*engine.Engine{"prefill": s.prefills[0], "answer": s.decodes[0]} {
		parents[work] = lastTo(t, e, "/v1/chat/completions").Header.Get("traceparent")
	}
	r := c.tree(t, s.site)
	r.has(2, 2)
	for _, l := range r.legs {
		work, handover := strings.TrimPrefix(l.Name, "leg "), ""
		if work == "answer" {
			handover = "split"
		}
		r.is(l, false, "cgn.leg.work", work, "cgn.leg.handover", handover, "gen_ai.request.model", "sim")
		for _, a := range r.attempts {
			if string(a.ParentSpanId) != string(l.SpanId) {
				continue
			}
			r.is(a, false, "gen_ai.request.stream", fmt.Sprint(work == "answer"), "cgn.attempt.verdict", "answered")
			if parents[work] != parentOf(a) {
				t.Errorf("the engine's parent in the leg %s is %s, want %s", work, parents[work], parentOf(a))
			}
		}
	}
}

// TestTraceOfALostHandover checks that the second request to the same node is an attempt of its
// own.
func TestTraceOfALostHandover(t *testing.T) {
	t.Parallel()
	c := collect(t)
	s := divide(t, 1, 1, c.traced)
	s.decodes[0].SetFault(once(engine.Fault{Status: 400}))
	mustAll(t, "answer", []*reply{s.chat(chatBody(longPrompt("a"), plain))})
	r := c.tree(t, s.site)
	r.has(2, 3)
	verdicts := map[string]int{}
	for _, a := range r.attempts {
		v := textOf(a.Attributes, "cgn.attempt.verdict")
		verdicts[v]++
		r.is(a, v != "answered")
	}
	if verdicts["answered"] != 2 || verdicts["lost"] != 1 {
		t.Errorf("%v", verdicts)
	}
	for _, l := range r.legs {
		if l.Name == "leg answer" {
			r.is(l, false, "cgn.leg.handover", "unread")
		}
	}
}

// TestTraceOfACascade checks that each step is a leg.
func TestTraceOfACascade(t *testing.T) {
	t.Parallel()
	c := collect(t)
	s, _, _ := chain(t, strict, c.traced)
	mustAll(t, "answer", []*reply{s.chat(smart(plain))})
	r := c.tree(t, s)
	r.has(2, 2)
	models := map[string]string{}
	for _, l := range r.legs {
		models[textOf(l.Attributes, "cgn.cascade.step")] = textOf(l.Attributes, "gen_ai.request.model")
	}
	if models["1"] != "small" || models["2"] != "large" {
		t.Errorf("%v", models)
	}
	r.is(r.request, false, "cgn.cascade.name", "smart", "cgn.cascade.step", "2", "gen_ai.request.model", "smart",
		"gen_ai.response.model", "large", "cgn.attempts", "2")
}

// TestLostSpans checks that spans that the collector refuses are counted, and cost no answer.
func TestLostSpans(t *testing.T) {
	t.Parallel()
	c := collect(t)
	c.refuse = true
	s := serve(t, simulate(t, 1), c.traced)
	mustAll(t, "answer", []*reply{s.chat(chatBody("hello", plain))})
	eventually(t, "the loss is counted", func() bool {
		return s.metrics().sum("cgn_router_spans_dropped_total", `reason="collector"`) == 3
	})
	if s.log.count("the collector does not take spans") != 1 {
		t.Error(s.log.text())
	}
}

// TestTraceSettings checks the settings that cannot work.
func TestTraceSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "headers")
	for args, want := range map[string]string{
		"--traces http://127.0.0.1:4318":                                         "",
		"--traces http://localhost --traces.protocol grpc --traces.sample 1":     "",
		"--traces https://collector.example/api/otel/v1/traces":                  "",
		"--traces http://collector:4318 --traces.insecure":                       "",
		"--traces http://collector:4318":                                         "traces.endpoint: collector:4318 is reached over a network",
		"--traces http://10.0.0.1 --traces.protocol grpc":                        "traces.endpoint: 10.0.0.1:4317 is reached",
		"--traces collector:4318":                                                "traces.endpoint: want http://host:port",
		"--traces unix:///run/otel.sock":                                         "traces.endpoint: want http://host:port",
		"--traces https://u:p@c":                                                 "traces.headers_file",
		"--traces https://c/?a=b":                                                "traces.endpoint: takes no query",
		"--traces https://c/v1/traces --traces.protocol grpc":                    "traces.protocol to http",
		"--traces https://c --traces.protocol udp":                               "http, grpc",
		"--traces https://c --traces.sample 1.5":                                 "traces.sample: 1.5 is not in 0..1",
		"--traces https://c --traces.sample NaN":                                 "traces.sample",
		"--traces https://c --traces.queue 0":                                    "traces.queue: 0 is too small",
		"--traces https://c --traces.cert f":                                     "traces.cert: goes together",
		"--traces http://127.0.0.1 --traces.ca f":                                "traces.endpoint: is http",
		"--traces.headers_file f":                                                "traces.headers_file: has no effect",
		"--traces https://c --traces.headers_file " + file:                       "traces.headers_file: ",
		"--traces https://c --traces.ca " + filepath.Join(t.TempDir(), "no.pem"): "traces.ca: ",
	} {
		var c router.Config
		words := strings.Fields("--backend http://e:1 " + args)
		err := config.Load(&c, config.Options{Program: "cgn-router", Args: words})
		if err == nil {
			err = c.Traces.Examine()
		}
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %q", args, got, want)
		}
	}
	for text, want := range map[string]string{
		"authorization: Bearer k\n": "", "a: b: c\r\n\n#c\n": "", "": "",
		"secret\n": "line 1 is no header", "ok: 1\nb\x00d: secret": "line 2", "k: secr\u00e9t": "line 1",
		"k:":           "line 1",
		"Host: secret": "belongs to the protocol", "grpc-timeout: secret": "belongs to the protocol",
		strings.Repeat("x", 17<<10): "at most 16384",
		strings.Repeat("#\n", 2) + func() (all string) {
			for i := range 33 {
				all += fmt.Sprintf("h%d: v\n", i)
			}
			return all
		}(): "33 headers",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := router.Config{Traces: router.TraceConfig{Endpoint: "https://c", HeadersFile: file}}
		err := c.Traces.Examine()
		if got := fmt.Sprint(err); want == "" && err != nil || !strings.Contains(got, want) ||
			strings.Contains(got, "secr") {
			t.Errorf("%.40q: %s, want %q", text, got, want)
		}
	}
}
