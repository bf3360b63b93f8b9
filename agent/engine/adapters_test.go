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

// TestOneChangeAtATime: a second change waits for the first, which its client may have given up.
// The end of Run breaks off the first and refuses the second.
func TestOneChangeAtATime(t *testing.T) {
	s := &adapting{server: newServer()}
	begun, broken, goOn := make(chan struct{}, 2), make(chan struct{}, 2), make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, "lora_adapter") {
			s.server.ServeHTTP(w, r)
			return
		}
		io.Copy(io.Discard, r.Body)
		begun <- struct{}{}
		select {
		case <-goOn:
		case <-r.Context().Done():
			broken <- struct{}{}
		}
	}))
	t.Cleanup(srv.Close)
	c := fakeConfig("")
	c.Kind, c.URL, c.Binary, c.Args, c.Env = VLLM, srv.URL, "", nil, nil
	e, err := New(c, Options{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { e.Run(ctx, t.Context()); close(ended) }()
	answers := make(chan int, 3)
	change := func() { status, _, _ := e.ChangeAdapter(false, "sql", "/p"); answers <- status }

	go change()
	<-begun
	go change()
	select {
	case <-begun:
		t.Fatal("two changes run at once")
	case <-time.After(50 * time.Millisecond):
	}
	goOn <- struct{}{}
	if status := <-answers; status != 200 {
		t.Errorf("the first change: %d", status)
	}
	<-begun
	go change()
	stop()
	<-ended
	<-broken
	if one, other := <-answers, <-answers; one+other != 502+503 {
		t.Errorf("at the end of Run: %d and %d", one, other)
	}
	for range 20 { // the free turn and the end of Run are both ready
		if status, _, answer := e.ChangeAdapter(false, "sql", "/p"); status != 503 ||
			!strings.Contains(string(answer), "stopping") {
			t.Fatalf("after Run: %d %s", status, answer)
		}
	}
	if len(e.changes.turn) != 0 {
		t.Error("a refused change keeps its turn")
	}
}
