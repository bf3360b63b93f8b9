package router_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/router"
)

// TestClientsKeyThroughAnAgent checks that the engine gets the client's Authorization if router and
// agent both forward it. The agent's own key must never replace the client's key.
func TestClientsKeyThroughAnAgent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(dir, "engine-key")
	if err := os.WriteFile(key, []byte("agent-key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	etcd, engines, nodes := startEtcd(t).endpoint, simulate(t, 2), []string{"forwards", "drops"}
	for i, id := range nodes {
		c, err := agentConfig(id, engines[i].URL(), etcd)
		if err != nil {
			t.Fatal(err)
		}
		files := pki.FilesIn(dir, pki.Agent)
		c.TLS = agent.TLSConfig{CA: files.CA, Cert: files.Cert, Key: files.Key}
		c.Engine.APIKeyFile, c.Agent.ForwardAuth = key, id == "forwards"
		startAgent(t, c)
	}
	for _, c := range []struct {
		name    string
		forward bool
		client  []string // headers
		want    [2]string
	}{
		{"both", true, []string{"Authorization", "Bearer client-key"}, [2]string{"Bearer client-key", "Bearer agent-key"}},
		{"client without a key", true, nil, [2]string{"", "Bearer agent-key"}},
		{"default router", false, []string{"Authorization", "Bearer client-key"}, [2]string{"", "Bearer agent-key"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, nil, func(r *router.Config) {
				r.Etcd.Endpoints, r.Router.ForwardAuth = []string{etcd}, c.forward
				files := pki.FilesIn(dir, pki.Router)
				r.Upstream = router.UpstreamTLS{CA: files.CA, Cert: files.Cert, Key: files.Key}
			})
			eventually(t, "both nodes are eligible", func() bool { return s.eligible() == len(nodes) })
			for i, id := range nodes {
				r := s.chat(chatBody(c.name, plain), append([]string{"x-cgn-node", id}, c.client...)...)
				if r.status != 200 || r.node() != id {
					t.Fatalf("%s: %v", id, r)
				}
				got := "no request"
				for _, q := range engines[i].Requests() {
					if q.Path == "/v1/chat/completions" && strings.Contains(string(q.Body), c.name) {
						got = q.Header.Get("Authorization")
					}
				}
				if got != c.want[i] {
					t.Errorf("%s: the engine got Authorization %q, want %q", id, got, c.want[i])
				}
			}
		})
	}
}

// startAgent runs an agent in this process until the test ends.
func startAgent(t *testing.T, c agent.Config) *agent.Agent {
	t.Helper()
	a, err := agent.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx, ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return a
}
