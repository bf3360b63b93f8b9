package engine

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/internal/enginemetrics"
)

// server is an engine whose answers the test can change.
type server struct {
	health   atomic.Int64 // status of /health
	metrics  atomic.Value // body of /metrics; "" means 404
	models   atomic.Value // body of /v1/models
	delay    atomic.Int64 // delay of /health, in nanoseconds
	requests atomic.Int64
	key      atomic.Value // last Authorization header
}

func newServer() *server {
	s := &server{}
	s.health.Store(200)
	s.metrics.Store("")
	s.models.Store(`{"data":[{"id":"m"}]}`)
	return s
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	s.key.Store(r.Header.Get("Authorization"))
	switch r.URL.Path {
	case "/health":
		select {
		case <-time.After(time.Duration(s.delay.Load())):
		case <-r.Context().Done():
		}
		w.WriteHeader(int(s.health.Load()))
	case "/metrics":
		page := s.metrics.Load().(string)
		if page == "" {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprint(w, page)
	case "/v1/models":
		fmt.Fprint(w, s.models.Load())
	case "/props":
		fmt.Fprint(w, `{"total_slots":7}`)
	case "/version":
		fmt.Fprint(w, `{"version":"0.11.0"}`)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func attach(t *testing.T, s http.Handler, kind string) *Engine {
	t.Helper()
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	c := fakeConfig("")
	c.Kind, c.URL, c.Binary, c.Args, c.Env = kind, srv.URL, "", nil, nil
	e, _, _ := start(t, c)
	return e
}

// TestRequestsPastTheAgent: State.Beyond counts the engine's requests that did not come through the
// agent.
func TestRequestsPastTheAgent(t *testing.T) {
	s := newServer()
	s.metrics.Store("vllm:num_requests_running 3\nvllm:num_requests_waiting 2\n")
	srv := httptest.NewServer(s)
	t.Cleanup(srv.Close)
	c := fakeConfig("")
	c.Kind, c.URL, c.Binary, c.Args, c.Env = VLLM, srv.URL, "", nil, nil
	var held int
	e, err := New(c, Options{Held: func() int { return held }})
	if err != nil {
		t.Fatal(err)
	}
	defer e.prober.close()
	for _, h := range []struct {
		held int
		want float64
	}{{0, 5}, {4, 1}, {7, 0}} {
		held = h.held
		if st := e.look(t.Context()); st.Beyond != h.want {
			t.Errorf("%d held: %v beyond, want %v", h.held, st.Beyond, h.want)
		}
	}
	s.metrics.Store("vllm:num_requests_running 3\n")
	if held = 1; e.look(t.Context()).Beyond != 2 {
		t.Error("of an engine that does not tell who waits")
	}
}

func TestAttachedEngine(t *testing.T) {
	s := newServer()
	s.metrics.Store("process_start_time_seconds 1795244543.62\nvllm:num_requests_running " +
		"3\nvllm:num_requests_waiting 2\n")
	e := attach(t, s, VLLM)
	eventually(t, "ready", func() bool { return e.State().Ready })
	st := e.State()
	if st.Epoch != 1795244543620 || st.Version != "0.11.0" || st.Stats.Running != 3 || st.Stats.Waiting != 2 {
		t.Errorf("state %+v", st)
	}
	s.metrics.Store("process_start_time_seconds 1795244600\n")
	eventually(t, "the new life is seen", func() bool { return e.State().Epoch == 1795244600000 })
	if !e.State().Ready || e.State().Stats.Known(enginemetrics.Running) {
		t.Errorf("state %+v", e.State())
	}
}

// TestAdapters: the agent knows which models are adapters, which of them are loaded, and tells of a
// change at once. A restarted engine has loaded none that is known.
func TestAdapters(t *testing.T) {
	page, err := os.ReadFile("../../internal/enginemetrics/testdata/vllm-lora.txt")
	if err != nil {
		t.Fatal(err)
	}
	s := newServer()
	s.metrics.Store("process_start_time_seconds 1\n")
	s.models.Store(`{"data":[{"id":"tiny","parent":null},{"id":"sql","parent":"tiny"},{"id":"chat","parent":"tiny"}]}`)
	e := attach(t, s, VLLM)
	states := func() (text string) {
		for _, a := range e.State().Adapters {
			text += fmt.Sprintf("%s/%s %v %v;", a.Name, a.Base, a.Loaded, a.Known)
		}
		return text
	}
	is := func(want string) {
		t.Helper()
		eventually(t, want, func() bool { return states() == want })
	}
	is("chat/tiny false false;sql/tiny false false;")
	if got := e.State().Bases(); len(got) != 1 || got[0] != "tiny" {
		t.Errorf("base models %q", got)
	}
	for changed := true; changed; {
		select {
		case <-e.Changed():
		default:
			changed = false
		}
	}
	s.metrics.Store("process_start_time_seconds 1\n" + string(page))
	is("chat/tiny true true;sql/tiny false true;")
	if e.State().AdapterSlots != 1 {
		t.Errorf("%d slots", e.State().AdapterSlots)
	}
	<-e.Changed()
	e.UsedAdapter([]byte("sql"))
	is("chat/tiny false true;sql/tiny true true;")
	<-e.Changed()
	s.metrics.Store("process_start_time_seconds 2\n")
	is("chat/tiny false false;sql/tiny false false;")
}

// TestRanksOfAnEngine: the number of the ranks outlives their figures.
func TestRanksOfAnEngine(t *testing.T) {
	s := newServer()
	s.metrics.Store("vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"1\"} 4\n" +
		"vllm:num_requests_waiting{engine=\"1\"} 2\n")
	e := attach(t, s, VLLM)
	eventually(t, "ready", func() bool { return e.State().Ready })
	if st := e.State(); st.Ranks != 2 || len(st.ByRank) != 2 || st.ByRank[1].Running != 4 || st.Stats.Running != 5 {
		t.Errorf("state %+v", st)
	}
	s.health.Store(503)
	eventually(t, "not ready", func() bool { return !e.State().Ready })
	if st := e.State(); st.Ranks != 2 || st.ByRank != nil {
		t.Errorf("state %+v", st)
	}
	s.health.Store(200)
	eventually(t, "ready", func() bool { return e.State().Ready })
	<-e.Changed() // of what has changed so far
	s.metrics.Store("vllm:num_requests_running{engine=\"0\"} 1\n")
	eventually(t, "one rank", func() bool { return e.State().Ranks == 1 })
	<-e.Changed()
}

func TestLlamaCPP(t *testing.T) {
	golden, err := os.ReadFile(filepath.Join("testdata", "llama-metrics.http"))
	if err != nil {
		t.Fatal(err)
	}
	_, page, _ := bytes.Cut(golden, []byte("\n\n"))
	if len(page) == 0 {
		_, page, _ = bytes.Cut(golden, []byte("\r\n\r\n"))
	}
	s := newServer()
	s.health.Store(503)
	e := attach(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			w.Header().Set("Process-Start-Time-Unix", "1214732454")
			_, _ = w.Write(page)
			return
		}
		s.ServeHTTP(w, r)
	}), LlamaCPP)
	eventually(t, "loading is seen", func() bool { return strings.Contains(e.State().Reason, "503") })
	s.health.Store(200)
	eventually(t, "ready", func() bool { return e.State().Ready })
	st := e.State()
	if st.Slots != 7 || st.Epoch != 1214732454 || !st.Stats.Known(enginemetrics.Running|enginemetrics.Waiting) {
		t.Errorf("state %+v", st)
	}
}

func TestEngineWithoutHealthOrMetrics(t *testing.T) {
	s := newServer()
	var e *Engine
	for _, status := range []int64{401, 404, 405, 501} {
		s.health.Store(status)
		e = attach(t, s, OpenAICompat)
		eventually(t, "ready", func() bool { return e.State().Ready })
		if st := e.State(); st.Stats.Has != 0 || st.Epoch == 0 || st.Version != "" {
			t.Errorf("/health answers %d: state %+v", status, st)
		}
	}
	s.models.Store(`{"data":[]}`)
	s.health.Store(200)
	eventually(t, "changed", func() bool { <-e.Changed(); return true })
}

func TestEngineThatListsNothingIsNotReady(t *testing.T) {
	s := newServer()
	s.models.Store(`{"data":[]}`)
	e := attach(t, s, VLLM)
	eventually(t, "the reason", func() bool { return e.State().Reason == "engine lists no model" })
}

func TestUnhealthyCountsAtOnceButLatenessDoesNot(t *testing.T) {
	e := &Engine{config: fakeConfig(""), changed: make(chan struct{}, 1), log: testLog(t)}
	ready := &State{Ready: true, Models: []string{"m"}}
	for _, c := range []struct {
		err  error
		want []bool // readiness after the first, second, third look
	}{
		{errRefused, []bool{false}},
		{fmt.Errorf("%w: 503", errNotReady), []bool{false}},
		{context.DeadlineExceeded, []bool{true, true, false}},
		{os.NewSyscallError("socket", syscall.EMFILE), []bool{true, true, true, true}},
	} {
		e.life = life{}
		e.state.Store(ready)
		e.sup = nil
		for i, want := range c.want {
			e.publish(e.unhealthy(c.err))
			if got := e.State().Ready; got != want {
				t.Errorf("%v, look %d: ready %v", c.err, i+1, got)
			}
		}
	}
}

func TestAttachedEngineGoneAndBack(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	first := &http.Server{Handler: newServer()}
	go first.Serve(ln)
	c := fakeConfig("")
	c.URL, c.Binary, c.Args, c.Env = "http://"+addr, "", nil, nil
	e, _, _ := start(t, c)
	eventually(t, "ready", func() bool { return e.State().Ready })
	epoch := e.State().Epoch
	_ = first.Close()
	eventually(t, "not ready", func() bool { return !e.State().Ready })
	if ln, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	second := &http.Server{Handler: newServer()}
	defer second.Close()
	go second.Serve(ln)
	eventually(t, "ready again in another life", func() bool { return e.State().Ready && e.State().Epoch != epoch })
}

func TestWhyAnEngineIsNotReadyIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		e := &Engine{log: slog.New(slog.NewTextHandler(&out, nil))}
		e.state.Store(&State{Reason: "not looked at yet"})
		said := func(reason string, after time.Duration) string {
			time.Sleep(after)
			out.Reset()
			e.publish(&State{Reason: reason})
			return out.String()
		}
		if line := said("/v1/models answers 404", 0); !strings.Contains(line, "engine is not ready") ||
			!strings.Contains(line, "/v1/models answers 404") {
			t.Errorf("the first reason: %q", line)
		}
		if line := said("/v1/models answers 404", time.Hour); line != "" {
			t.Errorf("the same again: %q", line)
		}
		if line := said("refused", 0); !strings.Contains(line, "refused") {
			t.Errorf("another one: %q", line)
		}
		if line := said("/v1/models answers 404", time.Second); line != "" {
			t.Errorf("to and fro: %q", line)
		}
	})
}

func TestUnixSocketAndKey(t *testing.T) {
	dir := t.TempDir()
	ln, err := net.Listen("unix", filepath.Join(dir, "e.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := newServer()
	srv := &http.Server{Handler: s}
	defer srv.Close()
	go srv.Serve(ln)
	c := fakeConfig("")
	c.URL, c.Binary, c.Args, c.Env = "unix://"+filepath.Join(dir, "e.sock"), "", nil, nil
	c.APIKeyFile, c.Models = filepath.Join(dir, "key"), []string{"served-as"}
	if err := os.WriteFile(c.APIKeyFile, []byte("sk-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	e, _, _ := start(t, c)
	eventually(t, "ready", func() bool { return e.State().Ready })
	if e.Authorization() != "Bearer sk-1" || s.key.Load() != "Bearer sk-1" || e.State().Models[0] != "served-as" {
		t.Errorf("sent %q, models %v", s.key.Load(), e.State().Models)
	}
}

func TestLooksArePaced(t *testing.T) {
	for _, c := range []struct{ took, want time.Duration }{
		{time.Millisecond, time.Second},
		{200 * time.Millisecond, 1800 * time.Millisecond},
		{time.Minute, maxScrapePause},
	} {
		if got := pause(time.Second, c.took); got != c.want {
			t.Errorf("after %v: %v, want %v", c.took, got, c.want)
		}
	}
}

func TestOversizedAnswers(t *testing.T) {
	s := newServer()
	s.models.Store(`{"data":[{"id":"` + strings.Repeat("x", maxModelsList) + `"}]}`)
	e := attach(t, s, VLLM)
	eventually(t, "looked at", func() bool { return e.State().Reason == "engine lists no model" })
}

func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), nil))
}
