package router_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached"
	"github.com/cognitora/dataplane/router"
)

// TestPromotesFromAnotherHost checks router.promote = fleet. A request to host b makes b fetch the
// blocks that only host a has. The router asks for these blocks with its certificate.
func TestPromotesFromAnotherHost(t *testing.T) {
	t.Parallel()
	etcd, certificates := startEtcd(t), t.TempDir()
	if err := pki.Bootstrap(certificates, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	a, b := cacheOf(t, "host-a", etcd.endpoint, certificates), cacheOf(t, "host-b", etcd.endpoint, certificates)
	for i, e := range simulate(t, 2) {
		c, err := agentConfig([]string{"a", "b"}[i], e.URL(), etcd.endpoint)
		if err != nil {
			t.Fatal(err)
		}
		c.Agent.KVAddress = []*kvcached.Daemon{a, b}[i].At("quic")
		startAgent(t, c)
	}
	s := serve(t, nil, func(c *router.Config) {
		files := pki.FilesIn(certificates, pki.Router)
		c.Router.Promote, c.Etcd.Endpoints = "fleet", []string{etcd.endpoint}
		// otherwise b's engine counts as holding all of it after one request
		c.Prefix.TTL, c.Prefix.Feedback = config.Duration(time.Millisecond), false
		c.Upstream = router.UpstreamTLS{CA: files.CA, Cert: files.Cert, Key: files.Key}
	})
	eventually(t, "both nodes are eligible", func() bool { return s.eligible() == 2 })
	eventually(t, "both caches are followed", func() bool { return s.metrics().sum("cgn_router_caches_live") == 2 })
	message := strings.Repeat("Tell me what is where. ", 60)
	body, err := json.Marshal(map[string]any{"model": "sim", "max_tokens": 1,
		"messages": []any{map[string]string{"role": "user", "content": message}}})
	if err != nil {
		t.Fatal(err)
	}
	space := block.Namespace{Model: "sim", Revision: "1", DType: "bf16", Layout: "test", Tokens: block.Tokens, TP: 1,
		PP: 1}
	chain := digestsOf("sim", message)
	held := len(chain) - 3
	setBlocks(t, a.At("resp"), space, 0, chain[:held],
		func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 5000) })
	eventually(t, "the router knows what a holds", func() bool {
		e := s.explain(string(body))
		return len(e.Candidates) == 2 && e.Candidates[0].Host == held
	})
	// The keeper of locations may hear of a's blocks later than the router. A later request then
	// brings the missing ones.
	eventually(t, "all of them are on b", func() bool {
		r := s.chat(string(body), "x-cgn-node", "b")
		if r.status == 200 && r.node() != "b" {
			t.Fatalf("it went to %s", r.node())
		}
		e := s.explain(string(body)) // on a busy machine a node's lease may end
		return r.status == 200 && len(e.Candidates) == 2 && e.Candidates[1].Host == held
	})
	eventually(t, "they are counted", func() bool {
		return s.metrics().sum("cgn_router_caches_promoted_blocks_total") >= float64(held)
	})
}
