package router_test

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router"
)

// endless is an engine whose answers never end.
func endless(t *testing.T) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"object":"list","data":[{"id":"sim","object":"model"}]}`)
	})
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		event := `data: {"choices":[{"delta":{"content":"` + strings.Repeat("x", 16<<10) + "\"}}]}\n\n"
		for err := error(nil); err == nil; {
			_, err = io.WriteString(w, event)
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

// TestOldClientIsNotTheNodesFault checks an answer that an HTTP/1.0 client cannot receive. The
// router asks for that answer once, and the node goes on getting requests.
func TestOldClientIsNotTheNodesFault(t *testing.T) {
	t.Parallel()
	s := serve(t, nil, func(c *router.Config) {
		for i := range 2 {
			c.Router.Backends = append(c.Router.Backends, fmt.Sprintf("%s,id=endless-%d", endless(t).URL, i))
		}
	})
	eventually(t, "both nodes are eligible", func() bool { return s.eligible() == 2 })
	request := strings.Replace(post("/v1/chat/completions", "", chatBody("hi", `,"stream":true`)), "HTTP/1.1",
		"HTTP/1.0", 1)
	for range 6 { // more requests than open a breaker
		c := s.dial()
		io.WriteString(c, request)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if resp.StatusCode != 400 || err != nil || !strings.Contains(string(body), `"http_version"`) ||
			resp.Header.Get("x-cgn-attempts") != "1" {
			t.Fatalf("%d after %s attempts: %.300s %v", resp.StatusCode, resp.Header.Get("x-cgn-attempts"), body, err)
		}
	}
	if n := s.eligible(); n != 2 {
		t.Errorf("%d nodes are eligible", n)
	}
	if n := s.metrics().sum("cgn_router_upstream_errors_total"); n != 0 {
		t.Errorf("%v upstream errors", n)
	}
}
