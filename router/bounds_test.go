package router_test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestFurtherNodes checks how many nodes are asked for a request that fails on all of them.
func TestFurtherNodes(t *testing.T) {
	t.Parallel()
	for fault, want := range map[string][3]int{ // with max_nodes 0, 1 and 2
		"status=503": {1, 2, 3}, "status=429": {1, 2, 3}, "status=500": {1, 2, 2}, "reset": {1, 2, 2},
	} {
		for further, attempts := range want {
			t.Run(fmt.Sprint(fault, "/", further), func(t *testing.T) {
				s := serve(t, simulate(t, 5), func(c *router.Config) {
					c.Retry.MaxNodes = further
					c.Router.Warm = 0 // a node that resets a connection opened ahead is asked again over a new one
				})
				r := s.chat(chatBody("hello", plain), "x-sim-fault", fault)
				struck := int64(0)
				for _, e := range s.engines {
					struck += e.Stats().Faults
				}
				if r.attempts() != fmt.Sprint(attempts) || struck != int64(attempts) {
					t.Errorf("%d nodes were asked, want %d: %v", struck, attempts, r)
				}
			})
		}
	}
}

// TestRetriesAreAShareOfTheRequests checks the retries' share of the requests, with a floor that
// allows no more retries. The share and the floor apply to any ten seconds. A slow machine needs
// several periods of ten seconds.
func TestRetriesAreAShareOfTheRequests(t *testing.T) {
	t.Parallel()
	for _, percent := range []int{0, 10, 60} {
		s := serve(t, simulate(t, 3), func(c *router.Config) { c.Retry.Floor, c.Retry.Percent = 1, percent })
		began := time.Now()
		const requests = 100
		for i := range requests {
			s.chat(chatBody(fmt.Sprint("question ", i), plain), "x-sim-fault", "status=429")
		}
		n := int(s.metrics().sum("cgn_router_retries_total"))
		windows := 1 + int(time.Since(began)/(9*time.Second))
		if most := max(percent, 1); n > most*windows || n < most-2 && windows == 1 {
			t.Errorf("%d retries of %d requests in %d windows, %d %% are allowed", n, requests, windows, percent)
		}
	}
}

// modelTimeout is a limit of a model, with the result of a request that reaches it.
type modelTimeout struct {
	set         func(m *router.ModelConfig, bound config.Duration)
	more, fault string
	code        string // code of the stream's final error event; empty: the answer is a 504
	kind        string // kind of the failure counted against the node, if any
}

// TestTimeoutsOfAModel checks that a model's own limits apply instead of the general ones, which
// are longer than a client waits here. A node that is silent for too long is at fault. A slow node
// is not.
func TestTimeoutsOfAModel(t *testing.T) {
	t.Parallel()
	firstByte := func(m *router.ModelConfig, bound config.Duration) { m.FirstByte = bound }
	idle := func(m *router.ModelConfig, bound config.Duration) { m.Idle = bound }
	total := func(m *router.ModelConfig, bound config.Duration) { m.Total = bound }
	for name, c := range map[string]modelTimeout{
		"first byte of a stream": {firstByte, streaming, "hang", "", "timeout"},
		"head alone":             {firstByte, streaming, "hang_body", "", "timeout"},
		"first byte":             {firstByte, plain, "hang", "", "timeout"},
		"idle":                   {idle, streaming, "stall_after=3", "backend_timeout", "idle"},
		"total":                  {total, `,"stream":true,"max_tokens":100000`, "slow=0s", "backend_timeout", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for bound := 250 * time.Millisecond; !c.reached(t, bound); bound *= 2 {
			}
		})
	}
}

// reached sends a request that should reach the limit. reached returns false if a slow machine has
// not begun the stream within the limit.
func (c *modelTimeout) reached(t *testing.T, bound time.Duration) bool {
	t.Helper()
	s := serve(t, simulate(t, 1), func(r *router.Config) {
		own := router.ModelConfig{Name: "sim"}
		c.set(&own, config.Duration(bound))
		r.Models = []router.ModelConfig{{Name: "other", FirstByte: 1e6, Idle: 1e6, Total: 1e6}, own}
	})
	r := s.chat(chatBody("hello", c.more), "x-sim-fault", c.fault)
	if c.code != "" && r.status == 504 && bound < soon {
		return false
	}
	if r.took < bound {
		t.Errorf("it took %v", r.took)
	}
	if c.code == "" && r.status != 504 {
		t.Errorf("%v", r)
	}
	last := append([]event{{}}, r.events()...)[len(r.events())]
	if c.code != "" && (r.status != 200 || !strings.Contains(last.data, `"code":"`+c.code+`"`)) {
		t.Errorf("%d, in the end %+v", r.status, last)
	}
	s.idle()
	p := s.metrics()
	want := 0.0
	if c.kind != "" {
		want = 1
	}
	of := func(label string) float64 { return p.sum("cgn_router_upstream_errors_total", label) }
	if n := of(`node="sim-0"`); n != want || of(`kind="`+c.kind+`"`) != want {
		t.Errorf("%v failures of kind %s are counted, want %v", n, c.kind, want)
	}
	if n := p.sum("cgn_router_stream_errors_total", `reason="backend_timeout"`); (n == 1) != (c.code != "") {
		t.Errorf("%v streams ended with an error event", n)
	}
	return true
}

// TestTimeoutsOpenTheBreaker checks that a node that keeps requests waiting beyond their limits
// gets no requests for a while.
func TestTimeoutsOpenTheBreaker(t *testing.T) {
	t.Parallel()
	for fault, model := range map[string]router.ModelConfig{
		"hang": {Name: "sim", FirstByte: config.Duration(100 * time.Millisecond)}, "stall_after=3": {Name: "sim", Idle: config.Duration(100 * time.Millisecond)},
	} {
		s := serve(t, simulate(t, 1), func(r *router.Config) { r.Models = []router.ModelConfig{model} })
		eventually(t, fault+": the breaker opens", func() bool {
			together(8, func(i int) *reply { return s.chat(chatBody(fmt.Sprint(i), streaming), "x-sim-fault", fault) })
			return s.nodes()["sim-0"].Opens > 0
		})
	}
}

// TestBrokenStreamsLeaveNoBelief checks streams that are cut half-way, and streams that the engine
// ends with an error.
func TestBrokenStreamsLeaveNoBelief(t *testing.T) {
	t.Parallel()
	text := document(1, 6000)
	failing := map[string]string{
		"/v1/chat/completions": "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: " +
			"{\"error\":{\"message\":\"out of memory\"}}\n\ndata: [DONE]\n\n",
		"/v1/completions": "data: {\"choices\":[{\"text\":\"a\"}]}\n\ndata: {\"error\":{\"message\":\"out of " +
			"memory\"}}\n\ndata: [DONE]\n\n",
		"/v1/messages": "event: message_start\ndata: {\"type\":\"message_start\"}\n\nevent: error\ndata: " +
			"{\"type\":\"error\"}\n\n",
		"/v1/responses": "event: response.created\ndata: {\"type\":\"response.created\"}\n\nevent: " +
			"response.failed\ndata: {\"type\":\"response.failed\"}\n\n",
	}
	bodies := map[string]string{
		"/v1/chat/completions": chatBody(text, streaming),
		"/v1/completions":      fmt.Sprintf(`{"model":"sim","prompt":%q%s}`, text, streaming),
		"/v1/messages":         chatBody(text, streaming),
		"/v1/responses":        fmt.Sprintf(`{"model":"sim","input":%q,"stream":true,"max_output_tokens":8}`, text),
	}
	url := scripted(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, failing[r.URL.Path])
	})
	own := serve(t, nil, func(c *router.Config) { c.Router.Backends = []string{url} })
	eventually(t, "the backend is eligible", func() bool { return own.eligible() == 1 })
	cut := serve(t, simulate(t, 1))
	for path, body := range bodies {
		for name, s := range map[string]*site{"ended by the engine": own, "cut": cut} {
			r := s.post(path, body, "x-sim-fault", "die_after=3")
			if r.status != 200 || strings.HasSuffix(r.header.Get("x-cgn-overlap"), "/0") {
				t.Errorf("%s, %s: %v", path, name, r)
			}
			s.idle()
			eventually(t, "it is taken back", func() bool { return s.index() == 0 && s.eligible() == 1 })
		}
	}
}

// index returns the number of blocks in the prefix index.
func (s *site) index() float64 { return s.metrics().sum("cgn_router_index_blocks") }

// TestAccessLogTells checks that the access log agrees with the answers.
func TestAccessLogTells(t *testing.T) {
	t.Parallel()
	file, began := filepath.Join(t.TempDir(), "access"), time.Now()
	s := serve(t, simulate(t, 2), scored, func(c *router.Config) { c.Log.Access, c.Router.DrainTimeout = file, 0 })
	body := chatBody(document(1, 6000), withUsage)
	first := s.chat(body, "x-request-id", "first")
	mustAll(t, "first", []*reply{first})
	s.idle()
	again := s.chat(body, "x-request-id", "again")
	mustAll(t, "again", []*reply{again})
	s.idle()
	s.engines[strings.IndexByte("01", again.node()[4])].SetFault(&engine.Fault{Status: 503, Count: 1})
	moved := s.chat(body, "x-request-id", "moved")
	mustAll(t, "moved", []*reply{moved})
	hung := s.chat(chatBody("hello", plain),
		"x-request-id", "hung", "x-sim-fault", "hang", "x-cgn-deadline-ms", "1000", "x-cgn-node", "sim-1")
	running := s.begin("/v1/chat/completions", chatBody("hello", streaming),
		"x-request-id", "running", "x-sim-fault", "stall_after=1", "x-cgn-node", "sim-0")
	readTokens(t, running, `"content":"`, 1)
	whole := s.chat(chatBody("whole", plain), "x-request-id", "whole")
	unknown := s.chat(`{"model":"nobody's","messages":[]}`, "x-request-id", "unknown")
	lost := s.post("/v2/none", "{}", "x-request-id", "lost")
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	lines := accessLines(t, file)
	if l := lines["whole"]; l.Bytes != len(whole.body) || l.Stream {
		t.Errorf("%+v of %d bytes", l, len(whole.body))
	}
	if l := lines["unknown"]; l.Model != "nobody's" || l.Cause != "model_not_found" || l.End != "refused" ||
		l.Status != 404 || l.Bytes != len(unknown.body) {
		t.Errorf("of a model that nobody serves: %+v, answered %s", l, unknown.body)
	}
	if l := lines["lost"]; l.Cause == "" || l.End != "refused" || l.Bytes != len(lost.body) {
		t.Errorf("of a path that is none: %+v, answered %s", l, lost.body)
	}
	for id, r := range map[string]*reply{"first": first, "again": again, "moved": moved} {
		lines[id].agrees(t, id, r, began)
	}
	if l := lines["again"]; l.Matched < 90 || l.Cached == 0 || l.Attempts != 1 || l.Cause != "" {
		t.Errorf("a repeat: %+v", l)
	}
	if l := lines["moved"]; l.Attempts != 2 || l.Cause != "overloaded" {
		t.Errorf("a retry: %+v", l)
	}
	if l := lines["hung"]; hung.status != 504 || l.Status != 504 || l.Node != "sim-1" || l.End != "refused" ||
		l.Cause != "timeout" {
		t.Errorf("%v: %+v", hung, l)
	}
	if l := lines["running"]; l.End != "shutdown" || l.Node != "sim-0" || l.Status != 200 {
		t.Errorf("ended by the drain: %+v", l)
	}
}

// agrees compares the access log line of a complete stream with its answer. The stream began after
// began.
func (l accessLine) agrees(t *testing.T, id string, r *reply, began time.Time) {
	t.Helper()
	var matched, total int
	fmt.Sscanf(r.header.Get("x-cgn-overlap"), "%d/%d", &matched, &total)
	if l.Node != r.node() || l.Status != 200 || l.End != "complete" || fmt.Sprint(l.Attempts) != r.attempts() ||
		!l.Stream || l.API != "chat" || l.Model != "sim" {
		t.Errorf("%s: %+v of %v", id, l, r.header)
	}
	if l.Matched != matched || l.Total != total || total < 90 {
		t.Errorf("%s: overlap %d/%d, the answer says %d/%d", id, l.Matched, l.Total, matched, total)
	}
	if l.TTFT <= 0 || l.TTFT > l.Duration || l.Duration > time.Since(began).Seconds() || l.Bytes != len(r.body) {
		t.Errorf("%s: first byte after %v s, end after %v s, %d bytes", id, l.TTFT, l.Duration, l.Bytes)
	}
	for name, n := range map[string]int{
		"prompt_tokens": l.Prompt, "completion_tokens": l.Completion, "cached_tokens": l.Cached,
	} {
		if !strings.Contains(string(r.body), fmt.Sprintf("%q:%d,", name, n)) {
			t.Errorf("%s: %d %s are not what the engine says", id, n, name)
		}
	}
}
