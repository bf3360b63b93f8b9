package router_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/adminport/adminporttest"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/internal/race"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// atOnce returns the number of parallel tests, unless -parallel says otherwise. Most tests wait for
// engines, so that many fit on few cores. With the race detector they compute.
func atOnce() int {
	if race.Enabled {
		return 3
	}
	return 12
}

// TestMain runs the test binary as an agent if TEST_AGENT names its node. TestMain runs the test
// binary as a router or an engine if TEST_PROGRAM says so.
func TestMain(m *testing.M) {
	if what := os.Getenv("TEST_PROGRAM"); what != "" {
		programProcess(what, os.Args[1:])
	}
	if id := os.Getenv("TEST_AGENT"); id != "" {
		agentProcess(id, os.Args[1], os.Args[2])
	}
	if err := flag.Set("test.parallel", strconv.Itoa(atOnce())); err != nil { // the command line is read later
		panic(err)
	}
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"), // one per process
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// soon is how long a test waits for an event before it fails. No test compares a duration with
// soon.
const soon = time.Minute

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	within(t, soon, what, ok)
}

// within polls until ok returns true.
func within(t *testing.T, bound time.Duration, what string, ok func() bool) {
	t.Helper()
	began := time.Now()
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for ; !ok(); <-look.C {
		if time.Since(began) > bound {
			t.Fatalf("not within %v: %s", bound, what)
		}
	}
}

// simulate starts n engines that decode a token in 2 ms. The engines' names are sim-0, sim-1, ….
func simulate(t *testing.T, n int, tweak ...func(*engine.Config)) []*engine.Engine {
	t.Helper()
	var all []*engine.Engine
	for i := range n {
		c := engine.Config{ID: fmt.Sprint("sim-", i), DecodeStep: 2 * time.Millisecond, RecordRequests: 64}
		for _, f := range tweak {
			f(&c)
		}
		e, err := engine.New(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		all = append(all, e)
	}
	return all
}

// settings returns the defaults with a short drain and long patience, so that a busy machine does
// not look like a slow node.
func settings(t *testing.T, log *logged) router.Config {
	t.Helper()
	var c router.Config
	if err := config.Defaults(&c); err != nil {
		t.Fatal(err)
	}
	c.Router.Listen, c.Router.Admin = "127.0.0.1:0", "127.0.0.1:0"
	c.Router.DrainDelay, c.Router.DrainTimeout = 0, config.Duration(5*time.Second)
	c.Timeouts.PatienceFloor, c.Timeouts.StallFloor = config.Duration(soon), config.Duration(soon)
	c.Logger = slog.New(slog.NewTextHandler(log, nil))
	return c
}

// site is a router in this process with a client.
type site struct {
	*router.Router
	t            *testing.T
	engines      []*engine.Engine
	url, admin   string
	client       *http.Client
	log          *logged
	drain, force context.CancelFunc
	result       chan error
}

// serve runs a router in front of engines, if any, and waits until it would use each of them. At
// the end of the test nothing may be in flight.
func serve(t *testing.T, engines []*engine.Engine, tweak ...func(*router.Config)) *site {
	t.Helper()
	log := &logged{t: t}
	c := settings(t, log)
	for i, e := range engines {
		c.Router.Backends = append(c.Router.Backends, fmt.Sprintf("%s,id=sim-%d", e.URL(), i))
	}
	for _, f := range tweak {
		f(&c)
	}
	s := run(t, c, log)
	s.engines = engines
	if len(engines) > 0 {
		eventually(t, "every node is eligible", func() bool { return s.eligible() == len(engines) })
	}
	return s
}

// scored is a tweak for tests that need the picks of mode score.
func scored(c *router.Config) { c.Router.Mode = "score" }

func run(t *testing.T, c router.Config, log *logged) *site {
	t.Helper()
	key, certs := adminKey(t, &c), adminCertificates(t, &c)
	r, err := router.New(c)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{
		Router: r, t: t, log: log,
		url: "http://" + r.Addr().String(), admin: "http://" + r.AdminAddr().String(),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1024}, Timeout: soon},
		result: make(chan error, 1),
	}
	if certs != "" {
		s.client.Transport = adminporttest.Client(t, certs, pki.Ctl).Transport
		s.admin = "https" + strings.TrimPrefix(s.admin, "http")
	} else if key != "" {
		s.client.Transport = &admitted{s.client.Transport.(*http.Transport), r.AdminAddr().String(), key}
	}
	force, kill := context.WithCancel(context.Background())
	ctx, drain := context.WithCancel(force)
	s.drain, s.force = drain, kill
	go func() { s.result <- r.Run(ctx, force) }()
	t.Cleanup(s.end)
	return s
}

// end checks that every resource is freed, then stops the router.
func (s *site) end() {
	defer s.client.CloseIdleConnections()
	defer s.force()
	select {
	case err := <-s.result: // the test has stopped the router
		s.result <- err
	default:
		s.idle()
	}
	s.client.CloseIdleConnections()
	if err := s.stop(); err != nil {
		s.t.Error(err)
	}
}

// stop drains the router and returns Run's result.
func (s *site) stop() error {
	s.drain()
	select {
	case err := <-s.result:
		s.result <- err
		return err
	case <-time.After(soon):
		s.t.Error("the router did not stop")
		return nil
	}
}

var gauges = []string{
	"cgn_router_in_flight", "cgn_router_node_in_flight", "cgn_router_streams",
	"cgn_router_node_prefill_tokens", "cgn_router_node_active_blocks", "cgn_router_model_in_flight",
	"cgn_router_body_bytes", "cgn_router_resume_bytes", "cgn_router_resuming_streams", "cgn_router_queue_requests",
	"cgn_router_queue_bytes",
}

// idle waits until nothing is in flight anywhere.
func (s *site) idle() {
	s.t.Helper()
	var left string
	deadline := time.Now().Add(soon)
	look := time.NewTicker(2 * time.Millisecond)
	defer look.Stop()
	for ; ; <-look.C {
		page := s.metrics()
		left = ""
		for _, g := range gauges {
			if v := page.sum(g); v != 0 {
				left += fmt.Sprintf(" %s=%v", g, v)
			}
		}
		if left == "" {
			return
		}
		if time.Now().After(deadline) {
			s.t.Errorf("left in flight:%s", left)
			return
		}
	}
}

// reply is a complete answer. err is the error at the end of its body.
type reply struct {
	status int
	header http.Header
	body   []byte
	err    error
	took   time.Duration
}

func (r *reply) node() string     { return r.header.Get("x-cgn-node") }
func (r *reply) attempts() string { return r.header.Get("x-cgn-attempts") }
func (r *reply) events() []event  { return eventsOf(r.body) }

func (r *reply) String() string {
	return fmt.Sprintf("%d from %q after %s attempts in %v (%v): %.300s",
		r.status, r.node(), r.attempts(), r.took, r.err, r.body)
}

// send sends a request and does not wait for the body of the answer. header is name, value, ….
func (s *site) send(ctx context.Context, method, path, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return s.client.Do(req)
}

// ask sends a request and reads its answer to the end. Any goroutine may call ask.
func (s *site) ask(method, path, body string, header ...string) *reply {
	began := time.Now()
	resp, err := s.send(s.t.Context(), method, path, body, header...)
	if err != nil {
		return &reply{err: err, took: time.Since(began)}
	}
	r := read(resp)
	r.took = time.Since(began)
	return r
}

// read reads an answer to its end.
func read(resp *http.Response) *reply {
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	return &reply{status: resp.StatusCode, header: resp.Header, body: page, err: err}
}

func (s *site) post(path, body string, header ...string) *reply {
	return s.ask(http.MethodPost, path, body, header...)
}

func (s *site) chat(body string, header ...string) *reply {
	return s.post("/v1/chat/completions", body, header...)
}

// lastTo returns the engine's last request for path. lastTo skips the health checks in between.
func lastTo(t *testing.T, e *engine.Engine, path string) engine.Request {
	t.Helper()
	all := e.Requests()
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Path == path {
			return all[i]
		}
	}
	t.Fatalf("the engine got no request for %s", path)
	return engine.Request{}
}

// together calls f n times at once and returns the answers in order.
func together(n int, f func(i int) *reply) []*reply {
	all := make([]*reply, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { all[i] = f(i) })
	}
	wg.Wait()
	return all
}

// mustAll fails the test for each answer that is not a complete 200.
func mustAll(t *testing.T, what string, all []*reply) {
	t.Helper()
	for i, r := range all {
		if r.status != 200 || r.err != nil || bytes.Contains(r.body, []byte(`"error":{`)) {
			t.Errorf("%s, request %d: %v", what, i, r)
		}
	}
}

// chatBody is a chat request with one user message. more is a list of further members with their
// leading comma.
func chatBody(prompt, more string) string {
	return fmt.Sprintf(`{"model":"sim","messages":[{"role":"user","content":%q}]%s}`, prompt, more)
}

const streaming = `,"stream":true,"max_tokens":8`

// event is one server-sent event.
type event struct{ name, data string }

func eventsOf(page []byte) (all []event) {
	for block := range strings.SplitSeq(strings.ReplaceAll(string(page), "\r\n", "\n"), "\n\n") {
		var e event
		for line := range strings.Lines(block) {
			line = strings.TrimSuffix(line, "\n")
			if v, ok := strings.CutPrefix(line, "event:"); ok {
				e.name = strings.TrimSpace(v)
			} else if v, ok := strings.CutPrefix(line, "data:"); ok {
				e.data += strings.TrimSpace(v)
			}
		}
		if e != (event{}) {
			all = append(all, e)
		}
	}
	return all
}

func (s *site) get(url string) (int, []byte) {
	resp, err := s.client.Get(url)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, []byte(err.Error())
	}
	return resp.StatusCode, page
}

// logged is a searchable log.
type logged struct {
	t  *testing.T
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// last returns the last lines.
func (l *logged) last(lines int) string {
	all := strings.Split(strings.TrimSuffix(l.text(), "\n"), "\n")
	return strings.Join(all[max(len(all)-lines, 0):], "\n")
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
