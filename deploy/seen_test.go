// Package deploy holds what runs beside the daemons; its test holds the dashboard and the alerts to
// the metrics that exist.
package deploy

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/bpf"
)

type board struct {
	UID    string
	Panels []struct {
		Title, Type, Description string
		GridPos                  struct{ H, W, X, Y int }
		Targets                  []struct{ Expr, LegendFormat string }
	}
}

// readBoard reads the dashboard, which no Grafana has loaded here: its server is in none of Debian
// 12, PyPI, npm (all of that name there are clients and libraries) and Go's modules.
func readBoard(t *testing.T) (b board) {
	t.Helper()
	text, err := os.ReadFile("grafana/cognitora.json")
	if err == nil {
		err = json.Unmarshal(text, &b)
	}
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// queries are the board's expressions as Prometheus takes them, by panel.
func (b board) queries() map[string][]string {
	fill := strings.NewReplacer("$__rate_interval", "10s", "$instance", ".+")
	all := map[string][]string{}
	for _, p := range b.Panels {
		for _, q := range p.Targets {
			all[p.Title] = append(all[p.Title], fill.Replace(q.Expr))
		}
	}
	return all
}

// TestMetricsExist: whatever the dashboard and the alerts ask for is in the metric reference.
func TestMetricsExist(t *testing.T) {
	reference, err := os.ReadFile("reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(cgn_[a-z0-9_]+)` \\| (\\w+) ").FindAllStringSubmatch(
		string(reference), -1) {
		kinds[m[1]] = m[2]
	}
	for _, file := range []string{"grafana/cognitora.json", "prometheus/alerts.yml", "prometheus/alerts_test.yml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`cgn_[a-z0-9_]+`).FindAllString(string(text), -1) {
			base := name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if cut, ok := strings.CutSuffix(name, suffix); ok && kinds[cut] == "histogram" {
					base = cut
				}
			}
			if kinds[base] == "" {
				t.Errorf("%s: %s is no metric of ours", file, name)
			}
		}
	}
}

// TestBoard: panels have a title, say what they show, and do not overlap.
func TestBoard(t *testing.T) {
	b := readBoard(t)
	taken := map[[2]int]string{}
	for _, p := range b.Panels {
		if p.Title == "" || p.Type != "row" && (p.Description == "" || len(p.Targets) == 0) {
			t.Errorf("%q: no title, no description or nothing to show", p.Title)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x > 23 {
					t.Fatalf("%q lies on %q", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}

// free is an address that nothing listens on.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// start runs a program until the test ends, and returns what it prints.
func start(t *testing.T, name string, args ...string) *bufio.Scanner {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = t.TempDir()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	})
	return bufio.NewScanner(out)
}

// eventually tries until done says so; the error of the last try is the test's.
func eventually(t *testing.T, done func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		err := done()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// query asks Prometheus; it returns how many series have a value that is a number.
func query(prometheus, expr string) (int, error) {
	answer, err := http.Get("http://" + prometheus + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	var body struct {
		Status, Error string
		Data          struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(answer.Body).Decode(&body); err != nil {
		return 0, err
	}
	if body.Status != "success" {
		return 0, fmt.Errorf("%s: %s", expr, body.Error)
	}
	n := 0
	for _, series := range body.Data.Result {
		if series.Value[1] != "NaN" {
			n++
		}
	}
	return n, nil
}

// mayBeEmpty are panels of what a healthy idle fleet, or one without GPUs and BMCs, does not have.
var mayBeEmpty = []string{"Turned away and cut", "Retries and upstream errors", "Set aside and ejected",
	"Time of a read that hits", "Hits", "Pulled from other hosts", "Limited, refused and failed, by tenant",
	"Power", "SMs at work", "Memory of GPUs"}

// ofPrograms are panels of what only programs in the kernel tell.
var ofPrograms = []string{"Tokens as the wire sees them", "Waits for a CPU", "Stalls"}

// inKernel is whether the agent is to load programs, as root.
func inKernel() bool { return os.Getenv("BPF_REQUIRED") == "1" }

// pinned returns a place for programs that is this test's own, in a BPF file system that it mounts;
// both are gone at its end.
func pinned(t *testing.T) (root string) {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal("no BPF file system can be mounted: ", err)
	}
	root = filepath.Join(dir, "cognitora")
	t.Cleanup(func() {
		_, err := bpf.Clean(root)
		if err := errors.Join(err, unix.Unmount(dir, 0)); err != nil {
			t.Error(err)
		}
	})
	return root
}

// TestBoardShows starts a fleet with the programs in bin/ and a real Prometheus that scrapes it as
// prometheus.yml says, sends requests, and has all expressions of the board answered. SEEN=1; with
// BPF_REQUIRED=1 all that panels ask of what programs tell must be there too.
func TestBoardShows(t *testing.T) {
	if os.Getenv("SEEN") == "" {
		t.Skip("it needs bin/ and prometheus: make check-seen")
	}
	bin, err := filepath.Abs("../bin")
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"check", "config", "prometheus.yml"},
		{"test", "rules", "alerts_test.yml"}} {
		cmd := exec.Command("promtool", args...)
		cmd.Dir = "prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("promtool %v: %v\n%s", args, err, out)
		}
	}
	f := startFleet(t, bin)
	prometheus := scrape(t, f)
	queries, may := readBoard(t).queries(), mayBeEmpty
	if !inKernel() {
		may = append(slices.Clone(may), ofPrograms...)
	}
	eventually(t, func() error {
		if err := f.ask(); err != nil {
			return err
		}
		var empty []string
		for panel, exprs := range queries {
			answered := 0
			for _, expr := range exprs {
				n, err := query(prometheus, expr)
				if err != nil {
					return err
				}
				answered += min(n, 1)
			}
			if answered == 0 && !slices.Contains(may, panel) ||
				answered < len(exprs) && inKernel() && slices.Contains(ofPrograms, panel) {
				empty = append(empty, panel)
			}
		}
		if len(empty) > 0 {
			return fmt.Errorf("nothing to show: %q", empty)
		}
		return nil
	})
}

// seenFleet is a fleet by its addresses: the router's port for requests, and the admin ports of
// router, agent and cache.
type seenFleet struct {
	router, admin, agent, cache string
	asked                       int
}

// startFleet runs `cgn-ctl up` with an agent beside it that shows its metrics.
func startFleet(t *testing.T, bin string) *seenFleet {
	t.Helper()
	f := &seenFleet{router: free(t), admin: free(t), agent: free(t)}
	engine, etcd := "", ""
	up := start(t, filepath.Join(bin, "cgn-ctl"), "up", "--listen", f.router, "--admin", f.admin, "--engines", "2")
	for engine == "" || f.cache == "" || !strings.Contains(up.Text(), "Ctrl-C") {
		if !up.Scan() {
			t.Fatal("the fleet did not start")
		}
		if m := regexp.MustCompile(`^engine-1 +(http\S+)`).FindStringSubmatch(up.Text()); m != nil {
			engine = m[1]
		}
		if m := regexp.MustCompile(`^etcd +(\S+)`).FindStringSubmatch(up.Text()); m != nil {
			etcd = m[1]
		}
		if m := regexp.MustCompile(`^kvcached .*admin port http://([^,]+)`).FindStringSubmatch(up.Text()); m != nil {
			f.cache = m[1]
		}
	}
	telemetry := []string{"--telemetry", "proc"}
	if inKernel() {
		telemetry = []string{"--telemetry", "bpf", "--telemetry.bpf_root", pinned(t)}
	}
	start(t, filepath.Join(bin, "cgn-agent"), append(telemetry, "--kind", "openai_compat", "--engine", engine, "--etcd",
		"http://"+etcd, "--listen", free(t), "--admin", f.agent)...)
	return f
}

// scrape runs a Prometheus that scrapes the fleet every second, and returns its address.
func scrape(t *testing.T, f *seenFleet) (address string) {
	t.Helper()
	address = free(t)
	text, err := os.ReadFile("prometheus/prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	rules, _ := filepath.Abs("prometheus/alerts.yml")
	config := strings.NewReplacer("127.0.0.1:9091", f.admin, "127.0.0.1:9092", f.agent, "127.0.0.1:9093", f.cache,
		"scrape_interval: 5s", "scrape_interval: 1s",
		"[alerts.yml]", "["+rules+"]").Replace(string(text))
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, "prometheus", "--config.file", file, "--storage.tsdb.path", filepath.Join(t.TempDir(), "tsdb"),
		"--web.listen-address", address, "--log.level", "error")
	return address
}

// ask sends two requests: one that every time finds its blocks where they were, and one that no
// node has seen, so that all nodes get some.
func (f *seenFleet) ask() error {
	f.asked++
	for _, about := range []string{"the fleet", fmt.Sprint("number ", f.asked)} {
		if err := f.complete(strings.Repeat("how is "+about+"? ", 20)); err != nil {
			return err
		}
	}
	return nil
}

func (f *seenFleet) complete(prompt string) error {
	answer, err := http.Post("http://"+f.router+"/v1/completions", "application/json",
		strings.NewReader(`{"model":"sim","prompt":"`+prompt+`","max_tokens":8,"stream":true}`))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}
