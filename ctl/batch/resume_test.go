package batch

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// awaitLines waits until a file has this many lines.
func awaitLines(t *testing.T, name string, n int) {
	t.Helper()
	for begun := time.Now(); ; time.Sleep(time.Millisecond) {
		page, _ := os.ReadFile(name)
		if strings.Count(string(page), "\n") >= n {
			return
		}
		if time.Since(begun) > time.Minute {
			t.Fatalf("%s has %d of %d lines", name, strings.Count(string(page), "\n"), n)
		}
	}
}

// gate returns the URL of a proxy of f that lets n requests through, and the others once open is
// closed.
func (f *fleet) gate(t *testing.T, n int64, open <-chan struct{}) string {
	t.Helper()
	to, err := url.Parse(f.url)
	if err != nil {
		t.Fatal(err)
	}
	var came atomic.Int64
	proxy := httputil.NewSingleHostReverseProxy(to)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost && came.Add(1) > n {
			<-open
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestInterrupt checks that an interrupted run lets its running requests end, and that the next run
// sends the others.
func TestInterrupt(t *testing.T) {
	f := newFleet(t, engine.Config{DecodeStep: 5 * time.Millisecond}, func(*router.Config) {})
	name := file(t, many(40, 20)...)
	out := strings.Replace(name, ".jsonl", ".out.jsonl", 1)
	ctx, interrupt := context.WithCancel(t.Context())
	open := make(chan struct{})
	gate := f.gate(t, 6, open)
	go func() {
		defer close(open)
		defer interrupt()
		awaitLines(t, out, 1)
	}()
	s, _, err := ctl(t, ctx, nil, name, "--url", gate, "--concurrency", "4")
	if err == nil || !strings.Contains(err.Error(), "interrupted") || s.Unanswered == 0 || s.Failed > 0 ||
		!strings.Contains(ctltest.Hint(err), "same command") {
		t.Fatalf("%+v, %v", s, err)
	}
	st := f.engine.Stats()
	if st.Aborted > 0 || st.Completed != int64(s.Answered) || st.MaxRunning > 4 {
		t.Errorf("%+v; %d are answered", st, s.Answered)
	}
	once(t, out, s.Answered)
	if s, _, err = ctl(t, t.Context(), nil, name, "--url", gate); err != nil || s.Before+s.Answered != 40 {
		t.Errorf("%+v, %v", s, err)
	}
	once(t, out, 40)
	if n := f.engine.Stats().Completed; n != 40 {
		t.Errorf("%d requests were computed", n)
	}
}

// newRunOf returns a run over a file that sends to url, and whose output is open.
func newRunOf(t *testing.T, name, url string) *run {
	t.Helper()
	in, err := openInput(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.close)
	out, err := openOutput(t.Context(), strings.Replace(name, ".jsonl", ".out.jsonl", 1), in, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(out.close)
	s := newSender(url, "", &options{timeout: time.Minute, patience: time.Minute, concurrency: 4})
	return &run{sender: s, in: in, out: out, failures: &failures{name: name + ".errors"},
		progress: newProgress(io.Discard, len(in.answered), in.before)}
}

// TestNothingAfterInterrupt checks that nothing is sent after the interruption, at first or again.
func TestNothingAfterInterrupt(t *testing.T) {
	var sent atomic.Int64
	ctx, interrupt := context.WithCancel(t.Context())
	url := endpoint(t, func(w http.ResponseWriter, _ string, _ int) {
		sent.Add(1)
		interrupt()
		w.Header().Set("retry-after-ms", "0")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	if err := newRunOf(t, file(t, many(8, 1)...), url).all(ctx, 1); err != nil || sent.Load() != 1 {
		t.Errorf("%d requests, %v", sent.Load(), err)
	}
	for range 20 { // a request may be at hand at the moment of the interruption
		if err := newRunOf(t, file(t, many(8, 1)...), url).all(ctx, 4); err != nil || sent.Load() != 1 {
			t.Fatalf("%d requests, %v", sent.Load(), err)
		}
	}
}

// TestFullDisk checks that only the last line of the output is cut by a disk that is full for a
// while, and that the next run sends what has no whole line.
func TestFullDisk(t *testing.T) {
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	f := newFleet(t, engine.Config{Speed: 100}, func(*router.Config) {})
	name := file(t, many(4, 1)...)
	r := newRunOf(t, name, f.url)
	answer := func(id string) error {
		return r.out.append(&record{ID: recordID, CustomID: id,
			Response: &response{StatusCode: 200, Body: []byte("{}")}})
	}
	if err := answer("r-0"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 120, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	full := answer("r-1")
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if err := answer("r-2"); full == nil || err == nil {
		t.Errorf("%v, and then %v", full, err)
	}
	page, err := os.ReadFile(r.out.f.Name())
	if err != nil || len(page) != 120 {
		t.Errorf("%q, %v", page, err)
	}
	r.out.close()
	if s, _, err := ctl(t, t.Context(), nil, name, "--url", f.url); err != nil || s.Before != 1 || s.Answered != 3 {
		t.Errorf("%+v, %v", s, err)
	}
	once(t, r.out.f.Name(), 4)
}

// interruptTwice interrupts a program until it ends by the signal.
func interruptTwice(t *testing.T, p *exec.Cmd) {
	t.Helper()
	ended := make(chan error)
	go func() { ended <- p.Wait() }()
	for {
		_ = p.Process.Signal(syscall.SIGINT)
		select {
		case err := <-ended:
			if s, ok := p.ProcessState.Sys().(syscall.WaitStatus); !ok || !s.Signaled() {
				t.Errorf("it ended with %v", err)
			}
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// TestKilled kills the program at work, several times. The first time it is interrupted twice.
func TestKilled(t *testing.T) {
	f := newFleet(t, engine.Config{DecodeStep: 5 * time.Millisecond}, func(*router.Config) {})
	const requests, concurrency, kills = 60, 4, 4
	name := file(t, many(requests, 20)...)
	out := strings.Replace(name, ".jsonl", ".out.jsonl", 1)
	for kill := range kills {
		p := exec.Command(os.Args[0])
		p.Env = append(os.Environ(), childOf+"="+strings.Join([]string{"batch", "run", name, "--url", f.url,
			"--concurrency", "4"}, "\n"))
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		awaitLines(t, out, 5*(kill+1))
		if kill == 0 {
			interruptTwice(t, p)
			continue
		}
		if err := p.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = p.Wait() // it ends by the signal
	}
	s, _, err := ctl(t, t.Context(), nil, name, "--url", f.url)
	if err != nil || s.Before < 5*kills || s.Before+s.Answered != requests {
		t.Errorf("%+v, %v", s, err)
	}
	once(t, out, requests)
	if n := f.engine.Stats().Received; n > requests+kills*concurrency+100 {
		t.Errorf("%d requests were sent", n)
	}
}

// TestCutOutput checks that a line that was cut is removed, and that its request is sent again.
func TestCutOutput(t *testing.T) {
	f := newFleet(t, engine.Config{Speed: 100}, func(*router.Config) {})
	name := file(t, many(4, 1)...)
	out := strings.Replace(name, ".jsonl", ".out.jsonl", 1)
	if _, _, err := ctl(t, t.Context(), nil, name, "--url", f.url); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, cut := range []int{1, 2, len(whole) / 3, len(whole) - 1, len(whole)} {
		if err := os.WriteFile(out, whole[:len(whole)-cut], 0o600); err != nil {
			t.Fatal(err)
		}
		if s, _, err := ctl(t, t.Context(), nil, name, "--url", f.url); err != nil || s.Before == 4 {
			t.Errorf("%d bytes cut: %+v, %v", cut, s, err)
		}
		once(t, out, 4)
	}
}

// TestWrongOutput checks that an output of something else, or in use, is refused and left alone.
func TestWrongOutput(t *testing.T) {
	name := file(t, many(2, 1)...)
	out := strings.Replace(name, ".jsonl", ".out.jsonl", 1)
	for text, want := range map[string]string{
		"notes\n": ".out.jsonl:1: is no line of an output file",
		`{"custom_id":"r-0","response":{"status_code":200}}` + "\n" + `{"custom_id":"x","response":null}` +
			"\ntorn": `.out.jsonl:2: ` + name + ` has no custom_id "x"`,
		"notes":                       ".out.jsonl:1: is no line of an output file",
		recordStart[:9] + "x":         ".out.jsonl:1: is no line of an output file",
		`{"custom_id":"r-0"}` + "\nx": ".out.jsonl:2: is no line of an output file",
	} {
		if err := os.WriteFile(out, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, _, err := ctl(t, t.Context(), nil, name, "--url", "http://127.0.0.1:1")
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(ctltest.Hint(err), "--out") {
			t.Errorf("%v, hint %q", err, ctltest.Hint(err))
		}
		if page, _ := os.ReadFile(out); string(page) != text {
			t.Errorf("%q is left", page)
		}
	}
	if err := os.Remove(out); err != nil {
		t.Fatal(err)
	}
	in, err := openInput(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	o, err := openOutput(t.Context(), out, in, nil)
	if err != nil {
		t.Fatal(err)
	}
	for want, args := range map[string][]string{
		"another run writes it": nil,
		"is the same file as":   {"--out", name},
		"no regular file":       {"--out", "/dev/null"},
		"--errors " + name:      {"--out", out + "2", "--errors", name},
		"nothing was sent":      {"--out", out + "2"}, // since nobody serves
		`--url "127.0.0.1:80`:   {"--url", "127.0.0.1:8080"},
		"with /v1 or without":   {"--url", "http://127.0.0.1:1/some/v1"},
		"--concurrency 0":       {"--concurrency", "0"},
		"--api-key-file":        {"--api-key-file", out},
	} {
		args = append([]string{name, "--url", "http://127.0.0.1:1"}, args...)
		if _, _, err := ctl(t, t.Context(), nil, args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
	o.close()
}

// TestLockOfAnEndedRun checks that a run waits for the end of one that was killed just now.
func TestLockOfAnEndedRun(t *testing.T) {
	name := file(t, many(2, 1)...)
	old := newRunOf(t, name, "")
	time.AfterFunc(lockTime/10, old.out.close)
	newRunOf(t, name, "")
}

// TestTailOfTheKilledRun checks that a run that waits for the end of a killed one removes the
// record that the killed one cut meanwhile.
func TestTailOfTheKilledRun(t *testing.T) {
	in, err := openInput(t.Context(), file(t, many(4, 1)...))
	if err != nil {
		t.Fatal(err)
	}
	defer in.close()
	name := filepath.Join(t.TempDir(), "out.jsonl")
	killed, err := openOutput(t.Context(), name, in, nil)
	if err != nil {
		t.Fatal(err)
	}
	wrote := make(chan error, 1)
	time.AfterFunc(100*time.Millisecond, func() { // while the next run waits
		err := killed.append(&record{ID: recordID, CustomID: "r-0",
			Response: &response{StatusCode: 200, Body: []byte("{}")}})
		_, cut := killed.f.WriteString(recordStart)
		killed.close()
		wrote <- errors.Join(err, cut)
	})
	next, err := openOutput(t.Context(), name, in, nil)
	if err := errors.Join(err, <-wrote); err != nil {
		t.Fatal(err)
	}
	defer next.close()
	page, err := os.ReadFile(name)
	if err != nil || strings.Count(string(page), "\n") != 1 || !strings.HasSuffix(string(page), "\n") {
		t.Errorf("the output has a tail: %q, %v", page, err)
	}
}
