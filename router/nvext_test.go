package router_test

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/fleet"
)

// nvextBody is a chat with the given nvext.
func nvextBody(nvext string) string { return chatBody("hello", plain+`,"nvext":`+nvext) }

// TestNvextRoutes checks that pins and lists of workers decide the node, by name and by number, and
// that no engine sees them.
func TestNvextRoutes(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 4))
	for i, e := range s.engines {
		node := fmt.Sprint("sim-", i)
		number := fleet.NumberOf(node)
		_, page := s.get(s.admin + "/debug/fleet")
		if !strings.Contains(string(page), fmt.Sprintf(`"number": %d,`, number)) {
			t.Errorf("/debug/fleet does not have the number of %s: %s", node, page)
		}
		for _, r := range []*reply{
			s.chat(nvextBody(fmt.Sprintf(`{"backend_instance_id":%q}`, node))),
			s.chat(nvextBody(fmt.Sprintf(`{"decode_worker_id":%d}`, number))),
			s.chat(nvextBody(fmt.Sprintf(`{"allowed_worker_ids":[%d,"nobody"]}`, number))),
			s.chat(chatBody("hello", plain), "x-cgn-allowed-worker-ids", fmt.Sprint("nobody, ", number)),
			s.chat(nvextBody(`{"allowed_worker_ids":["sim-9"]}`), "x-cgn-allowed-worker-ids", node),
			s.chat(chatBody("hello", plain), "x-dynamo-worker-instance-id", fmt.Sprint(number)),
			s.chat(nvextBody(`{"backend_instance_id":"sim-9"}`), "x-dynamo-worker-instance-id", node),
			s.chat(nvextBody(`{"backend_instance_id":"sim-9"}`), "x-cgn-node", fmt.Sprint(number),
				"x-dynamo-dp-rank", "0"),
		} {
			if r.status != 200 || r.node() != node {
				t.Errorf("%s: %v", node, r)
			}
			got := lastTo(t, e, "/v1/chat/completions")
			for name := range got.Header {
				if strings.HasPrefix(name, "X-Dynamo-") || strings.HasPrefix(name, "X-Cgn-") {
					t.Errorf("the engine got %s", name)
				}
			}
			if string(got.Body) != chatBody("hello", plain) {
				t.Errorf("the engine got %s", got.Body)
			}
		}
	}
	e := s.explain(nvextBody(`{"allowed_worker_ids":["sim-2"]}`))
	if e.Winner != "sim-2" || e.Candidates[0].Reason != "not among the allowed workers" {
		t.Errorf("%+v", e)
	}
	if e := s.explain(chatBody("hello", ""), "x-dynamo-worker-instance-id", "sim-3"); e.Winner != "sim-3" {
		t.Errorf("%+v", e)
	}
}

// TestAllowedWorkersHeader checks that errors name the header with the list.
func TestAllowedWorkersHeader(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2))
	for _, c := range []struct {
		list, pin string
		status    int
	}{{"nobody", "", 404}, {"a,,b", "", 400}, {"sim-0", "sim-1", 400}} {
		header := []string{"x-cgn-allowed-worker-ids", c.list}
		if c.pin != "" {
			header = append(header, "x-cgn-node", c.pin)
		}
		if r := s.chat(chatBody("hello", plain), header...); r.status != c.status ||
			!strings.Contains(string(r.body), `"param":"x-cgn-allowed-worker-ids`) {
			t.Errorf("%+v: %v", c, r)
		}
	}
	if e, err := s.explained("x-cgn-allowed-worker-ids: sim-1"); err != nil || e.Winner != "sim-1" ||
		e.Candidates[0].Filter != "allowed_workers" {
		t.Errorf("explained: %+v, %v", e, err)
	}
}

// TestExpertsRoute checks that a request's experts choose the node: of --backend and of
// [[backend]], strictly and with the fallback. Without such a node the error names the experts.
func TestExpertsRoute(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 3)
	s := serve(t, engines, func(c *router.Config) {
		c.Router.Backends = []string{engines[0].URL() + ",id=sim-0",
			engines[1].URL() + ",id=sim-1,expert=0-127,expert=code"}
		c.Backends = []router.BackendConfig{{URL: engines[2].URL(), ID: "sim-2", Experts: []string{"128-255"}}}
	})
	ask := func(experts string, fallback bool) string {
		return nvextBody(fmt.Sprintf(`{"router":{"moe_query":{"experts":[%s],"fallback_to_unlabeled":%v}}}`,
			experts, fallback))
	}
	for experts, node := range map[string]string{`3,"code"`: "sim-1", `128,"255"`: "sim-2"} {
		if r := s.chat(ask(experts, false)); r.status != 200 || r.node() != node {
			t.Errorf("%s: %v", experts, r)
		}
	}
	if r := s.chat(ask("3,200", true)); r.status != 200 {
		t.Errorf("with the fallback: %v", r)
	}
	if r := s.chat(ask("3,200", false)); r.status != 503 || r.code() != "no_eligible_node" ||
		!strings.Contains(string(r.body), "(3, 200)") {
		t.Errorf("without a node: %v", r)
	}
	if _, page := s.get(s.admin + "/debug/fleet"); !strings.Contains(string(page), `"128-255"`) {
		t.Errorf("/debug/fleet does not have the experts: %s", page)
	}
	e := s.explain(ask("3,200", false))
	if e.Winner != "" || e.Candidates[2].Reason != "the request's experts must all be on its node, which lacks: 3" {
		t.Errorf("%+v", e)
	}
}

// TestNvextMistakes checks that errors name the field or header.
func TestNvextMistakes(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	for _, c := range []struct {
		nvext, header string
		status        int
		want          string
	}{
		{`{"router":{"router_temprature":1}}`, "", 400, `"param":"nvext.router.router_temprature"`},
		{`{"router":{"router_temprature":1}}`, "", 400, "did you mean `router_temperature`?"},
		{`{"cache_salt":"a"},"cache_salt":"b"`, "", 400, `"param":"nvext.cache_salt"`},
		{`null`, "warm", 400, `"param":"x-cgn-router-temperature"`},
		{`{"backend_instance_id":7}`, "", 404, `"param":"nvext.backend_instance_id"`},
		{`{"allowed_worker_ids":[7]}`, "", 404, `"param":"nvext.allowed_worker_ids"`},
		{`{"router":{"router_temperature":1}}`, "0.5", 200, `"choices"`},
	} {
		var header []string
		if c.header != "" {
			header = []string{"x-cgn-router-temperature", c.header}
		}
		r := s.chat(nvextBody(c.nvext), header...)
		if r.status != c.status || !strings.Contains(string(r.body), c.want) {
			t.Errorf("%s %q: %v", c.nvext, c.header, r)
		}
	}
}

// TestNvextPassthrough checks the body for engines that read nvext themselves.
func TestNvextPassthrough(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1), func(c *router.Config) { c.Router.PassNvext = true })
	body := nvextBody(`{"agent_hints":{"osl":3}}`)
	mustAll(t, "chat", []*reply{s.chat(body)})
	if got := lastTo(t, s.engines[0], "/v1/chat/completions"); string(got.Body) != body {
		t.Errorf("the engine got %s", got.Body)
	}
}

// TestClientsOfOtherHostsDoNotSteer checks insecure_listen with a client that does not come by
// loopback.
func TestClientsOfOtherHostsDoNotSteer(t *testing.T) {
	t.Parallel()
	own := addressOfThisHost(t)
	s := serve(t, simulate(t, 2), func(c *router.Config) {
		c.Router.Listen, c.Router.InsecureListen = net.JoinHostPort(own, "0"), true
	})
	mustAll(t, "an ordinary request", []*reply{s.chat(chatBody("hello", plain), "x-cgn-session-id", "s")})
	for header, value := range map[string]string{
		"x-cgn-node": "sim-0", "x-dynamo-worker-instance-id": "sim-0", "x-cgn-allowed-worker-ids": "sim-0",
		"x-dynamo-dp-rank": "0", "x-data-parallel-rank": "0", "x-cgn-router-temperature": "1",
	} {
		r := s.chat(chatBody("hello", plain), header, value)
		if r.status != 403 || r.code() != "steering_denied" || !strings.Contains(string(r.body), "tls.client_ca") ||
			!strings.Contains(string(r.body), `"param":"`+header+`"`) {
			t.Errorf("%s: %v", header, r)
		}
	}
	if r := s.chat(nvextBody(`{"allowed_worker_ids":["sim-0"]}`)); r.status != 403 {
		t.Errorf("a list of workers: %v", r)
	}
}

// addressOfThisHost returns an address that is not loopback.
func addressOfThisHost(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			return n.IP.String()
		}
	}
	t.Skip("this host has no address but loopback")
	return ""
}
