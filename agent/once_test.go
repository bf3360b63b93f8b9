package agent

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
)

// TestLlamaCPPKeepsNoIdleConnections: the agent asks llama.cpp, and no other engine, to close its
// connection after each request. Each idle connection holds a thread of llama.cpp's server. A new
// connection that finds no free thread waits until one closes.
func TestLlamaCPPKeepsNoIdleConnections(t *testing.T) {
	for kind, once := range map[string]bool{"llama_cpp": true, "vllm": false} {
		t.Run(kind, func(t *testing.T) {
			var closed, kept atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch r.URL.Path {
				case "/v1/models":
					_, _ = io.WriteString(w, `{"data":[{"id":"tiny"}]}`)
				case "/props":
					_, _ = io.WriteString(w, `{"total_slots":4}`)
				case "/health":
				case "/v1/completions":
					if _, _ = io.Copy(io.Discard, r.Body); r.Close {
						closed.Add(1)
					} else {
						kept.Add(1)
					}
					_, _ = io.WriteString(w, `{"choices":[]}`)
				default:
					w.WriteHeader(http.StatusNotFound)
				}
			}))
			t.Cleanup(server.Close)
			c := testConfig(t, server.URL)
			c.Engine.Kind = kind
			a := startAgent(t, c)
			eventually(t, "ready", a.ready)
			const requests = 3
			for i := range requests {
				resp, err := client.Post(a.url()+"/v1/completions", "application/json",
					strings.NewReader(fmt.Sprintf(`{"prompt":"%d"}`, i)))
				if err != nil {
					t.Fatal(err)
				}
				if _ = resp.Body.Close(); resp.StatusCode != http.StatusOK {
					t.Fatalf("it is answered %s", resp.Status)
				}
			}
			want := [2]int32{requests, 0}
			if !once {
				want = [2]int32{0, requests}
			}
			if got := [2]int32{closed.Load(), kept.Load()}; got != want {
				t.Errorf("%d requests asked for their connection's end, and %d did not; want %v", got[0], got[1], want)
			}
		})
	}
}
