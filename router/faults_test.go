package router_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/sim/engine"
)

// apis are the streaming endpoints: a request for 64 tokens, the mark of a token event, and the
// error event of a failure.
var apis = []struct {
	name, path, body, token string
	failed                  func(e event) bool
}{
	{"chat", "/v1/chat/completions", chatBody("tell me", `,"stream":true,"max_tokens":64`), `"content":"`, openAIError},
	{"completions", "/v1/completions", `{"model":"sim","prompt":"tell me","stream":true,"max_tokens":64}`, `"text":"`, openAIError},
	{"responses", "/v1/responses", `{"model":"sim","input":"tell me","stream":true,"max_output_tokens":64}`, `"type":"response.output_text.delta"`, responsesError},
	{"messages", "/v1/messages", `{"model":"sim","max_tokens":64,"stream":true,"messages":[{"role":"user","content":"tell me"}]}`, `"type":"text_delta"`, anthropicError},
}

func openAIError(e event) bool {
	var doc struct {
		Error struct{ Message, Type, Code string }
	}
	return e.name == "" && json.Unmarshal([]byte(e.data), &doc) == nil && doc.Error.Message != "" &&
		doc.Error.Type != ""
}

func responsesError(e event) bool {
	var doc struct {
		Type, Code, Message string
		Sequence            int64 `json:"sequence_number"`
	}
	return e.name == "error" && json.Unmarshal([]byte(e.data), &doc) == nil && doc.Type == "error" &&
		doc.Message != "" && doc.Sequence > 0
}

func anthropicError(e event) bool {
	var doc struct {
		Type  string
		Error struct{ Type, Message string }
	}
	return e.name == "error" && json.Unmarshal([]byte(e.data), &doc) == nil && doc.Type == "error" &&
		doc.Error.Type != "" && doc.Error.Message != ""
}

// tokens counts the events with a piece of the answer.
func tokens(events []event, mark string) (n int) {
	for _, e := range events {
		if strings.Contains(e.data, mark) && !strings.Contains(e.data, mark+`"`) {
			n++
		}
	}
	return n
}

// readTokens reads a stream until n pieces of the answer have come.
func readTokens(t *testing.T, resp *http.Response, mark string, n int) (page []byte) {
	t.Helper()
	for tokens(eventsOf(page), mark) < n {
		more := make([]byte, 4096)
		read, err := resp.Body.Read(more)
		if err != nil {
			t.Fatalf("after %s: %v", page, err)
		}
		page = append(page, more[:read]...)
	}
	return page
}

// TestEngineKilledMidStream checks how a stream ends that no other node may go on with.
func TestEngineKilledMidStream(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2), resumes("off"))
	for _, api := range apis {
		for _, how := range []string{"rst", "fin"} {
			t.Run(api.name+"/"+how, func(t *testing.T) {
				resp, err := s.send(t.Context(), http.MethodPost, api.path, api.body, "x-sim-fault",
					"stall_after=10,close="+how)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				page := readTokens(t, resp, api.token, 10)
				e := s.engines[slices.Index([]string{"sim-0", "sim-1"}, resp.Header.Get("x-cgn-node"))]
				if how == "rst" {
					e.Kill()
				} else {
					e.Refuse()
				}
				rest, err := io.ReadAll(resp.Body)
				events := eventsOf(append(page, rest...))
				if err != nil || tokens(events, api.token) != 10 || !api.failed(events[len(events)-1]) {
					t.Errorf("%v; %d tokens, and in the end %+v", err, tokens(events, api.token), events[len(events)-1])
				}
				if bytes.Contains(rest, []byte("[DONE]")) || bytes.Contains(rest, []byte("message_stop")) ||
					bytes.Contains(rest, []byte("response.completed")) {
					t.Errorf("a clean-looking end: %s", rest)
				}
				s.idle()
				if n := resp.Header.Get("x-cgn-attempts"); n != "1" {
					t.Errorf("%s attempts", n)
				}
				if err := e.Accept(); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the node is back", func() bool { return s.eligible() == 2 })
			})
		}
	}
	if got := s.metrics().sum("cgn_router_retries_total"); got != 0 {
		t.Errorf("%v retries of streams that had begun", got)
	}
}

// TestDeadBeforeHeaders checks that a failure before the answer makes the router ask another node,
// unnoticed by the client.
func TestDeadBeforeHeaders(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]engine.Fault{
		"reset": {Reset: true}, "closed": {Reset: true, Close: "fin"}, "garbage": {Garbage: true}, "truncated": {Truncate: true},
	} {
		for kind, more := range kinds {
			if fault.Truncate && kind == "stream" || kind == "unbounded" {
				continue // a truncated stream dies half-way; an unbounded answer adds nothing
			}
			t.Run(name+"/"+kind, func(t *testing.T) {
				s := serve(t, simulate(t, 2), scored)
				s.engines[0].SetFault(&fault)
				retried := 0
				for i := range 8 {
					r := s.chat(chatBody(fmt.Sprint("question ", i), more))
					mustAll(t, name, []*reply{r})
					if r.attempts() == "2" && r.node() == "sim-1" {
						retried++
					}
				}
				if retried == 0 {
					t.Error("none was retried")
				}
			})
		}
	}
}

func TestRefusedOnConnect(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2))
	s.engines[0].Refuse()
	all := together(32, func(i int) *reply { return s.chat(chatBody(fmt.Sprint("question ", i), streaming)) })
	mustAll(t, "one of two refuses", all)
	if !slices.ContainsFunc(all, func(r *reply) bool { return r.attempts() == "2" }) {
		t.Error("nobody was retried")
	}
	for _, r := range all {
		if r.node() != "sim-1" {
			t.Errorf("answered by %s", r.node())
		}
	}
}

// TestOneOfFourFails sends 200 requests, 8 at a time, half of them streams.
func TestOneOfFourFails(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*engine.Engine){
		"refuses":    func(e *engine.Engine) { e.Refuse() },
		"answers500": func(e *engine.Engine) { e.SetFault(&engine.Fault{Status: 500}) },
		"resets":     func(e *engine.Engine) { e.SetFault(&engine.Fault{Reset: true}) },
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, simulate(t, 4), scored)
			mustAll(t, "before", together(16, func(i int) *reply {
				return s.chat(chatBody(fmt.Sprint("warm ", i), streaming))
			}))
			fail(s.engines[2])
			for round := range 25 {
				mustAll(t, name, together(8, func(i int) *reply {
					more := streaming
					if i%2 == 0 {
						more = `,"max_tokens":8`
					}
					return s.chat(chatBody(fmt.Sprint("round ", round, " question ", i), more))
				}))
			}
			if s.nodes()["sim-2"].Opens == 0 {
				t.Error("its breaker has never opened")
			}
			if n := s.metrics().sum("cgn_router_retries_total"); n > 40 {
				t.Errorf("%v retries for 200 requests", n)
			}
		})
	}
}

// TestClientErrorsPassThrough checks that an engine's 4xx reaches the client byte for byte. The 4xx
// does not count against the engine.
func TestClientErrorsPassThrough(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2))
	for _, status := range []int{400, 401, 403, 404, 409, 413, 422} {
		fault := fmt.Sprint("status=", status)
		direct, err := http.NewRequest(http.MethodPost, s.engines[0].URL()+"/v1/chat/completions",
			strings.NewReader(chatBody("x", "")))
		if err != nil {
			t.Fatal(err)
		}
		direct.Header.Set("x-sim-fault", fault)
		resp, err := s.client.Do(direct)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		for i, r := range together(60, func(i int) *reply {
			more := streaming
			if i%2 == 0 {
				more = ""
			}
			return s.chat(chatBody(fmt.Sprint("question ", i), more), "x-sim-fault", fault)
		}) {
			if r.status != status || !bytes.Equal(r.body, want) || r.attempts() != "1" || r.err != nil {
				t.Fatalf("%d, request %d: %v, want %s", status, i, r, want)
			}
		}
	}
	for id, n := range s.nodes() {
		if n.State != "healthy" || n.Opens != 0 {
			t.Errorf("%s: %+v", id, n)
		}
	}
	mustAll(t, "afterwards", together(16, func(i int) *reply { return s.chat(chatBody(fmt.Sprint(i), streaming)) }))
}

// TestSame500FromTwoNodes checks that a request that fails on every engine counts as the request's
// fault.
func TestSame500FromTwoNodes(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 4))
	for i := range 30 {
		r := s.chat(chatBody(fmt.Sprint("poison ", i), streaming), "x-sim-fault", "status=500")
		if r.status != 500 || r.attempts() != "2" || !bytes.Contains(r.body, []byte("fault on demand")) {
			t.Fatalf("request %d: %v", i, r)
		}
	}
	for id, n := range s.nodes() {
		if n.State != "healthy" || n.Opens != 0 {
			t.Errorf("%s: %+v", id, n)
		}
	}
	mustAll(t, "afterwards", together(16, func(i int) *reply { return s.chat(chatBody(fmt.Sprint(i), streaming)) }))
}

// TestOverloadedEngineIsLeft checks that the router asks another engine after a 429, 502 or 503. If
// all engines answer with one of these, the client gets that answer with its Retry-After.
func TestOverloadedEngineIsLeft(t *testing.T) {
	t.Parallel()
	for _, status := range []int{429, 502, 503} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			s := serve(t, simulate(t, 3))
			s.engines[1].SetFault(&engine.Fault{Status: status, RetryAfter: 7})
			all := together(30, func(i int) *reply { return s.chat(chatBody(fmt.Sprint("question ", i), streaming)) })
			mustAll(t, "one of three overloaded", all)
			if !slices.ContainsFunc(all, func(r *reply) bool { return r.attempts() == "2" }) {
				t.Error("nobody was retried")
			}
			s.engines[1].SetFault(nil)
			r := s.chat(chatBody("nobody can", streaming), "x-sim-fault", fmt.Sprintf("status=%d,retry_after=7",
				status))
			if r.status != status || r.header.Get("Retry-After") != "7" ||
				!bytes.Contains(r.body, []byte("fault on demand")) {
				t.Errorf("all overloaded: %v %v", r, r.header)
			}
		})
	}
}
