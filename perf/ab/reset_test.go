package ab

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cognitora/dataplane/sim/engine"
)

// TestFlush checks what counts as an emptied cache.
func TestFlush(t *testing.T) {
	var tries atomic.Int32
	answers := map[string]http.HandlerFunc{
		"": func(w http.ResponseWriter, r *http.Request) {
			switch tries.Add(1) {
			case 1: // SGLang, while a request runs
				w.WriteHeader(http.StatusBadRequest)
			case 2: // vLLM, while a request runs
				io.WriteString(w, `{"success":false}`)
			default:
				if r.Method != http.MethodPost || r.URL.Path != "/flush_cache" ||
					r.Header.Get("Authorization") != "Bearer key" {
					t.Errorf("%s %s %v", r.Method, r.URL, r.Header)
				}
				io.WriteString(w, "Cache flushed.")
			}
		},
		"answers 404 to POST /flush_cache: is this SGLang?; or reset by text": http.NotFound,
		"EOF": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	}
	for want, f := range answers {
		s := httptest.NewServer(f)
		err := engineResets[BySGLang].flush(t.Context(), s.URL, "key")
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("want %q: %v", want, err)
		}
		s.Close()
	}
	if tries.Load() != 3 {
		t.Errorf("%d tries", tries.Load())
	}
	err := engineResets[ByVLLM].flush(t.Context(), "unix:///x", "")
	if err == nil || !strings.Contains(err.Error(), "is no HTTP address; or reset by text") {
		t.Error(err)
	}
}

// TestResetThatDoesNothing checks that a comparison ends if an engine answers 200 and keeps its
// blocks.
func TestResetThatDoesNothing(t *testing.T) {
	all, _ := engines(t, 1, func(c *engine.Config) { c.Speed = 1000 })
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/reset_prefix_cache" {
			all[0].ServeHTTP(w, r)
		}
	}))
	defer s.Close()
	c, log := comparison(t, []string{s.URL + ",id=lazy"}, [2]string{"score", "cost"}, 3)
	c.Reset = ByVLLM
	r, err := Run(t.Context(), c)
	if err == nil || r != nil || !strings.Contains(err.Error(),
		"round 1 of 1, cost: emptying the cache of lazy: it still has blocks from before") {
		t.Errorf("%v\n%s", err, log)
	}
}
