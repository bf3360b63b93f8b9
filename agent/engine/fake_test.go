package engine

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/config"
)

// TestMain runs the test binary as an engine if FAKE_ENGINE is set.
func TestMain(m *testing.M) {
	if mode := os.Getenv("FAKE_ENGINE"); mode != "" {
		fakeEngine(mode, os.Args[len(os.Args)-1])
	}
	goleak.VerifyTestMain(m)
}

// fakeEngine listens like an engine would. fakeEngine ends by signal, after an hour at the latest.
func fakeEngine(mode, port string) {
	switch mode {
	case "crash":
		fmt.Println("no such model")
		os.Exit(3)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
	case "family":
		startChild()
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if file := os.Getenv("FAKE_LOADED"); file != "" {
			if _, err := os.Stat(file); err != nil {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"object":"list","data":[{"id":"tiny"},{"id":"adapter"},{"id":"tiny"}]}`)
	})
	mux.HandleFunc("GET /exit", func(http.ResponseWriter, *http.Request) { os.Exit(4) })
	time.AfterFunc(time.Hour, func() { os.Exit(5) })
	fmt.Fprintln(os.Stderr, http.ListenAndServe("127.0.0.1:"+port, mux))
	os.Exit(6)
}

// startChild starts a process that inherits the output pipes, ignores SIGTERM
// and outlives its parent unless its group is killed.
func startChild() {
	c := exec.Command("/bin/sh", "-c", `trap "" TERM; echo $$ > "$FAKE_CHILD"; while :; do sleep 3600; done`)
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		fmt.Println(err)
		os.Exit(7)
	}
}

// fakeConfig starts this test binary as an engine, with short times.
func fakeConfig(mode string, env ...string) *Config {
	return &Config{
		Kind: OpenAICompat, Binary: os.Args[0], Args: []string{"{port}"},
		Env:            append([]string{"FAKE_ENGINE=" + mode}, env...),
		ScrapeInterval: config.Duration(10 * time.Millisecond), ScrapeTimeout: config.Duration(10 * time.Second),
		StartTimeout: config.Duration(time.Minute), UnhealthyTimeout: config.Duration(time.Minute),
		StopGrace:    config.Duration(time.Minute),
		RestartDelay: config.Duration(10 * time.Millisecond), RestartDelayMax: config.Duration(40 * time.Millisecond),
		StableAfter: config.Duration(time.Minute),
	}
}
