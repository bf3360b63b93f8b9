package router_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/bpf"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router/fleet"
)

// kernelOf lets the agent use the kernel's own counts if BPF_REQUIRED is set, else those of /proc.
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

// TestKernelSignals checks that a router learns a node's load from an agent's stream, without a
// heartbeat, and reports its age. When the stream ends, the router returns to the heartbeat and its
// own counts.
func TestKernelSignals(t *testing.T) {
	t.Parallel()
	began, etcd := time.Now(), startEtcd(t).endpoint
	engines := simulate(t, 1)
	c, err := agentConfig("a", engines[0].URL(), etcd)
	if err != nil {
		t.Fatal(err)
	}
	c.Agent.Heartbeat = config.Duration(cluster.MaxHeartbeat)
	kernelOf(t, &c.Telemetry)
	startAgent(t, c)
	s := follow(t, etcd, 1)
	load := s.traffic(streaming)
	bpf := c.Telemetry.Kernel == "bpf"
	load.until(soon, "the stream and what it tells", func(*reply) bool {
		m := s.metrics()
		return m.sum("cgn_router_node_signals", `from="stream"`) == 1 && m.sum("cgn_router_node_cpu_ratio") > 0 &&
			m.sum("cgn_router_node_rtt_p50_seconds") > 0 && m.sum("cgn_router_signal_readings_total") > 0 &&
			m.sum("cgn_router_signal_lag_seconds_count") >= 20 &&
			(!bpf || m.sum("cgn_router_node_run_delay_p99_seconds") > 0)
	})
	m := s.metrics()
	age := m.sum("cgn_router_node_signal_age_seconds", `signal="kernel"`)
	if age <= 0 || age > time.Since(began).Seconds() {
		t.Errorf("the sample is %g s old", age)
	}
	changes := m.sum("cgn_router_signal_lag_seconds_count")
	t.Logf("%.1f %% of %g changes were told within 100 ms, on average within %.1f ms; source %s",
		100*m.sum("cgn_router_signal_lag_seconds_bucket",
			`le="0.1"`)/changes, changes, 1000*m.sum("cgn_router_signal_lag_seconds_sum")/changes, c.Telemetry.Kernel)
	_, page := s.get(s.admin + "/debug/fleet")
	var view fleet.View
	if err := json.Unmarshal(page, &view); err != nil || len(view.Nodes) != 1 {
		t.Fatalf("%v: %s", err, page)
	}
	if g := view.Nodes[0].Signals; g.From != fleet.Stream || g.CPUPct.IsZero() || g.SRTTUsP50.IsZero() ||
		g.Kernel.At.IsZero() || g.RunqUsP99.IsZero() == bpf {
		t.Errorf("/debug/fleet: %s", page)
	}
	e := s.explain(`{"model":"sim","messages":[{"role":"user","content":"x"}]}`)
	if len(e.Candidates) != 1 || e.Candidates[0].Signals.From != fleet.Stream ||
		e.Candidates[0].Signals.SRTTUsP50.IsZero() {
		t.Errorf("/debug/route: %+v", e)
	}
	load.stop()
}

// burner is a process that burns two CPUs with its children. Each call of turn starts or stops the
// burning.
func burner(t *testing.T) (pid int, turn func()) {
	t.Helper()
	cmd := exec.Command("sh", "-c",
		`while read on; do sh -c 'while :; do :; done' & one=$!; sh -c 'while :; do :; done' & two=$!; `+
			`read off; kill $one $two; wait; done`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid, func() {
		if _, err := in.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKernelChange checks that a burning process of the engine shows in the router's state of the
// node, each time. The test logs four times: the time until the change shows, the time until 90 %
// of the final value shows, the age of the sample at any time, and the CPU waits of the host's
// threads.
func TestKernelChange(t *testing.T) {
	if os.Getenv("BPF_REQUIRED") != "1" {
		t.Skip("it puts programs into the running kernel and load on its CPUs: make check-bpf")
	}
	const changes, settles = 30, 1500 * time.Millisecond // figures are means over a second
	etcd := startEtcd(t).endpoint
	engines := simulate(t, 1)
	c, err := agentConfig("a", engines[0].URL(), etcd)
	if err != nil {
		t.Fatal(err)
	}
	pid, turn := burner(t)
	c.Engine.PIDFile = filepath.Join(t.TempDir(), "pid")
	if err := os.WriteFile(c.Engine.PIDFile, []byte(strconv.Itoa(pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	kernelOf(t, &c.Telemetry)
	startAgent(t, c)
	s := follow(t, etcd, 1)
	var ages, first, most []time.Duration
	cpu := func() float64 {
		_, page := s.get(s.admin + "/debug/fleet")
		var view fleet.View
		if err := json.Unmarshal(page, &view); err != nil || len(view.Nodes) != 1 {
			t.Fatalf("%v: %s", err, page)
		}
		g := view.Nodes[0].Signals
		if g.CPUPct.IsZero() || g.Kernel.At.IsZero() || g.From != fleet.Stream {
			return -1
		}
		ages = append(ages, g.Kernel.At.Age(time.Now()))
		return g.CPUPct.Or(0) / 100
	}
	type point struct {
		after time.Duration
		cpu   float64
	}
	rest := func() bool { v := cpu(); return v >= 0 && v < 0.01 }
	eventually(t, "the agent tells", rest)
	waits := hostWaits(t, c.Telemetry.Pins)
	for range changes {
		eventually(t, "the engine is at rest", rest)
		var seen []point
		from := time.Now()
		turn()
		eventually(t, "the router knows", func() bool {
			v := cpu()
			if v >= 0.04 {
				seen = append(seen, point{time.Since(from), v})
			}
			return len(seen) > 0 && time.Since(from) > settles
		})
		turn()
		first = append(first, seen[0].after)
		enough := func(p point) bool { return p.cpu >= 0.9*seen[len(seen)-1].cpu }
		most = append(most, seen[slices.IndexFunc(seen, enough)].after)
	}
	waited, m := waits(), s.metrics()
	t.Logf("from the change to its first sign in the router's state, %d times: %s", changes, quantiles(first))
	t.Logf("from the change to 90 %% of what the state comes to: %s", quantiles(most))
	t.Logf("age of the sample in that state, whenever it was read, %d times: %s", len(ages), quantiles(ages))
	t.Logf("cgn_router_signal_lag_seconds: %g of %g within 0.1; 99 %% of the host's waits for a CPU were within %v",
		m.sum("cgn_router_signal_lag_seconds_bucket", `le="0.1"`), m.sum("cgn_router_signal_lag_seconds_count"), waited)
}

// hostWaits returns a function that returns the 99th percentile of the host's waits for a CPU since
// the call.
func hostWaits(t *testing.T, pins string) func() time.Duration {
	t.Helper()
	set, err := bpf.Open(pins)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = set.Close() })
	var from, now, between bpf.Histogram
	if err := set.RunDelay(&from); err != nil {
		t.Fatal(err)
	}
	return func() time.Duration {
		if err := set.RunDelay(&now); err != nil {
			t.Fatal(err)
		}
		between.Subtract(&now, &from)
		return between.Quantile(0.99)
	}
}

func quantiles(all []time.Duration) string {
	slices.Sort(all)
	at := func(q float64) time.Duration {
		return all[min(int(q*float64(len(all))), len(all)-1)].Round(time.Millisecond / 10)
	}
	return fmt.Sprintf("p50 %v, p90 %v, p99 %v, most %v", at(.5), at(.9), at(.99), at(1))
}
