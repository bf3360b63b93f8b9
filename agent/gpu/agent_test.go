//go:build cgo && nvml

package gpu_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/agent/gpu"
	"github.com/cognitora/dataplane/internal/config"
)

// TestAgent: the metrics of an agent contain NVML's figures.
func TestAgent(t *testing.T) {
	library := gpu.Library(t)
	says := filepath.Join(t.TempDir(), "says")
	if err := os.WriteFile(says, []byte("count 1\nmig1 1\nsm1 37.5\nsmgi 20\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NVML_FAKE", says)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"data":[{"id":"tiny"}]}`)
	}))
	defer engine.Close()
	var c agent.Config
	if err := config.Load(&c, config.Options{Program: "cgn-agent", Args: []string{
		"--engine", engine.URL, "--kind", "openai_compat", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--agent.drain_delay", "1ms",
		"--gpu.library", library, "--gpu.interval", "100ms", "--gpu.devices", "0:5", "--power.interval", "250ms",
		"--power.rapl", "off", "--power.ipmi_device", "off",
	}, Out: io.Discard}); err != nil {
		t.Fatal(err)
	}
	c.Logger = slog.New(slog.DiscardHandler)
	a, err := agent.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx, context.Background()) }()
	wants := []string{
		"cgn_agent_gpu_up 1", `cgn_agent_gpu_sm_ratio{gpu="0"} 0.375`, `cgn_agent_gpu_sm_ratio{gpu="0:5"} 0.25`,
		`cgn_agent_gpu_busy_ratio{gpu="0"} 1`,
		`cgn_agent_gpu_info{gpu="0:5",model="Fake H100",uuid="MIG-0100"} 1`,
		`cgn_power_watts{component="node",source="nvml"} 350.5`,
		`cgn_agent_gpu_throttled{gpu="0",reason="hw_thermal"} 0`,
	}
	await(t, a, wants)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// await waits until the metrics of an agent contain all of these lines.
func await(t *testing.T, a *agent.Agent, wants []string) {
	t.Helper()
	var page string
	for deadline, tick := time.After(time.Minute), time.Tick(10*time.Millisecond); len(wants) > 0; {
		select {
		case <-tick:
		case <-deadline:
			t.Fatalf("the metrics lack %s:\n%s", wants, page)
		}
		if resp, err := http.Get("http://" + a.AdminAddr().String() + "/metrics"); err == nil {
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			page = string(text)
		}
		for len(wants) > 0 && strings.Contains(page, "\n"+wants[0]) {
			wants = wants[1:]
		}
	}
}

// TestEnginesHaveTheirGPUs: each engine has its own GPU's SM utilisation and power, and half of the
// host's remaining power.
func TestEnginesHaveTheirGPUs(t *testing.T) {
	library := gpu.Library(t)
	says := filepath.Join(t.TempDir(), "says")
	if err := os.WriteFile(says, []byte("count 2\nsm1 37.5\nsm2 62.5\npower1 300000\npower2 100000\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NVML_FAKE", says)
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"data":[{"id":"tiny"}]}`)
	}))
	defer engine.Close()
	other := httptest.NewServer(engine.Config.Handler)
	defer other.Close()
	var c agent.Config
	doc := fmt.Sprintf("[agent]\nnode_id = \"h\"\nadmin = \"127.0.0.1:0\"\ndrain_delay = \"1ms\"\n[gpu]\nlibrary = "+
		"%q\ninterval = \"100ms\"\n"+
		"[power]\ninterval = \"250ms\"\nrapl = \"off\"\nipmi_device = \"off\"\n[telemetry]\nkernel = \"off\"\n"+
		"[[engine]]\nid = \"a\"\nlisten = \"127.0.0.1:0\"\nurl = %q\ngpus = [\"0\"]\n[[engine]]\nid = \"b\"\nlisten "+
		"= \"127.0.0.1:0\"\nurl = %q\ngpus = [\"1\"]\n", library, engine.URL, other.URL)
	if err := config.Load(&c, config.Options{Program: "cgn-agent", Args: []string{"--config", "f"}, Out: io.Discard,
		ReadFile: func(string) ([]byte, error) { return []byte(doc), nil }}); err != nil {
		t.Fatal(err)
	}
	c.Logger = slog.New(slog.DiscardHandler)
	a, err := agent.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx, context.Background()) }()
	await(t, a, []string{
		`cgn_power_watts{component="node",source="nvml"} 400`, `cgn_agent_node_power_watts{node="h-a"} 300`,
		`cgn_agent_node_power_watts{node="h-b"} 100`,
		`cgn_agent_node_sm_ratio{node="h-a"} 0.375`, `cgn_agent_node_sm_ratio{node="h-b"} 0.625`,
		`cgn_agent_node_gpu{gpu="1",node="h-b"} 1`,
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
