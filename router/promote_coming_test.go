package router_test

import (
	"encoding/json"
	"testing"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestPromotesWhatIsBeingComputed: while the engine of one host computes a prompt for the engine of
// another host, the other host's cache brings the blocks that the first host gets. On one host
// nothing is asked for.
func TestPromotesWhatIsBeingComputed(t *testing.T) {
	t.Parallel()
	for name, apart := range map[string]bool{"two hosts": true, "one host": false} {
		t.Run(name, func(t *testing.T) { t.Parallel(); promotesComing(t, apart) })
	}
}

func promotesComing(t *testing.T, apart bool) {
	const blocks = 60 // 960 tokens, which take P 8 s: longer than a busy machine needs to store the blocks
	tokens, chain := promptOf(blocks)
	etcd, certificates := startEtcd(t), t.TempDir()
	if err := pki.Bootstrap(certificates, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	a, b := cacheOf(t, "host-a", etcd.endpoint, certificates), cacheOf(t, "host-b", etcd.endpoint, certificates)
	shelf, at := &engine.Shelf{}, []*kvcached.Daemon{a, b}
	if !apart {
		at[1] = a
	}
	engines := simulate(t, 2, func(c *engine.Config) {
		c.Connector, c.Shelf, c.PrefillTokensPerSecond = engine.ConnectorKVCached, shelf, 120
	})
	for i, role := range []string{"prefill", "decode"} {
		c, err := agentConfig(role, engines[i].URL(), etcd.endpoint)
		if err != nil {
			t.Fatal(err)
		}
		c.Agent.Role, c.Engine.Connector, c.Agent.KVAddress = role, "kvcached", at[i].At("quic")
		startAgent(t, c)
	}
	s := serve(t, nil, scored, func(c *router.Config) {
		files := pki.FilesIn(certificates, pki.Router)
		c.Etcd.Endpoints = []string{etcd.endpoint}
		c.Upstream = router.UpstreamTLS{CA: files.CA, Cert: files.Cert, Key: files.Key}
	})
	space := block.Namespace{Model: "sim", Revision: "1", DType: "bf16", Layout: "test", Tokens: block.Tokens, TP: 1,
		PP: 1}
	store := func(digests ...block.Digest) {
		setBlocks(t, a.At("resp"), space, block.LayerAll, digests, func(int) []byte { return make([]byte, 5000) })
	}
	store(block.Seed("another", "", "")) // tells the router of the namespace
	eventually(t, "both nodes are in service, and the caches are followed", func() bool {
		nodes, m := s.nodes(), s.metrics()
		return nodes["prefill"].Eligible && nodes["decode"].Eligible && m.sum("cgn_router_caches_live") == 2 &&
			m.sum("cgn_router_caches_blocks") == 1
	})
	body, err := json.Marshal(map[string]any{"model": "sim", "prompt": tokens, "max_tokens": 1})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan *reply, 1)
	go func() { done <- s.post("/v1/completions", string(body)) }()
	eventually(t, "the prompt is being computed", func() bool { return had(engines[0], "/v1/completions") == 1 })
	store(chain...)
	if r := <-done; r.status != 200 || r.node() != "decode" || r.header.Get("x-cgn-prefill-node") != "prefill" {
		t.Errorf("%v", r)
	}
	if !apart {
		if n := s.metrics().sum("cgn_router_caches_promotions_total"); n != 0 {
			t.Errorf("%v promotions", n)
		}
		return
	}
	eventually(t, "the other host has all blocks", func() bool {
		return s.metrics().sum("cgn_router_caches_promoted_blocks_total") == blocks
	})
	eventually(t, "the router knows it", func() bool {
		for _, c := range s.explainAs("completions", string(body)).Candidates {
			if c.Host == blocks {
				return true
			}
		}
		return false
	})
	endsWithP(t, s, engines[0], b)
}

// endsWithP checks that the cache of D's host waits for no blocks once P has failed.
func endsWithP(t *testing.T, s *site, p *engine.Engine, d *kvcached.Daemon) {
	t.Helper()
	cache := func() page {
		_, text := s.get("http://" + d.AdminAddr().String() + "/metrics")
		return page(text)
	}
	other := make([]uint32, 640)
	for i := range other {
		other[i] = uint32(len(other) - i)
	}
	body, err := json.Marshal(map[string]any{"model": "sim", "prompt": other, "max_tokens": 1})
	if err != nil {
		t.Fatal(err)
	}
	p.SetFault(&engine.Fault{Path: "/v1/completions", Hang: true})
	done := make(chan *reply, 1)
	go func() { done <- s.post("/v1/completions", string(body)) }()
	eventually(t, "D's cache waits", func() bool { return cache().sum("cgn_kvcached_fleet_awaiting") == 1 })
	before := cache().sum("cgn_kvcached_grpc_failed_total")
	p.Kill()
	eventually(t, "the wait is called off", func() bool {
		return cache().sum("cgn_kvcached_grpc_failed_total") == before+1
	})
	if r := <-done; r.status != 200 || r.node() != "decode" {
		t.Errorf("%v", r)
	}
}
