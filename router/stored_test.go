package router_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// stored is a response stored at an engine.
type stored struct{ id, node string }

// store makes n responses.
func (s *site) store(n int) (all []stored) {
	s.t.Helper()
	for i := range n {
		r := s.post("/v1/responses", fmt.Sprintf(`{"model":"sim","input":"question %d","max_output_tokens":4}`, i))
		var doc struct{ ID string }
		if err := json.Unmarshal(r.body, &doc); err != nil || r.status != 200 || doc.ID == "" {
			s.t.Fatalf("create: %v", r)
		}
		all = append(all, stored{doc.ID, r.node()})
	}
	return all
}

func (s *site) lookups(result string) float64 {
	return s.metrics().sum("cgn_router_response_lookups_total", `result="`+result+`"`)
}

func goOn(id string) string {
	return fmt.Sprintf(`{"model":"sim","input":"and then?","previous_response_id":%q,"max_output_tokens":4}`, id)
}

// TestStoredResponsesOfAnotherRouter checks that another router finds a stored response, with one
// search per id.
func TestStoredResponsesOfAnotherRouter(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 4)
	all := serve(t, engines).store(12)
	s := serve(t, engines)
	for i, m := range all {
		var r *reply
		if i%2 == 0 {
			r = s.ask(http.MethodGet, "/v1/responses/"+m.id, "")
		} else {
			r = s.post("/v1/responses", goOn(m.id))
		}
		if r.status != 200 || r.node() != m.node || r.attempts() != "1" {
			t.Errorf("%v: %v", m, r)
		}
	}
	if n := s.lookups("found"); n != 12 {
		t.Errorf("%v searches found something, want 12", n)
	}
	if r := s.ask(http.MethodDelete, "/v1/responses/"+all[0].id, ""); r.status != 200 || r.node() != all[0].node {
		t.Errorf("delete: %v", r)
	}
	if r := serve(t, engines).ask(http.MethodDelete, "/v1/responses/"+all[1].id, ""); r.status != 200 ||
		r.node() != all[1].node {
		t.Errorf("delete through a third: %v", r)
	}
	for _, r := range []*reply{s.ask(http.MethodGet, "/v1/responses/resp_none/input_items", ""), s.post("/v1/responses",
		goOn("resp_none"))} {
		if r.status != 404 || r.code() != "response_not_found" {
			t.Errorf("nobody has it: %v", r)
		}
	}
	if found, missing := s.lookups("found"), s.lookups("missing"); found != 12 || missing != 2 {
		t.Errorf("%v searches found something, %v nothing", found, missing)
	}
}

// lookupNodeTime is the router's limit for a node's answer in a search.
const lookupNodeTime = 2 * time.Second

// TestStoredResponsesWithNodesDown checks that a silent node hides no other node's responses.
// Responses that may be at the silent node are not called missing.
func TestStoredResponsesWithNodesDown(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 4)
	all := serve(t, engines).store(12)
	s := serve(t, engines)
	const gone, hangs = "sim-0", "sim-1"
	engines[0].Refuse()
	for _, m := range all {
		engines[1].SetFault(&engine.Fault{Hang: true, Path: "/v1/responses/" + m.id})
		if m.node == gone || m.node == hangs {
			continue
		}
		eventually(t, "an answer before the node that hangs is given up", func() bool {
			r := s.ask(http.MethodGet, "/v1/responses/"+m.id, "")
			if r.status != 200 || r.node() != m.node {
				t.Errorf("%v: %v", m, r)
			}
			return r.took < lookupNodeTime
		})
	}
	engines[1].SetFault(&engine.Fault{Status: 500, Path: "/v1/responses/resp_none"})
	for _, r := range []*reply{s.ask(http.MethodGet, "/v1/responses/resp_none", ""), s.post("/v1/responses",
		goOn("resp_none"))} {
		if r.status != 503 || r.code() != "response_unknown" || r.header.Get("Retry-After") == "" ||
			!strings.Contains(string(r.body), "sim-0, sim-1 did not answer") {
			t.Errorf("two did not answer: %v", r)
		}
	}
	engines[1].SetFault(&engine.Fault{Hang: true, Path: "/v1/responses/resp_none"})
	if r := s.ask(http.MethodGet, "/v1/responses/resp_none", "", "x-cgn-deadline-ms", "100"); r.status != 504 {
		t.Errorf("a deadline: %v", r)
	}
	if n := s.nodes()[hangs]; !n.Eligible {
		t.Errorf("searches told against a node: %+v", n)
	}
	engines[1].SetFault(nil)
	if err := engines[0].Accept(); err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		eventually(t, "all nodes answer again", func() bool {
			return s.ask(http.MethodGet, "/v1/responses/"+m.id, "").status == 200
		})
	}
}

// TestStoredResponsesOfNodesThatAreNotThere checks that responses of a departed node are missing.
// Responses that may be at a node yet to come are not reported as missing.
func TestStoredResponsesOfNodesThatAreNotThere(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 3)
	all := serve(t, engines).store(9)
	left := serve(t, engines[:2])
	engines[2].Refuse()
	coming := serve(t, engines[:1], func(c *router.Config) {
		c.Router.Backends = append(c.Router.Backends, engines[2].URL()+",id=sim-2")
	})
	for _, m := range all {
		want := map[string]int{"sim-0": 200, "sim-1": 200, "sim-2": 404}
		if r := left.ask(http.MethodGet, "/v1/responses/"+m.id, ""); r.status != want[m.node] {
			t.Errorf("%v, sim-2 has left: %v", m, r)
		}
		want = map[string]int{"sim-0": 200, "sim-1": 503, "sim-2": 503}
		if r := coming.ask(http.MethodGet, "/v1/responses/"+m.id, ""); r.status != want[m.node] {
			t.Errorf("%v, sim-2 has yet to come: %v", m, r)
		}
	}
	if err := engines[2].Accept(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the last one has come", func() bool { return coming.eligible() == 2 })
	for _, m := range all {
		want := map[string]int{"sim-0": 200, "sim-1": 404, "sim-2": 200}
		if r := coming.post("/v1/responses", goOn(m.id)); r.status != want[m.node] {
			t.Errorf("%v, sim-2 has come: %v", m, r)
		}
	}
}

// TestStoredResponseSearchesAreBounded checks that only a limited number of searches runs at once.
// A search ends when its client leaves.
func TestStoredResponseSearchesAreBounded(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 2)
	s := serve(t, engines)
	for _, e := range engines {
		e.SetFault(&engine.Fault{Hang: true, Path: "/v1/responses/resp_none"})
	}
	refused := 0
	for _, r := range together(80, func(int) *reply { return s.ask(http.MethodGet, "/v1/responses/resp_none", "") }) {
		switch {
		case r.status != 503 || r.header.Get("Retry-After") == "":
			t.Errorf("%v", r)
		case r.code() == "lookups_full":
			refused++
		}
	}
	if refused != 16 || s.lookups("refused") != 16 || s.lookups("unanswered") != 64 {
		t.Errorf("%d of 80 were refused, want 16", refused)
	}
	conn := s.dial()
	fmt.Fprint(conn, "GET /v1/responses/resp_none HTTP/1.1\r\nHost: x\r\n\r\n")
	eventually(t, "the search has begun", func() bool { return engines[0].Stats().Faults > 64 })
	conn.Close()
	eventually(t, "it ends with its client", func() bool {
		return s.metrics().sum("cgn_router_client_cut_total", `reason="left"`) == 1
	})
	if n := s.lookups("unanswered"); n != 64 {
		t.Errorf("%v searches ran to their end, 64 should have", n)
	}
}

// TestStoredResponseIDs checks that an id that no engine makes is not looked for.
func TestStoredResponseIDs(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 2)
	s := serve(t, engines)
	for _, id := range []string{"..", ".", "../../reset_prefix_cache", "a/b", "a?b=c", "a#b", "%2e%2e", "a b",
		"a\r\nX: y", "é", strings.Repeat("a", 257)} {
		if r := s.post("/v1/responses", goOn(id)); r.status != 404 || r.code() != "response_not_found" {
			t.Errorf("%q: %v", id, r)
		}
	}
	for _, path := range []string{"/v1/responses/%2e%2e%2fx", "/v1/responses/a%0d%0ab", "/v1/responses/a%3fb",
		"/v1/responses//"} {
		if r := s.ask(http.MethodGet, path, ""); r.status != 404 && r.status != 405 {
			t.Errorf("%s: %v", path, r)
		}
	}
	for _, e := range engines {
		for _, r := range e.Requests() {
			if strings.Contains(r.Path, "responses") || strings.Contains(r.Path, "reset") {
				t.Errorf("an engine got %s", r.Path)
			}
		}
	}
}

// TestStoredResponsesAskWithTheNodesKey checks the key of the search. A request that names a model
// is searched only at that model's nodes.
func TestStoredResponsesAskWithTheNodesKey(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 3, func(c *engine.Config) {
		if c.APIKey = "key-of-" + c.ID; c.ID == "sim-2" {
			c.Models = []string{"other"}
		}
	})
	keys := func(c *router.Config) {
		dir := t.TempDir()
		for i := range c.Router.Backends {
			file := filepath.Join(dir, fmt.Sprint(i))
			if err := os.WriteFile(file, []byte(fmt.Sprint("key-of-sim-", i)), 0o600); err != nil {
				t.Fatal(err)
			}
			c.Router.Backends[i] += ",api_key_file=" + file
		}
	}
	all := serve(t, engines, keys).store(6)
	s := serve(t, engines, keys)
	for _, m := range all {
		if r := s.post("/v1/responses", goOn(m.id)); r.status != 200 || r.node() != m.node {
			t.Errorf("%v: %v", m, r)
		}
	}
	asked := func(e *engine.Engine, id string) bool {
		return slices.ContainsFunc(e.Requests(), func(r engine.Request) bool { return r.Path == "/v1/responses/"+id })
	}
	for _, m := range all {
		if asked(engines[2], m.id) {
			t.Error("a node of another model was asked")
		}
	}
	if r := s.ask(http.MethodGet, "/v1/responses/resp_none", ""); r.status != 404 || !asked(engines[2], "resp_none") {
		t.Errorf("without a model every node is asked: %v", r)
	}
}

// TestStoredResponsesAndTheClientsKey checks that a node that refuses the client's key does not
// count as lacking the response.
func TestStoredResponsesAndTheClientsKey(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2, func(c *engine.Config) { c.APIKey = "right" }), func(c *router.Config) {
		c.Router.ForwardAuth = true
		for i := range c.Router.Backends {
			c.Router.Backends[i] += ",model=sim"
		}
	})
	for key, want := range map[string]string{"wrong": "response_denied", "right": "response_not_found"} {
		if r := s.ask(http.MethodGet, "/v1/responses/resp_none", "", "Authorization", "Bearer "+key); r.code() != want {
			t.Errorf("the %s key: %v", key, r)
		}
	}
}

// TestStoredResponsesOfNodesThatDoNotAnswer checks that the error names the node and its problem
// while the response may still be there.
func TestStoredResponsesOfNodesThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 2)
	s := serve(t, engines, func(c *router.Config) {
		for i := range c.Router.Backends {
			c.Router.Backends[i] += ",max_concurrent=1"
		}
	})
	m := s.store(1)[0]
	down := engines[0]
	if m.node == "sim-1" {
		down = engines[1]
	}
	unavailable := func(r *reply, why string) bool {
		return r.status == 503 && r.code() == "response_node_unavailable" && r.header.Get("Retry-After") != "" &&
			strings.Contains(string(r.body), "the node that stored this response ("+m.node+") "+why)
	}
	busy := s.begin("/v1/chat/completions", chatBody("hello", `,"stream":true,"max_tokens":100000`), "x-cgn-node",
		m.node)
	if r := s.post("/v1/responses", goOn(m.id)); !unavailable(r, "is at its limit") {
		t.Errorf("busy: %v", r)
	}
	busy.Body.Close()
	s.idle()
	down.Refuse()
	if r := s.ask(http.MethodGet, "/v1/responses/"+m.id, ""); !unavailable(r, "does not answer") {
		t.Errorf("get: %v", r)
	}
	eventually(t, "the node is known to be down", func() bool { return !s.nodes()[m.node].Eligible })
	for range 3 {
		// either of the two while the node is tried again
		if r := s.post("/v1/responses", goOn(m.id)); !unavailable(r, "takes no requests now: breaker open") &&
			!unavailable(r, "does not answer") {
			t.Errorf("go on: %v", r)
		}
	}
	if err := down.Accept(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it answers again", func() bool { return s.post("/v1/responses", goOn(m.id)).status == 200 })
}

// TestEndpointsBelowResponses checks that endpoints below /v1/responses pass through. One that
// continues a stored response goes to the response's node.
func TestEndpointsBelowResponses(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 3))
	for _, m := range s.store(6) {
		for _, path := range []string{"/v1/responses/input_tokens", "/v1/responses/compact"} {
			// the engine's own error
			if r := s.post(path, goOn(m.id)); r.node() != m.node ||
				!strings.Contains(string(r.body), `{"detail":"Not Found"}`) {
				t.Errorf("%s of %v: %v", path, m, r)
			}
		}
	}
	if r := s.post("/v1/responses/input_tokens", `{"model":"sim","input":"how long is this?"}`); r.node() == "" {
		t.Errorf("%v", r)
	}
	if r := s.post("/v1/responses/resp_none/cancel", ""); r.status != 404 || r.code() != "response_not_found" {
		t.Errorf("%v", r)
	}
}
