package router_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
)

// begin starts a stream and returns once its first bytes have come.
func (s *site) begin(path, body string, header ...string) *http.Response {
	s.t.Helper()
	resp, err := s.send(context.Background(), http.MethodPost, path, body, header...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != 200 {
		s.t.Fatalf("status %d", resp.StatusCode)
	}
	return resp
}

// TestDrain checks a drain. Readiness ends at once. The router goes on accepting for drain_delay
// and answers with Connection: close. Running streams finish. On a slow machine the test tries a
// longer delay.
func TestDrain(t *testing.T) {
	t.Parallel()
	for delay := 2 * time.Second; !drains(t, delay); delay *= 2 {
		if delay > soon {
			t.Fatalf("nothing is accepted for as long as %v", delay)
		}
	}
}

// drains returns false if drain_delay was over before any of its requests was answered.
func drains(t *testing.T, delay time.Duration) bool {
	t.Helper()
	s := serve(t, simulate(t, 2), func(c *router.Config) {
		c.Router.DrainDelay, c.Router.DrainTimeout = config.Duration(delay), config.Duration(soon)
	})
	running := s.begin("/v1/chat/completions", chatBody("hello", `,"stream":true,"max_tokens":800`))
	if status, body := s.get(s.admin + "/readyz"); status != 200 {
		t.Fatalf("before: %d %s", status, body)
	}
	from := time.Now()
	s.drain()
	eventually(t, "readiness goes", func() bool {
		status, body := s.get(s.admin + "/readyz")
		return status == 503 && bytes.Contains(body, []byte("draining")) || time.Since(from) > delay
	})
	health, _ := s.get(s.url + "/health")
	over := time.Since(from) > delay
	if health != 503 && !over {
		t.Errorf("/health: %d", health)
	}
	for _, more := range []string{streaming, plain} {
		closes, err := s.sendLast(chatBody("while it drains", more))
		if over = over || time.Since(from) > delay; over {
			break
		}
		if err != nil || !closes {
			t.Errorf("while it drains: close %v, %v", closes, err)
		}
	}
	page, err := io.ReadAll(running.Body)
	if err != nil || !bytes.HasSuffix(page, []byte("data: [DONE]\n\n")) {
		t.Errorf("the running stream: %v, %s", err, page[max(0, len(page)-300):])
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if c, err := net.Dial("tcp", s.Addr().String()); err == nil {
		c.Close()
		t.Error("it still accepts")
	}
	if n := s.engines[0].Stats().Aborted + s.engines[1].Stats().Aborted; n != 0 {
		t.Errorf("%d requests were cut", n)
	}
	return !over
}

// sendLast reads an answer to its end. closes says that the answer announces the end of its
// connection.
func (s *site) sendLast(body string) (closes bool, err error) {
	resp, err := s.send(s.t.Context(), http.MethodPost, "/v1/chat/completions", body)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != 200 {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, page)
	}
	return resp.Close, err
}

// TestDrainHasABound checks an unfinished stream. The stream ends with an error of its API after
// drain_timeout, or at once at the second signal.
func TestDrainHasABound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		timeout time.Duration
		cut     func(*site)
	}{
		"timeout": {200 * time.Millisecond, func(*site) {}},
		"zero":    {0, func(*site) {}},
		"force":   {time.Hour, func(s *site) { s.force() }},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, simulate(t, 2), func(r *router.Config) {
				r.Router.DrainTimeout = config.Duration(c.timeout)
			})
			var streams []*http.Response
			var pages [][]byte
			for i, api := range apis {
				streams = append(streams, s.begin(api.path, api.body, "x-sim-fault", "stall_after=5"))
				pages = append(pages, readTokens(t, streams[i], api.token, 5))
			}
			waiting := make(chan *reply, 1)
			go func() { waiting <- s.chat(chatBody("never answered", plain), "x-sim-fault", "hang") }()
			eventually(t, "all are in flight", func() bool {
				return s.engines[0].Stats().InFlight+s.engines[1].Stats().InFlight == 5
			})
			s.drain()
			c.cut(s)
			for i, api := range apis {
				rest, err := io.ReadAll(streams[i].Body)
				page := append(pages[i], rest...)
				events := eventsOf(page)
				last := events[len(events)-1]
				if err != nil || !api.failed(last) || tokens(events, api.token) != 5 ||
					strings.Contains(string(page), "[DONE]") {
					t.Errorf("%s: %v, %d tokens, in the end %+v", api.name, err, tokens(events, api.token), last)
				}
			}
			if r := <-waiting; r.status != 503 || r.code() != "shutting_down" {
				t.Errorf("what had no answer yet: %v", r)
			}
			if err := s.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}
