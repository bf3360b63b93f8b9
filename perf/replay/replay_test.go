package replay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/perf/trace"
	"github.com/cognitora/dataplane/sim/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// list is a trace in memory.
type list []trace.Request

func (l *list) Next() (trace.Request, error) {
	if len(*l) == 0 {
		return trace.Request{}, io.EOF
	}
	q := (*l)[0]
	*l = (*l)[1:]
	return q, nil
}

func at(ms ...int64) *list {
	l := new(list)
	for i, t := range ms {
		*l = append(*l, trace.Request{Timestamp: t, InputLength: 600, OutputLength: 3,
			HashIDs: []int64{0, int64(i + 1)}})
	}
	return l
}

const goodStream = `data: {"choices":[{"delta":{"role":"assistant","content":""}}]}

data: {"choices":[{"delta":{"content":"hi"}}]}

data: {"choices":[],"usage":{"prompt_tokens":600,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":450}}}

data: [DONE]

`

// twoEvents is the beginning of a stream.
var twoEvents = strings.Join(strings.SplitAfter(goodStream, "\n\n")[:2], "")

func serve(t *testing.T, f http.HandlerFunc) string {
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return s.URL
}

func play(t *testing.T, c Config) *Result {
	t.Helper()
	r, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRun(t *testing.T) {
	var mu sync.Mutex
	var bodies []string
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		mu.Lock()
		bodies = append(bodies, string(b))
		w.Header().Set("x-cgn-node", fmt.Sprint("node-", len(bodies)%2))
		mu.Unlock()
		if r.URL.Path != "/v1/chat/completions" || r.Header.Get("Authorization") != "Bearer key" {
			t.Errorf("asked for %s with %v", r.URL.Path, r.Header)
		}
		io.WriteString(w, goodStream)
	})
	r := play(t, Config{URL: url, Model: `m"1`, APIKey: "key", Source: at(0, 0, 1, 2, 3), Turns: 4, MaxOutputTokens: 2})
	if r.Requests != 4 || r.Failed() != 0 || r.HitRatio != 0.75 || r.OutputTokens != 12 || r.Uncounted != 0 {
		t.Errorf("got %+v", r)
	}
	if len(r.Nodes) != 2 || r.Nodes[0].ID != "node-0" || r.Nodes[0].Requests != 2 || r.Nodes[1].Share != 0.5 {
		t.Errorf("nodes %+v", r.Nodes)
	}
	var body struct {
		Model     string `json:"model"`
		Stream    bool   `json:"stream"`
		MaxTokens int    `json:"max_tokens"`
		Options   struct {
			Usage bool `json:"include_usage"`
		} `json:"stream_options"`
		Messages []struct{ Role, Content string } `json:"messages"`
	}
	if err := json.Unmarshal([]byte(bodies[0]), &body); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(bodies[0], "cache_salt") || strings.Contains(bodies[0], "ignore_eos") {
		t.Errorf("body %s", bodies[0])
	}
	if body.Model != `m"1` || !body.Stream || body.MaxTokens != 2 || !body.Options.Usage || len(body.Messages) != 2 ||
		len(body.Messages[0].Content) != 2048 || len(body.Messages[1].Content) != 352 {
		t.Errorf("body %.200s", bodies[0])
	}
}

// TestWishes checks the members and headers that a replay sends if they are set.
func TestWishes(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		if !strings.Contains(string(b), `"ignore_eos":true,"cache_salt":"s1"}`) || r.Header.Get("x-cgn-node") != "n2" {
			t.Errorf("%v %s", r.Header, b)
		}
		io.WriteString(w, goodStream)
	})
	if r := play(t, Config{URL: url, Source: at(0), CacheSalt: "s1", IgnoreEOS: true, Node: "n2"}); r.Failed() != 0 {
		t.Error(r.Failures)
	}
}

func TestSpacing(t *testing.T) {
	start, arrivals := time.Now(), make(chan time.Duration, 3)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		arrivals <- time.Since(start)
		io.WriteString(w, goodStream)
	})
	play(t, Config{URL: url, Source: at(7000, 7000, 9000), Speed: 10})
	<-arrivals
	<-arrivals
	if third := <-arrivals; third < 200*time.Millisecond {
		t.Errorf("2 s at tenfold speed took %v", third)
	}
}

func TestFailures(t *testing.T) {
	answers := map[string]http.HandlerFunc{
		"status 503": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(503)
			io.WriteString(w, "all are\nbusy"+strings.Repeat("y", 1000))
		},
		"no answer": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"broke off": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, twoEvents) },
		"error event": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, twoEvents+"data: {\"error\":{}}\n\n")
		},
		"timeout": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
	}
	for want, f := range answers {
		url := serve(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			f(w, r)
		})
		cfg := Config{URL: url, Source: at(0)}
		if want == "timeout" {
			cfg.Timeout = 200 * time.Millisecond
		}
		r := play(t, cfg)
		if r.Failures[want] != 1 {
			t.Errorf("%s: got %v", want, r.Failures)
		}
		if want == "status 503" && (r.Sample != "all are busy"+strings.Repeat("y", answerBytes-12) ||
			!strings.Contains(r.Details(), "the first failed answer: all are busy")) {
			t.Errorf("sample %q", r.Sample)
		}
	}
}

// ending closes over after its last request has been returned and handled.
type ending struct {
	trace.Source
	over chan struct{}
}

// Next returns the next request, or io.EOF.
func (e *ending) Next() (trace.Request, error) {
	q, err := e.Source.Next()
	if err != nil {
		close(e.over)
	}
	return q, err
}

func TestTooManyInFlight(t *testing.T) {
	asked := &ending{Source: at(0, 0, 0, 0, 0), over: make(chan struct{})}
	var both sync.WaitGroup
	both.Add(2)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		<-asked.over
		both.Done()
		both.Wait()
		io.WriteString(w, goodStream)
	})
	r := play(t, Config{URL: url, Source: asked, MaxInFlight: 2})
	if r.Failures["not sent: too many in flight"] != 3 || r.Failed() != 3 {
		t.Errorf("failures %v", r.Failures)
	}
	if len(r.Nodes) != 1 || r.Nodes[0].MaxInFlight != 2 {
		t.Errorf("nodes %+v", r.Nodes)
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		cancel()
		<-r.Context().Done()
	})
	r, err := Run(ctx, Config{URL: url, Source: at(0, 3_600_000)})
	if !errors.Is(err, context.Canceled) || r.Requests != 1 || r.Failures["cancelled"] != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestABadTraceEndsTheRun(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, goodStream) })
	src := trace.NewReader(strings.NewReader(`{"timestamp":0,"input_length":3,"hash_ids":[1]}` + "\nx\n"))
	r, err := Run(t.Context(), Config{URL: url, Source: src})
	var bad *trace.Error
	if !errors.As(err, &bad) || bad.Line != 2 || r.Requests != 1 || r.Failed() != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

func TestTimesCountFromWhenDue(t *testing.T) {
	ms := time.Millisecond
	r := summarise([]sample{
		{due: 0, sent: 5 * ms, first: 10 * ms, end: 20 * ms, node: "a"},
		{due: 10 * ms, sent: 300 * ms, first: 310 * ms, end: 320 * ms, node: "a"}, // the replay was delayed
		{due: 15 * ms, sent: 16 * ms, end: 18 * ms, failure: "status 503"},
	}, time.Second)
	if r.TTFT.Max != 0.3 || r.TTFT.P50 != 0.3 || r.E2E.Max != 0.31 || r.Late != 0.29 || r.LateP99 != 0.29 ||
		r.TTFT.Mean != 0.155 {
		t.Errorf("got %+v", r)
	}
	if r.ITL != (Times{}) {
		t.Errorf("ITL %+v of answers whose tokens were not counted", r.ITL)
	}
	if got := maxInFlight([]sample{{sent: 1, end: 5}, {sent: 2, end: 3}, {sent: 3, end: 4}, {sent: 5, end: 6}}); got !=
		2 {
		t.Errorf("%d in flight, want 2", got)
	}
}

// TestInFlight: a growing queue shows in the thirds of the sending time.
func TestInFlight(t *testing.T) {
	got := inFlight([]sample{{due: 0, sent: 0, end: 3}, {due: 3, sent: 3, end: 100}, {due: 6, sent: 6, end: 100},
		{due: 9, sent: 9, end: 100}})
	if got != [3]float64{1, 1, 2} {
		t.Errorf("%v", got)
	}
	if got := inFlight([]sample{{end: 5}}); got != [3]float64{} {
		t.Errorf("%v of one request", got)
	}
}

// TestBody: a body of the caller's own goes out as it is.
func TestBody(t *testing.T) {
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if b, _ := io.ReadAll(r.Body); string(b) != "600 tokens" {
			t.Errorf("%s", b)
		}
		io.WriteString(w, goodStream)
	})
	play(t, Config{URL: url, Source: at(0), Body: func(q *trace.Request) []byte {
		return fmt.Appendf(nil, "%d tokens", q.InputLength)
	}})
}

// TestITL checks the time between tokens, which is counted by the engine's number of tokens.
func TestITL(t *testing.T) {
	ms := time.Millisecond
	for want, s := range map[time.Duration]sample{
		10 * ms: {first: 5 * ms, last: 35 * ms, tokens: 4},
		15 * ms: {first: 5 * ms, last: 35 * ms, tokens: 4, out: 3},
		0:       {first: 5 * ms, last: 5 * ms, tokens: 1},
	} {
		if got := s.itl(); got != want {
			t.Errorf("%+v: %v, want %v", s, got, want)
		}
	}
	r := summarise([]sample{{first: 5 * ms, last: 35 * ms, end: 40 * ms, out: 4}, {first: 1, last: 1, out: 1}}, 0)
	if r.ITL.P50 != 0.01 || r.ITL.Max != 0.01 {
		t.Errorf("%+v", r.ITL)
	}
}

// TestResultAsJSON: scripts read the names, which are in snake case.
func TestResultAsJSON(t *testing.T) {
	text, err := json.Marshal(Result{Nodes: []Node{{ID: "n", TTFT: Times{P90: 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`"([^"]*)":`).FindAllSubmatch(text, -1) {
		if !regexp.MustCompile(`^[a-z0-9_]+$`).Match(m[1]) {
			t.Errorf("%s is not in snake case", m[1])
		}
	}
}

func TestFirstToken(t *testing.T) {
	for data, want := range map[string]bool{
		`{"choices":[{"delta":{"role":"assistant","content":""}}]}`:      false,
		`{"choices":[{"delta":{"content":null}}]}`:                       false,
		`{"choices":[{"delta":{"content": "a"}}]}`:                       true,
		`{"choices":[{"delta":{"content":"","reasoning_content":"a"}}]}`: true,
		`{"choices":[{"delta":{"tool_calls":[{"index":0}]}}]}`:           true,
		`{"choices":[],"usage":{"prompt_tokens":1}}`:                     false,
	} {
		if got := hasToken([]byte(data)); got != want {
			t.Errorf("%s: %v", data, got)
		}
	}
}

// TestAgainstAnEngine replays a generated trace against a simulated engine. The engine's cache has
// the blocks that the trace repeats.
func TestAgainstAnEngine(t *testing.T) {
	e, err := engine.New(engine.Config{CacheBlocks: 1 << 17, Speed: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r := play(t, Config{
		URL: e.URL(), Model: "sim", Speed: 100, MaxOutputTokens: 4,
		Source: trace.Generator{Requests: 60, Mix: trace.Mix{Chat: 1}, SystemPrompts: 2}.Source(),
	})
	if r.Failed() != 0 || r.Uncounted != 0 || r.HitRatio < 0.3 || r.HitRatio > 0.95 {
		t.Errorf("hit ratio %.2f, %s", r.HitRatio, r.Details())
	}
	if r.ITL.P50 <= 0 || r.ITL.Max > r.E2E.Max {
		t.Errorf("ITL %+v", r.ITL)
	}
	if r.OutputTokens < 60 || r.TTFT.P50 <= 0 || r.E2E.P50 < r.TTFT.P50 {
		t.Errorf("got %+v", r)
	}
	if row := r.MarkdownRow("engine"); strings.Count(row, "|") != strings.Count(strings.SplitN(MarkdownHeader(), "\n",
		2)[0], "|") {
		t.Errorf("row %s does not fit the header", row)
	}
}
