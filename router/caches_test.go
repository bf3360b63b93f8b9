package router_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/client"
	"github.com/cognitora/dataplane/kvcached"
	"github.com/cognitora/dataplane/router"
)

// cacheDaemon runs a cgn-kvcached until the test ends, and returns its gRPC socket and a client.
// The RESP socket is resp.sock beside the gRPC socket.
func cacheDaemon(t *testing.T) (socket string, c *client.Client) {
	t.Helper()
	dir := t.TempDir()
	var s kvcached.Config
	if err := config.Defaults(&s); err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "kv.sock")
	s.Daemon.Data, s.Daemon.Sock, s.Daemon.Admin, s.Daemon.RAM, s.Daemon.SSD = dir, socket, "127.0.0.1:0", 32<<20, 0
	s.RESP.Listen = "unix://" + filepath.Join(dir, "resp.sock")
	s.Logger = slog.New(slog.DiscardHandler)
	d, err := kvcached.New(s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx, context.Background()) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	c, err = client.Dial(t.Context(), filepath.Join(dir, "kv-lease.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return socket, c
}

// putChain stores the blocks of a chain in a namespace.
func putChain(t *testing.T, c *client.Client, ns block.Namespace, chain []block.Digest) {
	t.Helper()
	for i, digest := range chain {
		item := client.Item{Addr: block.Addr{Digest: digest, Model: ns.ID()}, Namespace: ns.String()}
		if i > 0 {
			item.Parent = chain[i-1]
		}
		if _, err := c.Put(t.Context(), item, make([]byte, 4096)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCachesCount checks that the blocks of a host's cache attract their prompt to the engine of
// that host.
func TestCachesCount(t *testing.T) {
	t.Parallel()
	socket, cache := cacheDaemon(t)
	engines := simulate(t, 2)
	s := serve(t, nil, scored, func(c *router.Config) {
		c.Router.Backends = []string{engines[0].URL() + ",id=sim-0", engines[1].URL() + ",id=sim-1,kv=unix://" + socket}
	})
	eventually(t, "both nodes are eligible", func() bool { return s.eligible() == 2 })

	tokens := make([]uint32, 20*block.Tokens)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	body, err := json.Marshal(map[string]any{"model": "sim", "prompt": tokens, "max_tokens": 1})
	if err != nil {
		t.Fatal(err)
	}
	ns := block.Namespace{Model: "sim", Revision: "1", DType: "bf16", Layout: "test", Tokens: block.Tokens, TP: 1,
		PP: 1}
	_, chain := promptOf(15)
	putChain(t, cache, ns, chain)
	var e explanation
	eventually(t, "the cache's blocks are known", func() bool {
		e = s.explainAs("completions", string(body))
		return e.Candidates[1].Host == 15
	})
	if a, b := e.Candidates[0], e.Candidates[1]; e.Winner != "sim-1" || a.Overlap != 0 || b.Overlap != 0.75*15/20 ||
		b.Matched != 0 || b.Disk != 15 {
		t.Errorf("%+v", e)
	}
	r := s.post("/v1/completions", string(body))
	if r.node() != "sim-1" || r.header.Get("x-cgn-overlap") != "15/20" {
		t.Errorf("it went to %s with overlap %s", r.node(), r.header.Get("x-cgn-overlap"))
	}
	m := s.metrics()
	if m.sum("cgn_router_caches_live") != 1 || m.sum("cgn_router_caches_blocks") != 15 ||
		m.sum("cgn_router_caches_resyncs_total") != 1 {
		t.Errorf("live %v, blocks %v", m.sum("cgn_router_caches_live"), m.sum("cgn_router_caches_blocks"))
	}
}

// problems returns the problems in /debug/fleet.
func (s *site) problems() string {
	_, problems := s.models()
	return problems
}

// TestCachesThatDoNotCount checks that the router says which backend's cache it cannot read and
// which setting names it, that a model has no tokenizer for its cache, and that an engine reads at
// the cache under a name that is no node's.
func TestCachesThatDoNotCount(t *testing.T) {
	t.Parallel()
	socket, cache := cacheDaemon(t)
	ns := block.Namespace{Model: "sim", Revision: "1", DType: "bf16", Layout: "test", Tokens: block.Tokens, TP: 1,
		PP: 1}
	wrong := filepath.Join(filepath.Dir(socket), "later.sock")
	engines := simulate(t, 2)
	s := serve(t, nil, scored, func(c *router.Config) {
		c.Router.Backends = []string{engines[0].URL() + ",id=good,kv=unix://" + socket,
			engines[1].URL() + ",id=wrong,kv=unix://" + wrong}
	})
	eventually(t, "both nodes are eligible", func() bool { return s.eligible() == 2 })
	if text := s.problems(); strings.Contains(text, "has no tokenizer") {
		t.Error("a model without blocks: ", text)
	}
	putChain(t, cache, ns, []block.Digest{{1}})
	const unread = `its residency stream cannot be read`
	eventually(t, "the wrong socket is a problem", func() bool {
		return strings.Contains(s.problems(), "kv of backend wrong: "+unread)
	})
	eventually(t, "the log names the setting once", func() bool {
		return s.log.count(`setting="kv of backend wrong" error=`) == 1
	})
	eventually(t, "a model without a tokenizer is a problem", func() bool {
		return strings.Contains(s.problems(), "because model sim has no tokenizer")
	})
	if text := s.problems(); strings.Contains(text, "kv of backend good") ||
		strings.Contains(text, "readers at its cache") {
		t.Error(text)
	}
	other := ns
	other.Revision = "2"
	putChain(t, cache, other, []block.Digest{{2}})
	said := func() bool {
		return strings.Contains(s.problems(), "blocks of model sim do not count: they are in several namespaces")
	}
	eventually(t, "two namespaces of a model are a problem", said)
	stop := readerOf(t, socket, "v1", ns)
	eventually(t, "a reader that is no node is a problem", func() bool {
		return strings.Contains(s.problems(), "none of this router's nodes: v1;")
	})
	stop()
	readerOf(t, socket, "good", ns)
	eventually(t, "the node itself reads", func() bool {
		return !strings.Contains(s.problems(), "readers at its cache") && !said()
	})
	if err := os.Symlink(socket, wrong); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the stream is read", func() bool { return !strings.Contains(s.problems(), unread) })
	eventually(t, "the log says so", func() bool { return s.log.count("residency stream is read again") == 1 })
}

// TestCacheThatNobodyAnnounces checks that a node's kv_address that no cache announces is a problem
// with the addresses that there are.
func TestCacheThatNobodyAnnounces(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	socket, _ := cacheDaemon(t)
	engines := simulate(t, 2)
	c, err := agentConfig("lost", engines[0].URL(), etcd.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	c.Agent.KVAddress = "localhost:27071"
	startAgent(t, c)
	s := serve(t, nil, scored, func(c *router.Config) {
		c.Etcd.Endpoints = []string{etcd.endpoint}
		c.Router.Backends = []string{engines[1].URL() + ",id=sim-1,kv=unix://" + socket}
	})
	eventually(t, "the address is a problem", func() bool {
		return strings.Contains(s.problems(), "no cache announces localhost:27071; these do: unix://"+socket)
	})
}
