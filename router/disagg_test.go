package router_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// pair starts engines with the connector nixl, and a router in front of them in which the first
// prefills engines have role prefill and the others role decode.
func pair(t *testing.T, prefills, decodes int, tweak ...func(*router.Config)) *site {
	t.Helper()
	engines := simulate(t, prefills+decodes, func(c *engine.Config) { c.Connector = "nixl" })
	return serve(t, nil, append([]func(*router.Config){func(c *router.Config) {
		c.Router.Mode = "score"
		for i, e := range engines {
			role := "prefill"
			if i >= prefills {
				role = "decode"
			}
			c.Router.Backends = append(c.Router.Backends, fmt.Sprintf("%s,id=sim-%d,role=%s", e.URL(), i, role))
		}
	}}, tweak...)...)
}

func TestPromptIsHandedOver(t *testing.T) {
	s := pair(t, 1, 1)
	s.ready(2)
	prompt := strings.Repeat("a long prompt that fills many blocks. ", 100)
	for _, stream := range []bool{false, true} {
		body := fmt.Sprintf(`{"model":"sim","stream":%v,"max_tokens":8,"messages":[{"role":"user","content":%q}]}`, stream, prompt)
		resp, err := s.client.Post(s.url+"/v1/chat/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		t.Logf("%d %v %s", resp.StatusCode, resp.Header, text)
		if resp.StatusCode != http.StatusOK || resp.Header.Get("x-cgn-prefill-node") != "sim-0" {
			t.Errorf("%d", resp.StatusCode)
		}
	}
}

// ready waits until this many nodes of any role are in service.
func (s *site) ready(nodes int) {
	s.t.Helper()
	eventually(s.t, "every node is in service", func() bool {
		count := 0
		for _, n := range s.nodes() {
			if n.Eligible {
				count++
			}
		}
		return count == nodes
	})
}
