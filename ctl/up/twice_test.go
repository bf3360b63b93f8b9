package up

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/sim/engine"
)

// heard is written text that a test can wait for.
type heard struct {
	mu   sync.Mutex
	text strings.Builder
	news chan struct{} // capacity 1: signalled when something was written
}

func (h *heard) Write(b []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case h.news <- struct{}{}:
	default:
	}
	return h.text.Write(b)
}

func (h *heard) String() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text.String()
}

func (h *heard) await(t *testing.T, what string) {
	t.Helper()
	for end := time.After(time.Minute); !strings.Contains(h.String(), what); {
		select {
		case <-h.news:
		case <-end:
			t.Fatalf("no %q in %s", what, h)
		}
	}
}

// TestUpStopsAtOnce: a second Ctrl-C ends `up` immediately, although a running request may take
// hours after the first.
func TestUpStopsAtOnce(t *testing.T) {
	defer func(was time.Duration) { drainRequests = was }(drainRequests)
	drainRequests = 24 * time.Hour
	e, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	out, in := io.Pipe()
	done, log := make(chan error, 1), &heard{news: make(chan struct{}, 1)}
	go func() {
		root := ctltest.Root(Command, in, log, os.Getenv)
		root.SetArgs([]string{"up", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--backend", e.URL(), "-o",
			"json"})
		err := root.ExecuteContext(context.Background())
		_ = in.CloseWithError(io.EOF)
		done <- err
	}()
	var s summary
	if err := json.NewDecoder(out).Decode(&s); err != nil {
		t.Fatalf("%v, %v\n%s", err, <-done, log)
	}
	req, err := http.NewRequest(http.MethodPost, "http://"+s.Routers[0].Listen+"/v1/chat/completions",
		strings.NewReader(`{"model":"sim","messages":[{"role":"user","content":"Hello"}],"stream":true}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("x-sim-fault", "stall_after=2")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	interrupt := func() {
		t.Helper()
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Fatal(err)
		}
	}
	interrupt()
	log.await(t, "Ctrl-C again stops at once")
	select {
	case err := <-done:
		t.Fatalf("the first has ended it with a request running: %v", err)
	default:
	}
	interrupt()
	if page, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(page), "shutting_down") {
		t.Errorf("the running request: %v\n%s", err, page)
	}
	if err := <-done; err != nil {
		t.Errorf("up: %v\n%s", err, log)
	}
}
