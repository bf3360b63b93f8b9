package router_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/sim/engine"
)

// code returns the error code of an OpenAI error body.
func (r *reply) code() string {
	var doc struct {
		Error struct{ Code, Message string }
	}
	if json.Unmarshal(r.body, &doc) != nil || doc.Error.Message == "" {
		return "no error envelope"
	}
	return doc.Error.Code
}

func TestPin(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 4))
	for i, r := range together(16, func(i int) *reply {
		return s.chat(chatBody(fmt.Sprint("question ", i), streaming), "x-cgn-node", "sim-2")
	}) {
		if r.status != 200 || r.node() != "sim-2" || r.attempts() != "1" {
			t.Errorf("request %d: %v", i, r)
		}
	}
	if r := s.chat(chatBody("hello", ""), "x-cgn-node", "sim-9"); r.status != 404 || r.code() != "node_not_found" {
		t.Errorf("a node that is not there: %v", r)
	}
	s.engines[2].Refuse()
	if r := s.chat(chatBody("hello", ""), "x-cgn-node", "sim-2"); r.status != 503 || r.header.Get("Retry-After") == "" {
		t.Errorf("a node that refuses: %v", r)
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2))
	for _, e := range s.engines {
		e.SetFault(&engine.Fault{Hang: true})
	}
	for kind, more := range kinds {
		r := s.chat(chatBody("hello", more), "x-cgn-deadline-ms", "150")
		if r.status != 504 || r.code() != "deadline_exceeded" || r.took < 150*time.Millisecond {
			t.Errorf("%s: %v", kind, r)
		}
	}
	for _, e := range s.engines {
		e.SetFault(nil)
	}
	eventually(t, "no node is blamed", func() bool { return s.eligible() == 2 })
	var r *reply
	for ms := 300; ms <= 10_000; ms *= 2 { // the head must come before the deadline
		if r = s.chat(chatBody("hello", streaming), "x-cgn-deadline-ms", fmt.Sprint(ms), "x-sim-fault",
			"stall_after=3"); r.status == 200 {
			break
		}
	}
	events := append([]event{{}}, r.events()...)
	if last := events[len(events)-1]; r.status != 200 || !openAIError(last) ||
		!bytes.Contains([]byte(last.data), []byte("deadline_exceeded")) {
		t.Errorf("in a stream: %v", r)
	}
	for _, bad := range []string{"0", "-1", "soon", "1e3", "99999999999"} {
		if r := s.chat(chatBody("hello", ""), "x-cgn-deadline-ms", bad); r.status != 400 {
			t.Errorf("%s ms: %v", bad, r)
		}
	}
	if r := s.chat(chatBody("hello", streaming), "x-cgn-deadline-ms", "20000"); r.status != 200 {
		t.Errorf("a long deadline: %v", r)
	}
}

// TestSessionsStick checks that requests of one session without a common prefix go to one node.
// Different sessions spread.
func TestSessionsStick(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 4))
	used := map[string]int{}
	for session := range 16 {
		node := ""
		for turn := range 4 {
			r := s.chat(chatBody(fmt.Sprint(session, turn), plain), "x-cgn-session-id", fmt.Sprint("session-", session))
			mustAll(t, "turn", []*reply{r})
			if node == "" {
				node = r.node()
			}
			if r.node() != node {
				t.Errorf("session %d, turn %d: %s instead of %s", session, turn, r.node(), node)
			}
		}
		used[node]++
	}
	if len(used) < 3 {
		t.Errorf("sixteen sessions are on %v", used)
	}
}

// TestModelNameOfABackend checks that clients use the name in model= and that the engine gets its
// own name. Nothing else may change.
func TestModelNameOfABackend(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 2)
	s := serve(t, nil, func(c *router.Config) {
		c.Router.Backends = []string{engines[0].URL() + ",id=a,model=public/large", engines[1].URL() + ",id=b"}
	})
	eventually(t, "both serve", func() bool { return s.eligible() == 2 })
	body := `{"model":"%s","max_tokens":2, "messages":[{"role":"user","content":"say \"model\":\"x\""}]}`
	for name, node := range map[string]string{"public/large": "a", "sim": "b"} {
		r := s.chat(fmt.Sprintf(body, name))
		if r.status != 200 || r.node() != node {
			t.Errorf("%s: %v", name, r)
		}
		if status, page := s.get(s.url + "/v1/models/" + name); status != 200 ||
			!bytes.Contains(page, []byte(`"`+name+`"`)) {
			t.Errorf("/v1/models/%s: %d %s", name, status, page)
		}
	}
	if got := lastTo(t, engines[0], "/v1/chat/completions"); string(got.Body) != fmt.Sprintf(body, "sim") {
		t.Errorf("the engine got %s", got.Body)
	}
	if r := s.chat(fmt.Sprintf(body, "large")); r.status != 404 || r.code() != "model_not_found" {
		t.Errorf("an unknown model: %v", r)
	}
}

// TestStoredResponses checks that requests for a stored response go to the node that made it.
func TestStoredResponses(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 4))
	id := func(r *reply) string {
		t.Helper()
		var doc struct{ ID string }
		if err := json.Unmarshal(r.body, &doc); err != nil || doc.ID == "" {
			t.Fatalf("%v", r)
		}
		return doc.ID
	}
	type made struct{ id, node string }
	var all []made
	for i := range 12 {
		r := s.post("/v1/responses", fmt.Sprintf(`{"model":"sim","input":"question %d","max_output_tokens":4}`, i))
		mustAll(t, "create", []*reply{r})
		all = append(all, made{id(r), r.node()})
	}
	// A streamed response is known from its first event on.
	r := s.post("/v1/responses", `{"model":"sim","input":"streamed","max_output_tokens":4,"stream":true}`)
	mustAll(t, "stream", []*reply{r})
	var first struct{ Response struct{ ID string } }
	if err := json.Unmarshal([]byte(r.events()[0].data), &first); err != nil {
		t.Fatal(err)
	}
	all = append(all, made{first.Response.ID, r.node()})
	for _, m := range all {
		if r := s.ask(http.MethodGet, "/v1/responses/"+m.id, ""); r.status != 200 || r.node() != m.node ||
			id(r) != m.id {
			t.Errorf("get %v: %v", m, r)
		}
		r := s.post("/v1/responses",
			fmt.Sprintf(`{"model":"sim","input":"and then?","previous_response_id":%q,"max_output_tokens":4}`, m.id))
		if r.status != 200 || r.node() != m.node {
			t.Errorf("go on from %v: %v", m, r)
		}
	}
	gone := all[0]
	if r := s.ask(http.MethodDelete, "/v1/responses/"+gone.id, ""); r.status != 200 || r.node() != gone.node {
		t.Errorf("delete: %v", r)
	}
	if r := s.ask(http.MethodGet, "/v1/responses/"+gone.id, ""); r.status != 404 {
		t.Errorf("get what was deleted: %v", r)
	}
	if r := s.ask(http.MethodGet, "/v1/responses/resp_unknown", ""); r.status != 404 ||
		r.code() != "response_not_found" {
		t.Errorf("get an unknown one: %v", r)
	}
	leaver := all[1]
	var rest []fleet.Backend
	for i, e := range s.engines {
		if name := fmt.Sprint("sim-", i); name != leaver.node {
			rest = append(rest, fleet.Backend{URL: e.URL(), ID: name})
		}
	}
	if err := s.Reload(t.Context(), rest); err != nil {
		t.Fatal(err)
	}
	if r := s.ask(http.MethodGet, "/v1/responses/"+leaver.id, ""); r.status != 404 || r.code() != "response_node_gone" {
		t.Errorf("get from a node that left: %v", r)
	}
	body := fmt.Sprintf(`{"model":"sim","input":"and then?","previous_response_id":%q}`, leaver.id)
	if r := s.post("/v1/responses", body); r.status != 404 || r.code() != "response_node_gone" {
		t.Errorf("go on from a node that left: %v", r)
	}
}
