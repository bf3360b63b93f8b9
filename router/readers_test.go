package router_test

import (
	"encoding/json"
	"net"
	"path/filepath"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/frame"
	"github.com/cognitora/dataplane/router"
)

// readerOf connects to the lease socket of a cache as the connector of a node's engine, and says
// what the engine can read. stop ends the connection before the test ends.
func readerOf(t *testing.T, socket, node string, spaces ...block.Namespace) (stop func()) {
	t.Helper()
	c, err := net.Dial("unix", filepath.Join(filepath.Dir(socket), "kv-lease.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	ask := func(op frame.Op, count int, body []byte) {
		out := frame.Append(nil, frame.Header{Op: op, Count: uint16(count)})
		if _, err := c.Write(frame.End(append(out, body...), 0)); err != nil {
			t.Fatal(err)
		}
		in := make([]byte, frame.MaxFrame)
		n, err := c.Read(in)
		if err != nil {
			t.Fatal(err)
		}
		if h, _, err := frame.Answer(in[:n]); err != nil || h.Op != op || h.Status != frame.StatusOK {
			t.Fatal(h, err)
		}
	}
	ask(frame.OpHello, 0, frame.AppendHello(nil, &frame.Hello{Min: frame.Version, Max: frame.Version}))
	for _, s := range spaces {
		text := s.String()
		ask(frame.OpRead, len(node)+len(text),
			frame.AppendRead(nil, &frame.Read{Node: []byte(node), Namespace: []byte(text)}))
	}
	return func() { _ = c.Close() }
}

// TestNewWeights starts an engine anew with other weights under its name, beside an engine with
// another data type on the same cache. The blocks that an engine cannot load do not count for it.
func TestNewWeights(t *testing.T) {
	t.Parallel()
	socket, cache := cacheDaemon(t)
	engines := simulate(t, 2)
	s := serve(t, nil, scored, func(c *router.Config) {
		c.Router.Backends = []string{engines[0].URL() + ",id=bf16,kv=unix://" + socket,
			engines[1].URL() + ",id=fp8,kv=unix://" + socket}
	})
	eventually(t, "both nodes are eligible", func() bool { return s.eligible() == 2 })
	tokens, chain := promptOf(20)
	body, err := json.Marshal(map[string]any{"model": "sim", "prompt": tokens, "max_tokens": 1})
	if err != nil {
		t.Fatal(err)
	}
	first := block.Namespace{Model: "sim", Revision: "1", DType: "bf16", Layout: "l", Tokens: 16, TP: 1, PP: 1}
	second, small := first, first
	second.Revision, small.DType = "2", "fp8"
	counts := func(what string, bf16, fp8 int) {
		t.Helper()
		var e explanation
		eventually(t, what, func() bool {
			e = s.explainAs("completions", string(body))
			return len(e.Candidates) == 2 && e.Candidates[0].Host == bf16 && e.Candidates[1].Host == fp8
		})
	}
	putChain(t, cache, first, chain[:18])
	counts("nobody has said what it reads, so all counts", 18, 18)
	stop := readerOf(t, socket, "bf16", first)
	readerOf(t, socket, "fp8", small)
	counts("only one node can read the blocks", 18, 0)
	putChain(t, cache, small, chain[:5])
	counts("each node has its own", 18, 5)
	stop()
	readerOf(t, socket, "bf16", second)
	counts("blocks of the old weights", 0, 5)
	putChain(t, cache, second, chain[:7])
	counts("blocks of the new weights", 7, 5)
	if m := s.metrics(); m.sum("cgn_router_caches_readers") != 2 || m.sum("cgn_router_caches_configurations") != 3 ||
		m.sum("cgn_router_caches_left_out_total") != 0 {
		t.Errorf("%v readers, %v configurations, %v left out", m.sum("cgn_router_caches_readers"),
			m.sum("cgn_router_caches_configurations"), m.sum("cgn_router_caches_left_out_total"))
	}
}
