package agent

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/adminport/adminporttest"
	"github.com/cognitora/dataplane/internal/audit/audittest"
	"github.com/cognitora/dataplane/internal/pki"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// TestAudited checks that acts and refused identities at each port have lines, also over a rotation
// of the file.
func TestAudited(t *testing.T) {
	dir, other, name := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "audit.log")
	for _, d := range []string{dir, other} {
		if err := pki.Bootstrap(d, pki.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	own := pki.FilesIn(dir, pki.Agent)
	c := testConfig(t, newFakeEngine(t).URL)
	c.Audit.Log, c.Audit.Refusals = name, 100
	c.TLS = TLSConfig{CA: own.CA, Cert: own.Cert, Key: own.Key}
	c.AdminTLS = adminport.TLS{Cert: own.Cert, Key: own.Key, ClientCA: own.CA}
	c.Events.Endpoint, c.Events.Listen = "tcp://127.0.0.1:1", "127.0.0.1:0"
	a := startAgent(t, c)
	audittest.Act(t, name, "start, version ")

	url := "https" + strings.TrimPrefix(a.url(), "http")
	ask := func(dir string, role pki.Role, path string) {
		const body = `{"lora_name":"a","lora_path":"/secret"}`
		way := &http.Transport{TLSClientConfig: audittest.Showing(t, dir, role), DisableKeepAlives: true}
		resp, err := (&http.Client{Transport: way}).Post(url+path, "application/json", strings.NewReader(body))
		if err == nil {
			resp.Body.Close()
		}
	}
	ask(dir, "", "/v1/completions")
	audittest.Refusal(t, name, "serving client_certificate")
	ask(dir, pki.KVCached, "/v1/completions")
	ask(other, pki.Router, "/v1/completions")
	audittest.Await(t, name, "another CA", func(l audittest.Line) bool {
		return l.Port == "serving" && strings.Contains(l.Detail, "unknown authority")
	})
	audittest.Await(t, name, "another role", func(l audittest.Line) bool {
		return l.Port == "serving" && strings.Contains(l.Detail, `"kvcached"`)
	})
	ask(dir, pki.Ctl, "/unload_lora_adapter")
	audittest.Await(t, name, "an adapter", func(l audittest.Line) bool {
		return l.Action == "POST /unload_lora_adapter" && l.Object == "node=TestAudited adapter=a" &&
			l.By == "certificate spiffe://cognitora/role/ctl" && l.Outcome != ""
	})
	if err := os.Rename(name, name+".1"); err != nil {
		t.Fatal(err)
	}
	if err := a.ReopenLogs(); err != nil {
		t.Fatal(err)
	}

	refusedWatchers(t, a, name, dir, other)
	adminporttest.Readers(t, a.AdminAddr().String(), dir)
	audittest.Refusal(t, name, "admin admin_403")
	audittest.Refusal(t, name, "admin admin_403 certificate spiffe://cognitora/role/router")
	if err := a.stop(t); err != nil {
		t.Fatal(err)
	}
	audittest.Act(t, name, "stop, , ok")
	for _, file := range []string{name, name + ".1"} {
		if page, _ := os.ReadFile(file); strings.Contains(string(page), "secret") {
			t.Errorf("%s has an adapter's path", file)
		}
	}
}

// refusedWatchers asks the ports for routers with certificates that may not.
func refusedWatchers(t *testing.T, a *testAgent, name, dir, other string) {
	watch := func(at, dir string, role pki.Role) {
		shown := credentials.NewTLS(audittest.Showing(t, dir, role, "h2"))
		conn, err := grpc.NewClient(at, grpc.WithTransportCredentials(shown))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if follow, err := pb.NewKvClient(conn).Watch(t.Context(), &pb.WatchRequest{}); err == nil {
			_, _ = follow.Recv()
		}
	}
	watch(a.nodes[0].events.listener.Addr().String(), other, pki.Router)
	audittest.Refusal(t, name, "kv_events client_certificate")
	watch(a.nodes[0].events.listener.Addr().String(), dir, pki.KVCached)
	audittest.Refusal(t, name, "kv_events role_denied certificate spiffe://cognitora/role/kvcached")
	watch(a.pushAt.Addr().String(), dir, pki.KVCached)
	audittest.Refusal(t, name, "push client_certificate")
}
