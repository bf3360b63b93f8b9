package engine

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
)

// adapting is an engine that answers requests about adapters.
type adapting struct {
	*server
	answer atomic.Value // func(w http.ResponseWriter)
	asked  atomic.Value // path and body of the last request
}

func (a *adapting) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.Contains(r.URL.Path, "lora_adapter") {
		a.server.ServeHTTP(w, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	a.asked.Store(fmt.Sprintf("%s %s %s", r.URL.Path, r.Header.Get("Content-Type"), body))
	a.answer.Load().(func(http.ResponseWriter))(w)
}

func says(status int, body string) func(w http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// TestAdaptersAreChanged: each kind of engine is asked at its own path, and its answer is returned.
// After a change the agent looks at the engine's models at once.
func TestAdaptersAreChanged(t *testing.T) {
	for _, c := range []struct {
		kind      string
		unload    bool
		answer    func(w http.ResponseWriter)
		asked     string
		status    int
		contained string
	}{
		{VLLM, false, says(200, "Success"), `/v1/load_lora_adapter application/json {"lora_name":"sql","lora_path":"/p"}`,
			200, "Success"},
		{VLLM, true, says(404, `{"error":{}}`), `/v1/unload_lora_adapter application/json {"lora_name":"sql"}`, 404,
			`{"error":{}}`},
		{VLLM, false, says(404, `{"detail":"Not Found"}`), `/v1/load_lora_adapter application/json ` +
			`{"lora_name":"sql","lora_path":"/p"}`, 501, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"},
		{SGLang, false, says(400, `{"success":false}`), `/load_lora_adapter application/json ` +
			`{"lora_name":"sql","lora_path":"/p"}`, 400, `{"success":false}`},
		{SGLang, true, says(200, `{"success":true}`), `/unload_lora_adapter application/json {"lora_name":"sql"}`, 200,
			`{"success":true}`},
		{LlamaCPP, false, nil, "", 501, "an engine of kind llama_cpp cannot load adapters"},
		{SGLang, true, func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
			`/unload_lora_adapter application/json {"lora_name":"sql"}`, 502, "the engine does not answer"},
	} {
		s := &adapting{server: newServer()}
		s.answer.Store(c.answer)
		s.asked.Store("")
		e := attach(t, s, c.kind)
		eventually(t, "ready", func() bool { return e.State().Ready })
		s.models.Store(`{"data":[{"id":"m"},{"id":"sql","parent":"m"}]}`)
		status, _, answer := e.ChangeAdapter(c.unload, "sql", "/p")
		asked := s.asked.Load()
		if status != c.status || !strings.Contains(string(answer), c.contained) || asked != c.asked {
			t.Errorf("%s, unload %v: asked %q, %d %s", c.kind, c.unload, asked, status, answer)
		}
		if status < 500 {
			eventually(t, "the new list of models", func() bool { return len(e.State().Adapters) == 1 })
		}
	}
}

// TestLoadingMayTakeLong: a change takes as long as the engine needs, not as long as a look may.
func TestLoadingMayTakeLong(t *testing.T) {
	s := &adapting{server: newServer()}
	s.answer.Store(func(w http.ResponseWriter) {
		time.Sleep(200 * time.Millisecond)
		io.WriteString(w, "Success")
	})
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	c := fakeConfig("")
	c.Kind, c.URL, c.Binary, c.Args, c.Env = VLLM, srv.URL, "", nil, nil
	c.ScrapeTimeout = config.Duration(20 * time.Millisecond)
	e, err := New(c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.prober.close()
	if status, _, answer := e.ChangeAdapter(false, "sql", "/p"); status != 200 {
		t.Errorf("%d %s", status, answer)
	}
}

// TestOneChangeAtATime: while a change runs, which its client may have given up, another one is
// refused at once with the name of the first. EndChanges breaks off the first and refuses later
// ones, and so does the end of Run.
func TestOneChangeAtATime(t *testing.T) {
	for _, by := range []string{"EndChanges", "Run"} {
		t.Run(by, func(t *testing.T) {
			begun, broken, goOn := make(chan struct{}, 8), make(chan struct{}, 8), make(chan struct{}, 8)
			s := newServer()
			e, stop := runAttached(t, func(w http.ResponseWriter, r *http.Request) {
				if !strings.Contains(r.URL.Path, "lora_adapter") {
					s.ServeHTTP(w, r)
					return
				}
				io.Copy(io.Discard, r.Body)
				begun <- struct{}{}
				select {
				case <-goOn:
				case <-r.Context().Done():
					broken <- struct{}{}
				}
			})
			type answer struct {
				status int
				body   string
			}
			change := func(unload bool, name string) answer {
				status, _, body := e.ChangeAdapter(unload, name, "/p")
				return answer{status, string(body)}
			}
			is := func(what string, a answer, status int, words string) {
				t.Helper()
				if a.status != status || !strings.Contains(a.body, words) {
					t.Errorf("%s: %d %s", what, a.status, a.body)
				}
			}
			answers, refusals := make(chan answer, 8), make(chan answer, 8)
			for _, unload := range []bool{false, true} {
				go func() { answers <- change(unload, "sql") }()
				<-begun
				words := map[bool]string{false: `the engine now loads the adapter \"sql\"`,
					true: `the engine now unloads the adapter \"sql\"`}[unload]
				go func() { refusals <- change(!unload, "chat") }()
				select {
				case refused := <-refusals:
					is("a second change", refused, 409, words)
					is("a second change", refused, 409, "try again once that has ended")
				case <-time.After(patience):
					t.Fatal("the second change waits for the first")
				}
				goOn <- struct{}{}
				is("the first change", <-answers, 200, "")
			}
			go func() { answers <- change(false, "sql") }()
			<-begun
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				if by == "Run" {
					stop()
				} else {
					e.EndChanges()
				}
			}()
			<-broken
			is("the change that was broken off", <-answers, 503,
				"the agent is stopping; the engine may still make the change")
			<-ended
			is("a change afterwards", change(false, "sql"), 503, "the agent is stopping")
		})
	}
}

// runAttached runs an engine whose answers h gives. stop ends Run and waits for its end.
func runAttached(t *testing.T, h http.HandlerFunc) (e *Engine, stop func()) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c := fakeConfig("")
	c.Kind, c.URL, c.Binary, c.Args, c.Env = VLLM, srv.URL, "", nil, nil
	e, err := New(c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { e.Run(ctx, ctx); close(ended) }()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	return e, stop
}
