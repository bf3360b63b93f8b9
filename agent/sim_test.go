package agent

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestAuthenticatedFrontOfAnEngine uses the parts of production: a router's certificate, the
// agent's front, an engine that answers as vLLM does, and etcd.
func TestAuthenticatedFrontOfAnEngine(t *testing.T) {
	sim, err := engine.New(engine.Config{Models: []string{"sim"}, DecodeStep: 20 * time.Millisecond,
		APIKey: "sk-engine"})
	if err != nil {
		t.Fatal(err)
	}
	defer sim.Close()
	dir := t.TempDir()
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	c := testConfig(t, sim.URL())
	f := pki.FilesIn(dir, pki.Agent)
	c.TLS = TLSConfig{f.CA, f.Cert, f.Key}
	c.Engine.APIKeyFile = writeFile(t, dir, "key", "sk-engine\n")
	a, etcd := startAgent(t, c), dialEtcd(t, shared.url)
	var h *cluster.NodeHealth
	eventually(t, "ready", func() bool { h = announced(t, etcd, a.NodeID()); return h != nil && h.Ready })
	if !strings.HasPrefix(h.Address, "https://127.0.0.1:") {
		t.Fatalf("address %s", h.Address)
	}
	if _, known := h.TotalBlocks.Get(); !known {
		t.Error("the simulated engine's block count is unknown")
	}

	config, err := pki.ClientConfig(pki.FilesIn(dir, pki.Router), "127.0.0.1", pki.Agent)
	if err != nil {
		t.Fatal(err)
	}
	endless, err := chat(t, config, h.Address, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	defer endless.Body.Close()
	eventually(t, "the running stream is announced", func() bool {
		h := announced(t, etcd, a.NodeID())
		return h != nil && h.InFlight.Or(0) == 1
	})
	endless.Body.Close()
	resp, err := chat(t, config, h.Address, 20)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "data: {") {
		t.Fatalf("%d: first line %q", resp.StatusCode, lines.Text())
	}
	var last string
	for lines.Scan() {
		if lines.Text() != "" {
			last = lines.Text()
		}
	}
	if last != "data: [DONE]" || lines.Err() != nil {
		t.Errorf("the stream ends with %q, %v", last, lines.Err())
	}
	if _, err := chat(t, &tls.Config{InsecureSkipVerify: true}, h.Address, 20); err == nil {
		t.Error("a client without a certificate was let in")
	}
}

// chat starts a streamed completion with this number of tokens.
func chat(t *testing.T, c *tls.Config, address string, tokens int) (*http.Response, error) {
	t.Helper()
	body := fmt.Sprintf(`{"model":"sim","stream":true,"max_tokens":%d,"messages":[
		{"role":"user","content":"hello"}]}`, tokens)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: c, DisableKeepAlives: true}}
	return client.Post(address+"/v1/chat/completions", "application/json", io.NopCloser(strings.NewReader(body)))
}
