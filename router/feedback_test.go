package router_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// document returns a prompt of about n bytes that shares no block with another seed's prompt.
func document(seed, n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "document %d, line %d: %x. ", seed, i, uint32(seed*7919+i)*2654435761)
	}
	return b.String()
}

// cached returns the engine's counts in a plain chat answer: prompt tokens, and cached ones.
func cached(t *testing.T, r *reply) (prompt, held float64) {
	t.Helper()
	var doc struct {
		Usage struct {
			Prompt  float64 `json:"prompt_tokens"`
			Details *struct {
				Cached float64 `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.Unmarshal(r.body, &doc); err != nil || doc.Usage.Prompt == 0 || doc.Usage.Details == nil {
		t.Fatalf("no usage in %v", r)
	}
	return doc.Usage.Prompt, doc.Usage.Details.Cached
}

// errors returns the number of prediction errors and their sum.
func (s *site) errors() (count, sum float64) {
	p := s.metrics()
	return p.sum("cgn_router_prediction_error_ratio_count"), p.sum("cgn_router_prediction_error_ratio_sum")
}

// TestRepeatedPromptsGoToTheirNode checks by the engine's own count that the prompt was cached
// there.
func TestRepeatedPromptsGoToTheirNode(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 4))
	const prompts = 8
	var home [prompts]string
	for i := range prompts {
		r := s.chat(chatBody(document(i, 6000), plain))
		mustAll(t, "first", []*reply{r})
		home[i] = r.node()
	}
	for round := range 3 {
		for i, r := range together(prompts, func(i int) *reply { return s.chat(chatBody(document(i, 6000), plain)) }) {
			mustAll(t, "repeat", []*reply{r})
			if prompt, held := cached(t, r); r.node() != home[i] || held < .95*prompt {
				t.Errorf("round %d, prompt %d: %s instead of %s, %v of %v tokens cached", round, i, r.node(), home[i],
					held, prompt)
			}
			var matched, total int
			if fmt.Sscanf(r.header.Get("x-cgn-overlap"), "%d/%d", &matched, &total); total < 90 || matched < total-1 {
				t.Errorf("overlap %q", r.header.Get("x-cgn-overlap"))
			}
		}
	}
	eventually(t, "every answer is held against its prediction", func() bool {
		n, _ := s.errors()
		return n == 4*prompts
	})
	if _, sum := s.errors(); sum != 0 {
		t.Errorf("predictions were wrong by %v", sum)
	}
}

// TestEmptiedCacheIsNoticedOnce checks that the first wrong prediction corrects the later ones.
func TestEmptiedCacheIsNoticedOnce(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	ask := func() (matched int, wrong float64) {
		t.Helper()
		before, was := s.errors()
		r := s.chat(chatBody(document(1, 6000), plain))
		mustAll(t, "ask", []*reply{r})
		fmt.Sscanf(r.header.Get("x-cgn-overlap"), "%d/", &matched)
		eventually(t, "the prediction is judged", func() bool { n, _ := s.errors(); return n == before+1 })
		_, is := s.errors()
		return matched, is - was
	}
	ask()
	if matched, wrong := ask(); matched < 90 || wrong != 0 {
		t.Errorf("a repeat: %d blocks believed, wrong by %v", matched, wrong)
	}
	if resp, err := http.Post(s.engines[0].URL()+"/reset_prefix_cache", "", nil); err != nil || resp.StatusCode != 200 {
		t.Fatal(err)
	} else {
		resp.Body.Close()
	}
	last := time.Now()
	if _, wrong := ask(); wrong < .95 {
		t.Errorf("after the cache was emptied: wrong by %v", wrong)
	}
	// A missing block teaches a short lifetime. Each repeat that comes too late for the lifetime
	// teaches a longer lifetime. A slow machine needs several repeats.
	for tries := 1; ; tries++ {
		lifetime, began := time.Duration(s.nodes()["sim-0"].Lifetime*float64(time.Second)), time.Now()
		matched, wrong := ask()
		if took := time.Since(last); took < lifetime {
			if matched < 90 || wrong != 0 {
				t.Errorf("a repeat again: %d blocks believed after %v of %v, wrong by %v", matched, took, lifetime,
					wrong)
			}
			return
		} else if tries == 50 {
			t.Fatalf("no repeat in time: %v, and blocks are believed for %v", took, lifetime)
		}
		last = began
	}
}

// TestLifetimeIsLearnedFromASmallCache sends four prompts in turn to a cache with room for one and
// a half. A turn takes longer than the shortest learnable lifetime, so the prediction error
// disappears.
func TestLifetimeIsLearnedFromASmallCache(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1, func(c *engine.Config) {
		c.CacheBlocks, c.PrefillTokensPerSecond = 150, 4500
	}))
	wrong := func() float64 {
		t.Helper()
		before, was := s.errors()
		for i := range 4 {
			mustAll(t, "turn", []*reply{s.chat(chatBody(document(i, 6000), plain))})
		}
		eventually(t, "the predictions are judged", func() bool { n, _ := s.errors(); return n == before+4 })
		_, is := s.errors()
		return (is - was) / 4
	}
	rounds := []float64{wrong(), wrong()}
	first, second := rounds[0], rounds[1]
	for len(rounds) < 10 && rounds[len(rounds)-1] > second/2 { // one round is enough unless the machine is busy
		rounds = append(rounds, wrong())
	}
	if first != 0 || second < .2 || rounds[len(rounds)-1] > second/2 {
		t.Errorf("mean error of the rounds: %.2f", rounds)
	}
	if l := s.nodes()["sim-0"].Lifetime; l > 10 {
		t.Errorf("blocks are believed for %v s", l)
	}
}

// TestUnreportedCacheTeachesNothing checks an engine that does not report cached tokens. The router
// logs the engine once and keeps its beliefs about the engine's cache.
func TestUnreportedCacheTeachesNothing(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2, func(c *engine.Config) { c.OmitCachedTokens = true }), scored)
	body := chatBody(document(1, 6000), streaming)
	home := s.chat(body)
	mustAll(t, "first", []*reply{home})
	for range 5 {
		r := s.chat(body)
		mustAll(t, "repeat", []*reply{r})
		var matched, total int
		if fmt.Sscanf(r.header.Get("x-cgn-overlap"), "%d/%d", &matched, &total); r.node() != home.node() ||
			matched < total-1 {
			t.Errorf("%s believes %s", r.node(), r.header.Get("x-cgn-overlap"))
		}
	}
	eventually(t, "counted", func() bool { return s.metrics().sum("cgn_router_cached_unreported_total") == 6 })
	if n := s.log.count("does not report cached tokens"); n != 1 {
		t.Errorf("%d log lines", n)
	}
	if n, _ := s.errors(); n != 0 {
		t.Errorf("%v predictions were judged by nothing", n)
	}
	if l := s.nodes()[home.node()].Lifetime; math.Abs(l-120) > 1 {
		t.Errorf("a lifetime of %v s was learned from nothing", l)
	}
}

const withUsage = streaming + `,"stream_options":{"include_usage":true}`

// usageChunks counts the events with a usage report.
func usageChunks(events []event) (n int) {
	for _, e := range events {
		if strings.Contains(e.data, `"usage":{`) {
			n++
		}
	}
	return n
}

// TestUsageOfAStream checks that the usage is shown only to clients that asked for it. The router
// reads the usage in either case.
func TestUsageOfAStream(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	for i, c := range []struct {
		path, body string
		chunks     int
	}{
		{"/v1/chat/completions", chatBody("hello", streaming), 0},
		{"/v1/chat/completions", chatBody("hello", withUsage), 1},
		{"/v1/chat/completions", chatBody("hello", streaming+`,"stream_options":{"include_usage":false}`), 0},
		{"/v1/completions", `{"model":"sim","prompt":"hello"` + streaming + `}`, 0},
		{"/v1/completions", `{"model":"sim","prompt":"hello"` + withUsage + `}`, 1},
	} {
		r := s.post(c.path, c.body)
		mustAll(t, c.body, []*reply{r})
		events := r.events()
		if n := usageChunks(events); n != c.chunks || events[len(events)-1].data != "[DONE]" {
			t.Errorf("%s: %d usage chunks, want %d, in %s", c.body, n, c.chunks, r.body)
		}
		eventually(t, "the usage is counted", func() bool {
			return s.metrics().sum("cgn_router_completion_tokens_total") == float64(8*(i+1))
		})
	}
}

// TestUsageThatComesWithChoices checks engines that put the usage into the last choice or into
// every choice. The usage is hidden from clients that did not ask, and nothing else is hidden.
func TestUsageThatComesWithChoices(t *testing.T) {
	t.Parallel()
	const begin, end = `data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}],"id":"x"}` + "\n\n",
		`data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"id":"x"}` + "\n\ndata: [DONE]\n\n"
	const counts = `"usage":{"prompt_tokens":9,"completion_tokens":1},`
	asked := make(chan string, 1)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/models" {
			io.WriteString(w, `{"object":"list","data":[{"id":"sim","object":"model"}]}`)
		} else if r.Method == http.MethodPost {
			body, _ := io.ReadAll(r.Body)
			asked <- string(body)
			w.Header().Set("Content-Type", "text/event-stream")
			for _, event := range []string{begin, begin, end} {
				io.WriteString(w, strings.Replace(event, `"id"`, counts+`"id"`, 1))
				w.(http.Flusher).Flush()
			}
		}
	}))
	t.Cleanup(backend.Close)
	s := serve(t, nil, func(rc *router.Config) { rc.Router.Backends = []string{backend.URL} })
	eventually(t, "the backend is eligible", func() bool { return s.eligible() == 1 })
	r := s.chat(chatBody("hello", streaming+`,"stream_options":{"include_usage":false,"continuous_usage_stats":true}`))
	if body := <-asked; !strings.Contains(body, `{"include_usage":true,"continuous_usage_stats":false}`) {
		t.Errorf("the engine was asked %s", body)
	}
	if got := strings.ReplaceAll(string(r.body), strings.Repeat(" ", len(counts)), ""); got != begin+begin+end {
		t.Errorf("%q", r.body)
	}
	eventually(t, "it is counted", func() bool { return s.metrics().sum("cgn_router_prompt_tokens_total") == 9 })
	r = s.chat(chatBody("hello", withUsage))
	if <-asked; usageChunks(r.events()) != 3 {
		t.Errorf("who asked got %s", r.body)
	}
}

// TestWithoutFeedbackNothingIsSpliced checks that the engine gets the body byte for byte.
func TestWithoutFeedbackNothingIsSpliced(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1), resumes("off"), func(c *router.Config) { c.Prefix.Feedback = false })
	body := "{ \"unknown\" : {\"x\":[1, 2.50,\"\\u00e9\"]},\"model\":\"sim\",\n\"stream\":true, " +
		"\"max_tokens\":2,\"messages\":[{\"content\":\"hi\",\"role\":\"user\"}] }"
	mustAll(t, "chat", []*reply{s.chat(body)})
	if got := lastTo(t, s.engines[0], "/v1/chat/completions"); string(got.Body) != body {
		t.Errorf("the engine got %s", got.Body)
	}
}

// TestRejectedStreamOptionsAreRemembered checks that the router repeats a rejected request
// unchanged. The router sends later requests unchanged at once.
func TestRejectedStreamOptionsAreRemembered(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1, func(c *engine.Config) { c.RejectStreamOptions = true }))
	chats := func() (with, without int) {
		for _, r := range s.engines[0].Requests() {
			switch {
			case r.Path != "/v1/chat/completions":
			case bytes.Contains(r.Body, []byte("stream_options")):
				with++
			default:
				without++
			}
		}
		return with, without
	}
	for i := range 4 {
		mustAll(t, "stream", []*reply{s.chat(chatBody("hello", streaming))})
		if with, without := chats(); with != 1 || without != i+1 {
			t.Errorf("after %d requests the engine saw %d with stream_options, %d without", i+1, with, without)
		}
	}
	r := s.chat(chatBody("hello", withUsage))
	if r.status != 400 || !bytes.Contains(r.body, []byte("extra_forbidden")) {
		t.Errorf("the client's own stream_options: %v", r)
	}
	if n := s.nodes()["sim-0"]; n.State != "healthy" || n.Opens != 0 {
		t.Errorf("%+v", n)
	}
}

// TestDeadRequestsLeaveNoBelief checks that the index drops the predictions of a failed request.
func TestDeadRequestsLeaveNoBelief(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	body := chatBody(document(1, 6000), plain)
	if r := s.chat(body, "x-sim-fault", "status=500"); r.status != 500 {
		t.Fatal(r)
	}
	r := s.chat(body)
	mustAll(t, "afterwards", []*reply{r})
	if o := r.header.Get("x-cgn-overlap"); !strings.HasPrefix(o, "0/") {
		t.Errorf("overlap %s", o)
	}
	eventually(t, "no wrong prediction", func() bool { n, sum := s.errors(); return n == 1 && sum == 0 })
}
