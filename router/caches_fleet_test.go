package router_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached"
	cognitorav1 "github.com/cognitora/dataplane/proto/cognitora/v1"
	"github.com/cognitora/dataplane/router"
)

// cacheOf runs the cgn-kvcached of one host of a fleet until the test ends.
func cacheOf(t *testing.T, id, etcd, certificates string) *kvcached.Daemon {
	t.Helper()
	var c kvcached.Config
	if err := config.Defaults(&c); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	files := pki.FilesIn(certificates, pki.KVCached)
	c.TLS = kvcached.TLSConfig{CA: files.CA, Cert: files.Cert, Key: files.Key}
	c.Daemon.Data, c.Daemon.Sock, c.Daemon.Admin, c.Daemon.RAM, c.Daemon.SSD = dir, filepath.Join(dir, "kv.sock"),
		"127.0.0.1:0", 32<<20, 0
	c.Daemon.CacheID, c.Daemon.Heartbeat, c.Etcd.Endpoints = id, config.Duration(heartbeat), []string{etcd}
	c.RESP.Listen, c.QUIC.Listen, c.GRPC.Listen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	c.Logger = slog.New(slog.DiscardHandler)
	d, err := kvcached.New(c)
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
	return d
}

// setBlocks stores blocks of a namespace through RESP under their addresses.
func setBlocks(
	t *testing.T, at string, space block.Namespace, layer uint32, digests []block.Digest, payload func(i int) []byte,
) {
	t.Helper()
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	for i, d := range digests {
		key, value := block.Text(space.String(), block.Addr{Digest: d, Model: space.ID(), Layer: layer}), payload(i)
		if !strings.HasPrefix(key, "cgn:") {
			t.Fatal(key)
		}
		if i > 0 {
			key += fmt.Sprintf(":%x:", digests[i-1])
		}
		fmt.Fprintf(conn, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(key), key, len(value), value)
		if line, err := in.ReadString('\n'); err != nil || line != "+OK\r\n" {
			t.Fatal(line, err)
		}
	}
}

// getBlock reads a block through gRPC with a certificate of the fleet. nil means a miss.
func getBlock(t *testing.T, at, certificates string, space block.Namespace, digest block.Digest) []byte {
	t.Helper()
	secure, err := pki.ClientConfig(pki.FilesIn(certificates, pki.Ctl), "", pki.KVCached)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+at, grpc.WithTransportCredentials(credentials.NewTLS(secure)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := cognitorav1.NewKvClient(conn).Get(t.Context(), &cognitorav1.GetRequest{Namespace: space.String(),
		Digest: digest[:]})
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return all
		case err != nil && strings.Contains(err.Error(), "NotFound"):
			return nil
		case err != nil:
			t.Fatal(err)
		}
		all = append(all, m.Data...)
	}
}

// digestsOf returns the chain of a user's message. Any program can compute that chain from the
// canonical text and the seed.
func digestsOf(model, message string) (chain []block.Digest) {
	text := "\xffuser\xfe" + message
	digest := block.Seed(model, "", "")
	for ; len(text) >= 4*block.Tokens; text = text[4*block.Tokens:] {
		var tokens [block.Tokens]uint32
		for i := range tokens {
			tokens[i] = binary.LittleEndian.Uint32([]byte(text[4*i:]))
		}
		digest = block.Next(digest, &tokens)
		chain = append(chain, digest)
	}
	return chain
}

// TestABlockFromOneHostToAnother checks the whole way of a block. An engine stores it on host a
// through RESP, and host b reads the block through gRPC and QUIC. The router learns of the block by
// the residency stream and etcd, and sends the prompt to the engine of host a.
func TestABlockFromOneHostToAnother(t *testing.T) {
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
	s := serve(t, nil, scored, func(c *router.Config) {
		files := pki.FilesIn(certificates, pki.Router)
		c.Etcd.Endpoints = []string{etcd.endpoint}
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
	payload := func(i int) []byte { return bytes.Repeat([]byte{byte(i), 'x'}, 50_000) }
	setBlocks(t, a.At("resp"), space, 0, chain[:held], payload)

	var e explanation
	eventually(t, "the router knows what a holds", func() bool {
		e = s.explain(string(body))
		return len(e.Candidates) == 2 && e.Candidates[0].Host == held
	})
	onA, onB := e.Candidates[0], e.Candidates[1]
	if e.Winner != "a" || e.Blocks != len(chain) || onA.Node != "a" || onA.Overlap <= onB.Overlap || onB.Host != 0 {
		t.Errorf("%+v", e)
	}
	if r := s.chat(string(body)); r.status != 200 || r.node() != "a" {
		t.Errorf("it went to %s: %d", r.node(), r.status)
	}
	for _, i := range []int{0, held / 2, held - 1} {
		eventually(t, "a block of a is read on b", func() bool {
			return bytes.Equal(getBlock(t, b.At("grpc"), certificates, space, chain[i]), payload(i))
		})
	}
	if getBlock(t, b.At("grpc"), certificates, space, chain[held]) != nil {
		t.Error("a block that nobody has")
	}
	eventually(t, "the router knows what b has pulled", func() bool {
		return s.explain(string(body)).Candidates[1].Host == 1
	})
}
