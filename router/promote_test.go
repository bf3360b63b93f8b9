package router_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached"
	cognitorav1 "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/router"
)

// diskDaemon runs a cgn-kvcached with an SSD tier on a folder, and returns a client. stop ends the
// daemon before the test ends.
func diskDaemon(t *testing.T, dir string) (kv cognitorav1.KvClient, stop func()) {
	t.Helper()
	var s kvcached.Config
	if err := config.Defaults(&s); err != nil {
		t.Fatal(err)
	}
	s.Daemon.Data, s.Daemon.Sock, s.Daemon.Admin, s.Daemon.RAM, s.Daemon.SSD = dir, filepath.Join(dir, "kv.sock"),
		"127.0.0.1:0", 32<<20, 128<<20
	s.Logger = slog.New(slog.DiscardHandler)
	d, err := kvcached.New(s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx, context.Background()) }()
	conn, err := grpc.NewClient("unix://"+s.Daemon.Sock, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		_ = conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return cognitorav1.NewKvClient(conn), stop
}

// putDurably stores a chain of blocks, some in each object, and waits until they are on SSD.
func putDurably(t *testing.T, kv cognitorav1.KvClient, space string, chain []block.Digest, blocks int) {
	t.Helper()
	for from := 0; from < len(chain); from += blocks {
		last := from + blocks - 1
		h := &cognitorav1.BlockHeader{Namespace: space, Digest: chain[last][:], Length: 4096}
		if from > 0 {
			h.Parent = chain[from-1][:]
		}
		var names []byte
		for _, d := range chain[from:last] {
			names = append(names, d[:block.NameBytes]...)
		}
		h.Attr = block.AppendNames(nil, names)
		put, err := kv.Put(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := put.Send(&cognitorav1.PutRequest{Header: &cognitorav1.PutHeader{Block: h, Durable: true},
			Data: make([]byte, 4096)}); err != nil {
			t.Fatal(err)
		}
		if _, err := put.CloseAndRecv(); err != nil {
			t.Fatal(err)
		}
	}
}

// promptOf makes a prompt of full blocks with their digests in every cache.
func promptOf(blocks int) (tokens []uint32, chain []block.Digest) {
	tokens = make([]uint32, blocks*block.Tokens)
	digest := block.Seed("sim", "", "")
	for i := range blocks {
		for k := range block.Tokens {
			tokens[i*block.Tokens+k] = uint32(i*block.Tokens + k)
		}
		digest = block.Next(digest, (*[block.Tokens]uint32)(tokens[i*block.Tokens:]))
		chain = append(chain, digest)
	}
	return tokens, chain
}

// inRAM returns how many of the blocks a cache has in RAM.
func inRAM(t *testing.T, kv cognitorav1.KvClient, space string, chain []block.Digest) (n int) {
	t.Helper()
	var all []byte
	for _, d := range chain {
		all = append(all, d[:]...)
	}
	r, err := kv.BatchLookup(t.Context(), &cognitorav1.BatchLookupRequest{Namespace: space, Digests: all})
	if err != nil {
		t.Fatal(err)
	}
	for _, tier := range r.Tiers {
		if tier&byte(cognitorav1.Tier_TIER_HOST) != 0 {
			n++
		}
	}
	return n
}

// TestPromotesAhead sends a prompt whose blocks are on the SSD of its node's host. The cache must
// have these blocks in RAM after the routing, although no client has read them.
func TestPromotesAhead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ blocks, held int }{"blocks": {1, 15}, "objects of 4 blocks": {4, 12}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			promotesAhead(t, c.blocks, c.held)
		})
	}
}

// promotesAhead is TestPromotesAhead with objects of some blocks. The cache holds the first held
// blocks of the prompt.
func promotesAhead(t *testing.T, perObject, held int) {
	const blocks = 22
	tokens, chain := promptOf(blocks)
	ns := block.Namespace{Model: "sim", Revision: "1", DType: "bf16", Layout: "test",
		Tokens: uint32(perObject) * block.Tokens, TP: 2, PP: 1}
	objects := held / perObject
	second := ns
	second.TPRank = 1
	dir := t.TempDir()
	kv, stop := diskDaemon(t, dir)
	putDurably(t, kv, ns.String(), chain[:held], perObject)
	putDurably(t, kv, second.String(), chain[:held], perObject)
	stop()
	kv, _ = diskDaemon(t, dir)
	body, err := json.Marshal(map[string]any{"model": "sim", "prompt": tokens, "max_tokens": 1})
	if err != nil {
		t.Fatal(err)
	}
	engines := simulate(t, 1)
	for _, mode := range []string{"off", "disk"} {
		s := serve(t, nil, func(c *router.Config) {
			c.Router.Promote = mode
			c.Router.Backends = []string{engines[0].URL() + ",id=sim-0,kv=unix://" + filepath.Join(dir, "kv.sock")}
		})
		eventually(t, "the node is eligible", func() bool { return s.eligible() == 1 })
		eventually(t, "what is on SSD is known", func() bool {
			return s.explainAs("completions", string(body)).Candidates[0].Disk == held
		})
		if n := inRAM(t, kv, ns.String(), chain); n != 0 {
			t.Fatalf("%s: %d blocks are in RAM before the request", mode, n)
		}
		if r := s.post("/v1/completions", string(body)); r.status != 200 {
			t.Fatalf("%s: %d", mode, r.status)
		}
		if mode == "off" {
			if m := s.metrics(); m.sum("cgn_router_caches_promotions_total") != 0 {
				t.Error("it is off")
			}
			continue
		}
		for _, space := range []string{ns.String(), second.String()} {
			eventually(t, "the blocks of the rank are in RAM", func() bool {
				return inRAM(t, kv, space, chain) == objects
			})
		}
		eventually(t, "it is counted", func() bool {
			return s.metrics().sum("cgn_router_caches_promoted_blocks_total") == float64(2*objects)
		})
		if m := s.metrics(); m.sum("cgn_router_caches_promotions_total") != 1 ||
			m.sum("cgn_router_caches_promotions_failed_total")+m.sum("cgn_router_caches_promotions_dropped_total") !=
				0 {
			t.Error("promotions are counted wrongly")
		}
	}
}
