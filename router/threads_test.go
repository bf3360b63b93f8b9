package router_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/cognitora/dataplane/router"
)

// TestLlamaCPPKeepsNoIdleConnections checks that each request to a llama.cpp server without an
// agent asks it to close the connection. The server keeps a thread at each idle connection, and a
// new connection without a free thread waits until one is closed.
func TestLlamaCPPKeepsNoIdleConnections(t *testing.T) {
	t.Parallel()
	var closed, kept atomic.Int32
	llama := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			io.WriteString(w, `{"data":[{"id":"sim","owned_by":"llamacpp"}]}`)
		case "/props":
			io.WriteString(w, `{"total_slots":4}`)
		case "/health":
		case "/v1/chat/completions":
			if r.Close {
				closed.Add(1)
			} else {
				kept.Add(1)
			}
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"object":"chat.completion","choices":[]}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(llama.Close)
	s := serve(t, nil, func(c *router.Config) { c.Router.Backends = []string{llama.URL} })
	eventually(t, "the router uses the server", func() bool { return s.eligible() == 1 })
	for burst := range 3 {
		mustAll(t, fmt.Sprint("burst ", burst), together(8, func(i int) *reply {
			return s.chat(chatBody(fmt.Sprint(burst, i), ""))
		}))
	}
	if closed.Load() != 24 || kept.Load() != 0 {
		t.Errorf("%d requests asked for their connection's end, %d did not; want 24 and 0", closed.Load(), kept.Load())
	}
}
