package router_test

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/agent"
)

// TestAgentCost measures the cost of an agent on its host: the CPU time of its threads, their
// wakeups, and resident memory. The agent has kernel programs, an attached engine, and real routers
// that follow the agent. AGENT_BIN is the program. AGENT_SECONDS is the time for each line, 15 by
// default.
//
// The cost of a wakeup depends on the machine. So the test runs a second program that only wakes
// up, as often as the agent does. The test compares the CPU time of the two. The limits apply to
// wakeups, memory and the ratio of CPU times. The kernel programs' cost for other processes is not
// included.
func TestAgentCost(t *testing.T) {
	bin := os.Getenv("AGENT_BIN")
	if bin == "" || os.Getenv("BPF_REQUIRED") != "1" {
		t.Skip("it wants a quiet machine, and puts programs into its kernel: make perf-agent")
	}
	seconds, err := strconv.Atoi(cmp.Or(os.Getenv("AGENT_SECONDS"), "15"))
	if err != nil {
		t.Fatal(err)
	}
	ticker, _ := program(t, "ticker", (*exec.Cmd).Start, &logged{})
	for _, c := range []struct {
		routers, rate int // requests a second
	}{{1, 0}, {2, 0}, {1, 2}, {2, 2}} {
		t.Run(fmt.Sprintf("routers=%d,requests=%d", c.routers, c.rate), func(t *testing.T) {
			etcd := startEtcd(t).endpoint
			pid := costing(t, bin, etcd)
			sites := make([]*site, c.routers)
			for i := range sites {
				s := follow(t, etcd, 1)
				eventually(t, "the router follows the agent", func() bool {
					return s.metrics().sum("cgn_router_node_signals", `from="stream"`) == 1
				})
				sites[i] = s
			}
			ask := func(limit time.Duration) {
				pace := time.NewTicker(time.Second / time.Duration(max(c.rate, 1)))
				defer pace.Stop()
				for i, start := 0, time.Now(); time.Since(start) < limit; i++ {
					if c.rate > 0 {
						if r := sites[i%len(sites)].chat(chatBody("hello", streaming)); r.status != 200 {
							t.Fatalf("%d %v", r.status, r.err)
						}
					}
					<-pace.C
				}
			}
			ask(5 * time.Second) // the agent starts
			before, idle := costOf(t, pid), costOf(t, ticker.Process.Pid)
			ask(time.Duration(seconds) * time.Second)
			used, ticks := costOf(t, pid).since(&before), costOf(t, ticker.Process.Pid).since(&idle)
			t.Logf("%d routers, %d requests a second: %.2f %% of a core, %.0f wakes a second, %.1f MB resident, over "+
				"%.1f s; a program that does nothing but wake 14 times a second: %.2f %%",
				c.routers, c.rate, used.percent(), used.wakesPerSecond(), float64(used.resident)/1e6,
				used.over.Seconds(), ticks.percent())
			if c.rate == 0 && (used.wakesPerSecond() > mostWakes || used.resident > mostResident ||
				used.percent() > mostTicks*ticks.percent()) {
				t.Errorf("that is more than %d wakes a second, %d MB or %d times such a program", mostWakes,
					mostResident/1000000, mostTicks)
			}
		})
	}
}

// These are the limits of an agent without requests.
const (
	mostWakes    = 120 // per second
	mostResident = 30_000_000
	mostTicks    = 5 // multiple of the CPU time of a program that only wakes up
)

// TestAgentMemory checks that an agent that has relayed streams is within twice the target,
// whatever else the machine does.
func TestAgentMemory(t *testing.T) {
	bin := os.Getenv("AGENT_BIN")
	if bin == "" || os.Getenv("BPF_REQUIRED") != "1" {
		t.Skip("it starts a built agent, and puts programs into the kernel: make check-bpf")
	}
	etcd := startEtcd(t).endpoint
	pid := costing(t, bin, etcd)
	s := follow(t, etcd, 1)
	l := s.load(8, streaming)
	eventually(t, "it has relayed streams", func() bool {
		return l.count(func(a outcome) bool { return a.status == 200 }) >= 200
	})
	l.end()
	resident := costOf(t, pid).resident
	t.Logf("%.1f MB resident", float64(resident)/1e6)
	if resident > 2*mostResident {
		t.Errorf("that is more than %d MB", 2*mostResident/1000000)
	}
}

// costing runs the agent at bin, attached to a simulated engine. Agent and engine are processes of
// their own.
func costing(t *testing.T, bin, etcd string) (pid int) {
	t.Helper()
	var kernel agent.TelemetryConfig
	kernelOf(t, &kernel)
	_, out := program(t, "engine", (*exec.Cmd).Start, &logged{})
	url, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "agent.toml")
	doc := fmt.Sprintf("[agent]\nnode_id = \"a\"\nlisten = \"127.0.0.1:0\"\nadmin = \"127.0.0.1:0\"\n[engine]\nurl = "+
		"%q\n[etcd]\nendpoints = [%q]\n[telemetry]\nkernel = %q\nbpf_root = %q\n",
		strings.TrimSpace(url), etcd, kernel.Kernel, kernel.Pins)
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "--config", file)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails if the process has ended
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	return cmd.Process.Pid
}

// cost is the CPU time and the wakes of a process up to one moment, and its memory then.
type cost struct {
	at       time.Time
	cpu      time.Duration // of all threads
	wakes    int           // how often threads have gone to sleep
	resident int           // bytes
}

// spent is the CPU time and the wakes of a process between two moments, and its memory at the end.
type spent struct {
	over, cpu time.Duration
	wakes     int
	resident  int // bytes, at the end
}

func (c cost) since(before *cost) spent {
	return spent{c.at.Sub(before.at), c.cpu - before.cpu, c.wakes - before.wakes, c.resident}
}

func (s spent) percent() float64 { return 100 * float64(s.cpu) / float64(s.over) }

func (s spent) wakesPerSecond() float64 { return float64(s.wakes) / s.over.Seconds() }

func costOf(t *testing.T, pid int) (c cost) {
	t.Helper()
	c.at = time.Now()
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if len(tasks) == 0 {
		t.Fatal("the agent has ended")
	}
	for _, task := range tasks { // Go's threads do not end
		stat, err := os.ReadFile(filepath.Join(task, "schedstat")) // ns on a CPU, ns waiting for one, times on one
		if err != nil {
			t.Fatal(err)
		}
		ns, err := strconv.ParseInt(string(bytes.Fields(stat)[0]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		c.cpu += time.Duration(ns)
		c.wakes += statusOf(t, task, "voluntary_ctxt_switches:")
	}
	c.resident = statusOf(t, fmt.Sprintf("/proc/%d", pid), "VmRSS:") << 10
	return c
}

// statusOf reads a number of a status file.
func statusOf(t *testing.T, dir, what string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, what); ok {
			n, err := strconv.Atoi(strings.Fields(value)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in %s/status", what, dir)
	return 0
}
