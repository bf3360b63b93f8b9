package router_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/perf/netpath"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/sim/engine"
)

// nobody is a user without rights.
const nobody = 65534

// informed is an island whose router runs as the user nobody. An agent with root rights sends it
// kernel events. far is an engine process of its own.
type informed struct {
	*site
	path   *netpath.Path
	near   []*engine.Engine
	far    *exec.Cmd
	router *exec.Cmd
	agent  context.CancelFunc // ends the agent
}

// inform starts an informed. Without events the router looks at its connections itself.
func inform(t *testing.T, events bool) *informed {
	t.Helper()
	if os.Getenv("BPF_REQUIRED") != "1" {
		t.Skip("it puts programs into the running kernel: make check-bpf")
	}
	path, err := netpath.New(netpath.Options{Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(path.Close)
	i := &informed{path: path, agent: func() {}}
	dir, err := os.MkdirTemp("/tmp", "cgn-events-") // the user nobody may not enter t.TempDir's parents
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TEST_USER", strconv.Itoa(nobody))
	t.Setenv("TEST_EVENTS", "")
	if events {
		at := filepath.Join(dir, "events")
		i.agent = tell(t, at)
		t.Setenv("TEST_EVENTS", at)
	}
	args := []string{dir, "true"}
	for n := range 2 {
		var e *engine.Engine
		id := fmt.Sprint("near-", n)
		path.A.Do(func() {
			e, err = engine.New(engine.Config{ID: id, Listen: path.A.Addr.String() + ":0",
				DecodeStep: 2 * time.Millisecond})
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		i.near, args = append(i.near, e), append(args, e.URL()+",id="+id+",max_concurrent=1000")
	}
	cmd, out := program(t, "engine", path.B.Start, &logged{t: t}, path.B.Addr.String()+":0")
	url, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	i.far, args = cmd, append(args, strings.TrimSpace(url)+",id=far,max_concurrent=1000")
	log := &logged{t: t}
	i.router, _ = program(t, "router", path.A.Start, log, args...)
	i.site = unixSite(t, dir, log)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log.text())
		}
	})
	eventually(t, "the router serves", func() bool { return strings.Contains(log.text(), "router serves") })
	eventually(t, "every node is eligible", func() bool { return i.eligible() == 3 })
	if events {
		eventually(t, "the router is told", func() bool {
			return i.metrics().sum("cgn_router_kernel_events_peers") == 3
		})
	}
	return i
}

// tell runs an agent that only sends kernel events, at the socket.
func tell(t *testing.T, at string) (end context.CancelFunc) {
	t.Helper()
	c, err := agentConfig("teller", simulate(t, 1)[0].URL(), "")
	if err != nil {
		t.Fatal(err)
	}
	kernelOf(t, &c.Telemetry)
	c.Etcd.Endpoints = nil
	c.Telemetry.Events, c.Telemetry.Group = at, nobody
	return runAgent(t, c)
}

func runAgent(t *testing.T, c agent.Config) (end context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	a, err := agent.New(c)
	if err != nil {
		t.Fatal(err)
	}
	go func() { ended <- a.Run(ctx, context.Background()) }()
	end = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		ended <- nil
	}
	t.Cleanup(end)
	eventually(t, "the agent listens", func() bool { _, err := os.Stat(c.Telemetry.Events); return err == nil })
	return end
}

func (i *informed) farNode() fleet.NodeView {
	i.t.Helper()
	var v fleet.View
	_, page := i.get(i.admin + "/debug/fleet")
	if err := json.Unmarshal(page, &v); err != nil {
		i.t.Fatalf("%v: %s", err, page)
	}
	for _, n := range v.Nodes {
		if n.ID == "far" {
			return n
		}
	}
	i.t.Fatalf("%s", page)
	return fleet.NodeView{}
}

// TestKernelEvents checks a router without rights. The router reads round trips and
// retransmissions. The router learns of a timeout, of the acknowledgement that ends it, and of the
// death of an idle node. When the agent ends, the router looks itself, logs that once, and uses the
// next agent.
func TestKernelEvents(t *testing.T) {
	i := inform(t, true)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", i.router.Process.Pid))
	if err != nil || !strings.Contains(string(status), "CapEff:\t0000000000000000") ||
		!strings.Contains(string(status), "Uid:\t65534\t65534\t65534\t65534") {
		t.Fatalf("the router has rights: %v\n%s", err, status)
	}
	i.path.Set(netpath.Conditions{Delay: 5 * time.Millisecond})
	eventually(t, "the round trip is that of the path", func() bool {
		i.chat(chatBody("hello", streaming), "x-cgn-node", "far")
		p := i.farNode().Path
		return p != nil && p.RTTMs != nil && *p.RTTMs >= 5 && *p.RTTMs < 1000 && p.Segments > 0 && p.AgeMs < 1000
	})
	if m := i.metrics(); m.sum("cgn_router_node_path_rtt_seconds", `node="far"`) < 0.005 ||
		m.sum("cgn_router_node_path_segments_total", `node="far"`) == 0 {
		t.Error("the metrics do not say so")
	}
	i.path.Set(netpath.Conditions{})

	i.outage()
	m := i.metrics()
	if m.sum("cgn_router_kernel_event_lag_seconds_count") == 0 || m.sum("cgn_router_node_path_timeouts_total",
		`node="far"`) == 0 || m.sum("cgn_router_node_path_retransmits_total", `node="far"`) == 0 {
		t.Error("timeouts and retransmissions are not counted")
	}

	eventually(t, "nothing is asked", func() bool { return i.metrics().sum("cgn_router_node_in_flight") == 0 })
	if err := i.far.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is out", func() bool { return i.farNode().State == "open" })
	if i.metrics().sum("cgn_router_kernel_events_total", `kind="closed"`) == 0 {
		t.Error("nobody has told that its connections were closed")
	}
	i.agentRestarts()
}

// outage cuts the path until the kernel has reported a timeout, and joins it again.
func (i *informed) outage() {
	i.t.Helper()
	told := func(kind string) float64 { return i.metrics().sum("cgn_router_kernel_events_total", `kind="`+kind+`"`) }
	l := i.load(8, plain)
	eventually(i.t, "the far node gets its share", func() bool {
		return l.count(func(a outcome) bool { return a.node() == "far" }) >= 8
	})
	i.path.Set(netpath.Conditions{Loss: 1})
	eventually(i.t, "a timeout is told", func() bool { return told("timeout") > 0 })
	eventually(i.t, "it is suspect, or out", func() bool {
		n := i.farNode()
		return n.Suspect && n.SuspectWhy != "" && n.SuspectMs != nil || n.State == "open"
	})
	i.path.Set(netpath.Conditions{})
	eventually(i.t, "it is well again", func() bool { n := i.farNode(); return n.State == "healthy" && !n.Suspect })
	for n, a := range l.end() {
		if a.status != 200 || a.err != nil {
			i.t.Errorf("request %d: %v", n, a.reply)
		}
	}
}

func (i *informed) agentRestarts() {
	i.t.Helper()
	i.agent()
	connected := func() float64 { return i.metrics().sum("cgn_router_kernel_events_connected") }
	eventually(i.t, "the router knows that nobody tells", func() bool {
		return connected() == 0 && i.farNode().Path == nil
	})
	eventually(i.t, "it tries again", func() bool {
		return i.metrics().sum("cgn_router_kernel_events_breaks_total") >= 4
	})
	if n := i.log.count("nobody tells of events of the kernel"); n != 1 {
		i.t.Errorf("said %d times", n)
	}
	i.agent = tell(i.t, os.Getenv("TEST_EVENTS"))
	eventually(i.t, "the router is told again", func() bool { return connected() == 1 && i.farNode().Path != nil })
}

// TestMeasureKernelEvents prints how soon the router knows of a dead node, with and without events,
// for perf/RESULTS.md. MEASURE_KERNEL_EVENTS is the number of runs.
func TestMeasureKernelEvents(t *testing.T) {
	times, _ := strconv.Atoi(os.Getenv("MEASURE_KERNEL_EVENTS"))
	if times == 0 {
		t.Skip("MEASURE_KERNEL_EVENTS is not set: it says how often to measure")
	}
	for _, fault := range []string{"killed", "cut off"} {
		for _, traffic := range []bool{false, true} {
			for _, events := range []bool{true, false} {
				var suspect, out []time.Duration
				var lag string
				t.Run(fmt.Sprintf("%s, traffic=%t, events=%t", fault, traffic, events), func(t *testing.T) {
					for range times {
						t.Run("", func(t *testing.T) {
							s, o, l := die(t, fault == "killed", traffic, events)
							suspect, out, lag = append(suspect, s), append(out, o), l
						})
					}
					t.Logf("suspect after %s; takes no requests after %s; %s", spread(suspect), spread(out), lag)
				})
			}
		}
	}
}

// die kills the far node. die returns the times until the router's log reports the node as suspect
// (0: never) and as out.
func die(t *testing.T, kill, traffic, events bool) (suspect, out time.Duration, lag string) {
	i := inform(t, events)
	mustAll(t, "before", sixteen(i.site, "before", streaming))
	var l *load
	if traffic {
		l = i.load(8, plain)
		eventually(t, "the far node gets its share", func() bool {
			return l.count(func(a outcome) bool { return a.node() == "far" }) >= 8
		})
	}
	settled := time.NewTimer(300 * time.Millisecond) // no check waits for the one before
	<-settled.C
	at := time.Now()
	if kill {
		_ = i.far.Process.Kill()
	} else {
		i.path.Set(netpath.Conditions{Loss: 1})
	}
	within(t, time.Minute, "it is out", func() bool {
		return strings.Contains(i.log.text(), `"node takes no requests" node=far`)
	})
	for line := range strings.Lines(i.log.text()) {
		var when time.Time
		stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		when, _ = time.Parse(time.RFC3339Nano, stamp)
		switch since := when.Sub(at); {
		case strings.Contains(line, `"node is suspect" node=far`) && suspect == 0:
			suspect = since
		case strings.Contains(line, `"node takes no requests" node=far`) && out == 0:
			out = since
		}
	}
	if m := i.metrics(); events {
		lag = fmt.Sprintf("%.0f events, on average %.2f ms old", m.sum("cgn_router_kernel_event_lag_seconds_count"),
			1000*m.sum("cgn_router_kernel_event_lag_seconds_sum")/max(
				m.sum("cgn_router_kernel_event_lag_seconds_count"), 1))
	}
	if l != nil {
		l.end()
	}
	return suspect, out, lag
}

func spread(d []time.Duration) string {
	slices.Sort(d)
	if len(d) == 0 {
		return "-"
	}
	quick := 0
	for quick < len(d) && d[quick] <= 10*time.Millisecond {
		quick++
	}
	return fmt.Sprintf("%v (%v to %v, %d of %d within 10 ms)", d[len(d)/2].Round(time.Millisecond),
		d[0].Round(time.Millisecond), d[len(d)-1].Round(time.Millisecond), quick, len(d))
}
