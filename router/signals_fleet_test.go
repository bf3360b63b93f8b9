package router_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router/fleet"
)

// kernelOf gives the agent the kernel's own counts where BPF_REQUIRED says that it may have them, else those of /proc.
func kernelOf(t *testing.T, c *agent.TelemetryConfig) {
	t.Helper()
	c.Kernel = "proc"
	if os.Getenv("BPF_REQUIRED") != "1" {
		return
	}
	dir := t.TempDir()
	if err := syscall.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	c.Kernel, c.Pins = "bpf", filepath.Join(dir, "cognitora")
	t.Cleanup(func() {
		if _, err := bpf.Clean(c.Pins); err != nil {
			t.Error(err)
		}
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
}

// TestKernelSignals: a real router knows from a real agent how busy the node is, without a heartbeat that says so, says how old that is, and goes
// back to the heartbeat and its own counts when the agent's stream ends.
func TestKernelSignals(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t).endpoint
	engines := simulate(t, 1)
	c, err := agentConfig("a", engines[0].URL(), etcd)
	if err != nil {
		t.Fatal(err)
	}
	c.Agent.Heartbeat = config.Duration(time.Hour)
	kernelOf(t, &c.Telemetry)
	startAgent(t, c)
	s := follow(t, etcd, 1)
	load := s.traffic(streaming)
	bpf := c.Telemetry.Kernel == "bpf"
	load.until(soon, "the stream and what it tells", func(*reply) bool {
		m := s.metrics()
		return m.sum("cgn_router_node_signals", `from="stream"`) == 1 && m.sum("cgn_router_node_cpu_ratio") > 0 && m.sum("cgn_router_node_rtt_p50_seconds") > 0 && m.sum("cgn_router_signal_readings_total") > 0 &&
			m.sum("cgn_router_signal_lag_seconds_count") >= 20 && (!bpf || m.sum("cgn_router_node_run_delay_p99_seconds") > 0)
	})
	m := s.metrics()
	if age := m.sum("cgn_router_node_signal_age_seconds", `signal="kernel"`); age <= 0 || age > 15 {
		t.Errorf("the sample is %g s old", age)
	}
	changes := m.sum("cgn_router_signal_lag_seconds_count")
	t.Logf("%.1f %% of %g changes were told within 100 ms, on average within %.1f ms; source %s",
		100*m.sum("cgn_router_signal_lag_seconds_bucket", `le="0.1"`)/changes, changes, 1000*m.sum("cgn_router_signal_lag_seconds_sum")/changes, c.Telemetry.Kernel)
	_, page := s.get(s.admin + "/debug/fleet")
	var view fleet.View
	if err := json.Unmarshal(page, &view); err != nil || len(view.Nodes) != 1 {
		t.Fatalf("%v: %s", err, page)
	}
	if g := view.Nodes[0].Signals; g.From != "stream" || g.CPU == nil || g.RTTMs == nil || g.KernelAgeMs == nil || (g.RunDelayMs == nil) == bpf {
		t.Errorf("/debug/fleet: %s", page)
	}
	if e := s.explain(`{"model":"sim","messages":[{"role":"user","content":"x"}]}`); len(e.Candidates) != 1 || e.Candidates[0].Signals.From != "stream" || e.Candidates[0].Signals.RTTMs == nil {
		t.Errorf("/debug/route: %+v", e)
	}
	load.stop()
}
