package router_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/fleet"
)

// scripted is a backend of model sim. f writes its answers.
func scripted(t *testing.T, f http.HandlerFunc) string {
	t.Helper()
	b := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			f(w, r)
		} else if r.URL.Path == "/v1/models" {
			io.WriteString(w, `{"object":"list","data":[{"id":"sim","object":"model"}]}`)
		}
	}))
	t.Cleanup(b.Close)
	return b.URL
}

// TestReloadWithAnotherKey checks that no request fails because of the reload, and that later
// requests carry the new key.
func TestReloadWithAnotherKey(t *testing.T) {
	t.Parallel()
	var last atomic.Value
	url := scripted(t, func(w http.ResponseWriter, r *http.Request) {
		last.Store(r.Header.Get("Authorization"))
		io.WriteString(w, `{"choices":[]}`)
	})
	key := filepath.Join(t.TempDir(), "key")
	rotate := func(to string) {
		t.Helper()
		if err := os.WriteFile(key, []byte(to), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rotate("sk-0")
	b := fleet.Backend{URL: url, APIKeyFile: key}
	s := serve(t, nil, func(c *router.Config) { c.Router.Backends = []string{url + ",api_key_file=" + key} })
	eventually(t, "the backend is eligible", func() bool { return s.eligible() == 1 })

	for i := 1; i <= 5; i++ {
		done := make(chan []*reply)
		go func() {
			var all []*reply
			for k := range 20 {
				all = append(all, s.chat(chatBody(fmt.Sprint("meanwhile ", k), "")))
			}
			done <- all
		}()
		want := fmt.Sprint("sk-", i)
		rotate(want)
		if err := s.Reload(t.Context(), []fleet.Backend{b}); err != nil {
			t.Fatal(err)
		}
		mustAll(t, "while the key changes", <-done)
		mustAll(t, "afterwards", []*reply{s.chat(chatBody("hello", ""))})
		if got := last.Load(); got != "Bearer "+want {
			t.Errorf("after the change to %s: %v", want, got)
		}
	}
}

// TestUnknownModelsBeforeAllBackendsHaveSpoken checks that the answer is 404 only once every
// backend has named its models.
func TestUnknownModelsBeforeAllBackendsHaveSpoken(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 1)
	late := simulate(t, 1)[0]
	late.Refuse()
	s := serve(t, nil, func(c *router.Config) { c.Router.Backends = []string{engines[0].URL(), late.URL()} })
	eventually(t, "one serves", func() bool { return s.eligible() == 1 })
	ask := func() *reply { return s.chat(`{"model":"other","messages":[]}`) }
	if r := ask(); r.status != 503 || r.code() != "model_not_known_yet" || r.header.Get("Retry-After") == "" {
		t.Errorf("while one was never reached: %v", r)
	}
	if err := late.Accept(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both serve", func() bool { return s.eligible() == 2 })
	if r := ask(); r.status != 404 || r.code() != "model_not_found" {
		t.Errorf("when both have spoken: %v", r)
	}
	engines[0].Refuse()
	late.Refuse()
	eventually(t, "none serves", func() bool { return s.eligible() == 0 })
	if r := s.chat(chatBody("hello", "")); r.status != 503 {
		t.Errorf("a model without a node: %v", r)
	}
}
