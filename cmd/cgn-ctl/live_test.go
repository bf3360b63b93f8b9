package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/ctl/ctltest"
)

// watched is a program on a terminal of its own.
type watched struct {
	*emulator
	t             *testing.T
	cmd           *exec.Cmd
	first, second *os.File
	ended         chan error
}

// onTerminal starts cgn-ctl on a terminal of the given size.
func onTerminal(t *testing.T, columns, rows int, args ...string) *watched {
	t.Helper()
	w := &watched{emulator: newEmulator(columns, rows), t: t, cmd: exec.Command("/proc/self/exe", args...),
		ended: make(chan error, 1)}
	w.first, w.second = pty(t, columns, rows)
	w.cmd.Env = append(os.Environ(), "TEST_AS=ctl")
	w.cmd.Stdin, w.cmd.Stdout, w.cmd.Stderr = w.second, w.second, w.second
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waited := make(chan struct{})
	go func() {
		defer close(waited)
		w.ended <- w.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = w.cmd.Process.Kill() // fails if the program has ended
		<-waited
	})
	return w
}

// until reads the program's output until done returns true. Only a fault exceeds the time limit of
// until.
func (w *watched) until(what string, done func() bool) {
	w.t.Helper()
	buffer := make([]byte, 1<<16)
	_ = w.first.SetReadDeadline(time.Now().Add(time.Minute))
	for !done() {
		n, err := w.first.Read(buffer)
		if err != nil {
			w.t.Fatalf("%s: %v; the screen is\n%s", what, err, strings.Join(w.screen(), "\n"))
		}
		w.feed(string(buffer[:n]))
	}
	for _, wrong := range w.wrong {
		w.t.Error(what + ": " + wrong)
	}
	w.wrong = nil
}

// frame reads until at least one more picture is complete.
func (w *watched) frame(what string) []string {
	w.t.Helper()
	before := w.frames
	w.until(what, func() bool { return w.frames > before && !w.inFrame && w.left == "" })
	return w.screen()
}

// echoes says whether the terminal shows typed characters.
func (w *watched) echoes() bool {
	w.t.Helper()
	echo := false
	control(w.t, w.second, func(fd int) error {
		modes, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		echo = err == nil && modes.Lflag&unix.ECHO != 0
		return err
	})
	return echo
}

// largeFleet is a fleet of 40 nodes with names of 20 letters. The last two nodes fail.
func largeFleet(t *testing.T) string {
	t.Helper()
	var nodes []map[string]any
	for i := range 40 {
		n := map[string]any{"id": fmt.Sprintf("gpu-rack-07-node-%03d", i),
			"address": fmt.Sprintf("http://10.0.0.%d:8000", i), "models": []string{"org/a-model-with-a-name"},
			"state":    "healthy",
			"eligible": true, "in_flight": i, "max_concurrent": 64, "learned_lifetime_s": 60,
			"signals": map[string]any{"from": "stream", "sm_pct": 50, "power_watts": 300, "cpu_pct": 150,
				"engine_wait_pct": 12.5, "runq_us_p99": 2500, "srtt_us_p50": 250, "retrans_ppm": 7500}}
		switch i {
		case 38:
			n["state"], n["eligible"], n["reason"], n["last_error"] = "open", false, "it failed",
				"dial tcp 10.0.0.38:8000: \x1b[2Jconnect: connection refused, and more that is said at length"
		case 39:
			n["suspect"], n["suspect_why"] = true, "a retransmission timeout"
		}
		nodes = append(nodes, n)
	}
	page, err := json.Marshal(map[string]any{"rev": 3, "nodes": nodes, "models": []any{}, "index_blocks": 123456,
		"problems": []any{map[string]any{"subject": "policy", "reason": "it has a mistake"}}})
	if err != nil {
		t.Fatal(err)
	}
	url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/fleet": string(page), "/metrics": ctltest.MetricsPage})
	return url
}

// lineWith returns the index of the first line with text, or -1.
func lineWith(lines []string, text string) int {
	return slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, text) })
}

func wantLines(t *testing.T, lines []string, parts ...string) {
	t.Helper()
	ctltest.Want(t, strings.Join(lines, "\n"), parts...)
}

// TestTopFitsTheTerminal checks top at various sizes and changes of size. The headline and the
// failing nodes are always visible, and hidden nodes are mentioned.
func TestTopFitsTheTerminal(t *testing.T) {
	w := onTerminal(t, 80, 24, "top", "--admin", largeFleet(t), "--interval", "1h")
	at80 := w.frame("24 rows of 80 columns")
	if !strings.HasPrefix(at80[0], "40 nodes, 780 requests in flight") || at80[23] == "" {
		t.Errorf("the headline is %q, the last line %q", at80[0], at80[23])
	}
	wantLines(t, at80, "! policy: it has a mistake", "1 of the nodes get none; 1 suspect",
		"more columns: enlarge the terminal or use --once", "QUEUED", "it failed (dial", "a retransmission ti")
	for _, n := range []string{"038", "039"} {
		if at := lineWith(at80, "node-"+n); at < 0 || at > lineWith(at80, "node-000") {
			t.Errorf("node %s fails, and is in line %d", n, at)
		}
	}
	shown := 0
	for _, l := range at80 {
		if strings.HasPrefix(l, "gpu-rack-07-node-") {
			shown++
		}
	}
	wantLines(t, at80, fmt.Sprintf("%d more nodes", 40-shown))
	if w.cursor || !w.other || w.echoes() {
		t.Error("the cursor, the screen or keys are as before")
	}

	for _, size := range [][2]int{{60, 12}, {20, 4}, {3, 1}, {120, 50}} {
		w.resize(size[0], size[1])
		resize(t, w.first, size[0], size[1])
		now := w.frame(fmt.Sprintf("%d columns, %d rows", size[0], size[1]))
		if !strings.HasPrefix(now[0], at80[0][:min(size[0]-1, 20)]) {
			t.Errorf("%v: the headline is %q", size, now[0])
		}
		if size[1] == 50 {
			wantLines(t, now, "CPU WAIT %", "RTT", "RESENT %", "250us", "0.75", "12", "more columns", "node-037")
		}
	}
	w.resize(300, 60)
	resize(t, w.first, 300, 60)
	whole := w.frame("a large terminal")
	wantLines(t, whole, "CPU WAIT %", "WAIT P99", "2.5ms", "ADDRESS", "PREDICTION", "said at length")
	if lineWith(whole, "…") >= 0 {
		t.Errorf("something is left out of\n%s", strings.Join(whole, "\n"))
	}
}

// TestTopGivesTheTerminalBack checks that the cursor, the screen and the keys are as before,
// however top ends.
func TestTopGivesTheTerminalBack(t *testing.T) {
	url := largeFleet(t)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP} {
		if signal.Ignored(s) {
			continue // as under nohup; top then ignores the signal too
		}
		w := onTerminal(t, 80, 24, "top", "--admin", url, "--interval", "100ms")
		for range 3 {
			w.frame("before " + s.String())
		}
		if w.cursor || !w.other || w.wraps {
			t.Error("the terminal is as before")
		}
		if err := w.cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		w.until("after "+s.String(), func() bool { return w.cursor && !w.other && w.wraps && w.left == "" })
		if err := <-w.ended; err != nil {
			t.Errorf("%v: %v", s, err)
		}
		if !w.echoes() {
			t.Errorf("%v: keys are not shown", s)
		}
	}
}

// TestTopStops checks that a stopped top releases the terminal, and takes it again when it
// continues.
func TestTopStops(t *testing.T) {
	w := onTerminal(t, 80, 24, "top", "--admin", largeFleet(t), "--interval", "1h")
	w.frame("at first")
	if err := w.cmd.Process.Signal(syscall.SIGTSTP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	for !status.Stopped() {
		if _, err := syscall.Wait4(w.cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil &&
			!errors.Is(err, syscall.EINTR) {
			t.Fatal(err)
		}
	}
	w.until("stopped", func() bool { return w.cursor && !w.other && w.left == "" })
	if err := w.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if again := w.frame("continued"); !strings.HasPrefix(again[0], "40 nodes") || w.cursor || !w.other {
		t.Errorf("it shows %q", again[0])
	}
}

// TestTopOutlivesTheRouter checks that top reports an unreachable router above the last data.
func TestTopOutlivesTheRouter(t *testing.T) {
	var gone atomic.Bool
	router := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case gone.Load():
			http.Error(w, "no", http.StatusServiceUnavailable)
		case r.URL.Path == "/metrics":
			_, _ = io.WriteString(w, ctltest.MetricsPage)
		default:
			_, _ = io.WriteString(w, ctltest.FleetPage)
		}
	}))
	defer router.Close()
	w := onTerminal(t, 100, 24, "top", "--admin", router.URL, "--interval", "100ms")
	w.frame("at first")
	w.until("rates", func() bool { return lineWith(w.screen(), "requests/s") >= 0 && !w.inFrame })
	gone.Store(true)
	w.until("without a router", func() bool { return strings.Contains(w.screen()[0], "HTTP 503") && !w.inFrame })
	wantLines(t, w.screen(), "this is of", "n1", "n2")
}
