package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/sim/engine"
)

// site is one address, served by one router after another.
type site struct {
	t      *testing.T
	config string
	scheme string
	dial   func(ctx context.Context) (net.Conn, error)
	now    *process
}

// newSite starts the first router. listen is a Unix socket in its directory; "" is a TCP port.
func newSite(t *testing.T, listen, more string, backends ...*engine.Engine) *site {
	t.Helper()
	dir := t.TempDir()
	s := &site{t: t, config: filepath.Join(dir, "router.toml"), scheme: "http"}
	address := "127.0.0.1:0"
	if listen != "" {
		address = "unix://" + filepath.Join(dir, listen)
	}
	s.write(s.config, address, more, backends...)
	s.now = s.start()
	s.now.serves()
	network, at := "tcp", strings.TrimPrefix(s.now.url, "http://")
	if listen != "" {
		network, at = "unix", filepath.Join(dir, listen)
	}
	s.dial = func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, network, at) }
	eventually(t, "all nodes are eligible", func() bool { return s.now.eligible() == len(backends) })
	return s
}

// write writes a configuration with the site's sockets.
func (s *site) write(file, listen, more string, backends ...*engine.Engine) {
	s.t.Helper()
	doc := fmt.Sprintf("[router]\nlisten = %q\nadmin = \"127.0.0.1:0\"\ndrain_delay = \"20s\"\ndrain_timeout = "+
		"\"1h\"\n[takeover]\nsocket = %q\n%s\n",
		listen, s.socket(), more)
	for i, e := range backends {
		doc += fmt.Sprintf("[[backend]]\nurl = %q\nid = \"e%d\"\n", e.URL(), i)
	}
	if err := os.WriteFile(file, []byte(doc), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) socket() string { return filepath.Join(filepath.Dir(s.config), "takeover.sock") }

// start starts a router with --takeover.
func (s *site) start() *process {
	s.t.Helper()
	p := &process{t: s.t, config: s.config}
	p.launch("--takeover")
	return p
}

// upgrade replaces the router. upgrade waits until the old one has ended by itself.
func (s *site) upgrade() {
	s.t.Helper()
	s.upgradeBeside(func() {})
}

// upgradeBeside is upgrade that calls both while the old router and the new one run.
func (s *site) upgradeBeside(both func()) {
	s.t.Helper()
	old := s.now
	s.now = s.start()
	s.now.serves()
	both()
	old.mustExit("its clients have gone over")
	if !strings.Contains(s.now.logged(), `msg="taken over" from=`+strconv.Itoa(old.Process.Pid)) ||
		!strings.Contains(old.logged(), "another router has taken over") {
		s.t.Errorf("it has not taken over:\n%s\n%s", old.logged(), s.now.logged())
	}
	s.counted("taken", 1)
}

// counted checks the number of takeovers with the given outcome.
func (s *site) counted(outcome string, n int) {
	s.t.Helper()
	want := fmt.Sprintf("cgn_router_takeovers_total{outcome=%q} %d\n", outcome, n)
	if !strings.Contains(s.read("/metrics"), want) {
		s.t.Errorf("no %s in the metrics", want)
	}
}

// read returns a page of the router's admin port.
func (s *site) read(path string) string {
	s.t.Helper()
	resp, err := client.Get(s.now.admin + path)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(page)
}

// hold begins a stream whose engine sends no more after two tokens, and computes on for longer than
// any test waits, until the client leaves.
func (s *site) hold() (leave func()) {
	s.t.Helper()
	c := s.client(false)
	req, err := http.NewRequest(http.MethodPost, s.scheme+"://router/v1/chat/completions", strings.NewReader(
		`{"model":"sim","stream":true,"max_tokens":100000,"messages":[{"role":"user","content":"hello"}]}`))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("x-sim-fault", "stall_after=2")
	resp, err := c.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	leave = sync.OnceFunc(func() { resp.Body.Close() })
	s.t.Cleanup(leave)
	if first := make([]byte, 5); resp.StatusCode != 200 {
		s.t.Fatalf("status %d", resp.StatusCode)
	} else if _, err := io.ReadFull(resp.Body, first); err != nil {
		s.t.Fatal(err)
	}
	return leave
}

// others returns how many requests at the nodes the router counts as those of other routers.
func (s *site) others() (n int) {
	s.t.Helper()
	var view struct {
		Nodes []struct {
			Others int `json:"in_flight_of_others"`
		}
	}
	if err := json.Unmarshal([]byte(s.read("/debug/fleet")), &view); err != nil {
		s.t.Fatal(err)
	}
	for _, node := range view.Nodes {
		n += node.Others
	}
	return n
}

// charged are the metrics of the load books, with their values.
var charged = regexp.MustCompile(`(?m)^cgn_router_node_(?:prefill_tokens|active_blocks)\{.*\} (\S+)$`)

// idle waits until the books of all nodes are empty, and nothing at them is of other routers.
func (s *site) idle(nodes int) {
	s.t.Helper()
	eventually(s.t, "the books are empty", func() bool {
		books := charged.FindAllStringSubmatch(s.read("/metrics"), -1)
		return len(books) == 2*nodes && !slices.ContainsFunc(books, func(m []string) bool { return m[1] != "0" }) &&
			s.others() == 0
	})
}

func (s *site) client(keepAlive bool) *http.Client {
	return &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{
		DisableKeepAlives: !keepAlive, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return s.dial(ctx) },
	}}
}

// prompt has several blocks.
var prompt = strings.Repeat("hello ", 50)

// ask sends a request and checks that its answer is complete.
func (s *site) ask(c *http.Client, tokens int, stream bool) error {
	body := fmt.Sprintf(`{"model":"sim","stream":%v,"max_tokens":%d,"messages":[{"role":"user","content":%q}]}`,
		stream, tokens, prompt)
	resp, err := c.Post(s.scheme+"://router/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 || stream != bytes.HasSuffix(page, []byte("data: [DONE]\n\n")) ||
		bytes.Contains(page, []byte(`"error"`)) {
		return fmt.Errorf("%d, %v: ...%s", resp.StatusCode, err, page[max(0, len(page)-300):])
	}
	return nil
}

// healthy asks the site for its health.
func (s *site) healthy(c *http.Client, url string) error {
	resp, err := c.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if page, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 {
		return fmt.Errorf("%s: %d, %v: %s", url, resp.StatusCode, err, page)
	}
	return nil
}

// load is a group of clients of a site.
type load struct {
	site                       *site
	stop                       chan struct{}
	running                    sync.WaitGroup
	going                      sync.RWMutex // a client that waits for a node's answer reads
	requests, streams, answers atomic.Int64 // answers: good answers of /health
	failed                     atomic.Int64
}

// begin runs each clients of each kind: on kept connections, on new ones, and streams of so many
// tokens on both. A load balancer asks both ports for their health.
func (s *site) begin(each, tokens int) *load {
	l := &load{site: s, stop: make(chan struct{})}
	ready, health := s.now.admin+"/readyz", s.scheme+"://router/health"
	for _, keepAlive := range []bool{true, false} {
		l.client("/health", s.client(keepAlive), &l.answers, func(c *http.Client) error { return s.healthy(c, health) })
		admin := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: !keepAlive}}
		l.client("/readyz", admin, &l.answers, func(c *http.Client) error { return s.healthy(c, ready) })
		for range each {
			what := fmt.Sprintf("connection kept: %v", keepAlive)
			l.client(what, s.client(keepAlive), &l.requests, func(c *http.Client) error { return l.ask(c, 2, false) })
			l.client("stream, "+what, s.client(keepAlive), &l.streams, func(c *http.Client) error {
				return l.ask(c, tokens, true)
			})
		}
	}
	s.t.Cleanup(l.end)
	return l
}

// ask is site.ask, unless the load pauses.
func (l *load) ask(c *http.Client, tokens int, stream bool) error {
	l.going.RLock()
	defer l.going.RUnlock()
	return l.site.ask(c, tokens, stream)
}

// pause waits for the answers of all nodes. Until goOn is called the clients send no request to a
// node.
func (l *load) pause() (goOn func()) {
	l.going.Lock()
	return l.going.Unlock
}

// client asks again and again.
func (l *load) client(what string, c *http.Client, count *atomic.Int64, ask func(*http.Client) error) {
	l.running.Go(func() {
		defer c.CloseIdleConnections()
		for {
			select {
			case <-l.stop:
				return
			default:
			}
			if err := ask(c); err != nil {
				if l.failed.Add(1) < 10 {
					l.site.t.Errorf("%s: %v", what, err)
				}
				continue
			}
			count.Add(1)
		}
	})
}

func (l *load) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.running.Wait()
}

// more waits for n more requests and streams.
func (l *load) more(n int64) {
	l.site.t.Helper()
	requests, streams := l.requests.Load()+n, l.streams.Load()+n
	eventually(l.site.t, "requests and streams go on", func() bool {
		return l.requests.Load() >= requests && l.streams.Load() >= streams
	})
}

// TestTakeoverUnderLoad checks that clients do not notice two upgrades in a row. The old router's
// requests count at the new one as others', once the peaks of the new one's own requests are past.
// The new router's books are empty after the load. TAKEOVERS sets a larger number, with more
// clients.
func TestTakeoverUnderLoad(t *testing.T) {
	rounds, each, tokens, between := 2, 2, 50, int64(3)
	if n, err := strconv.Atoi(os.Getenv("TAKEOVERS")); err == nil {
		rounds, each, tokens, between = n, 12, 200, 30
	}
	certs := t.TempDir()
	if err := pki.Bootstrap(certs, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	own := pki.FilesIn(certs, pki.Router)
	for name, c := range map[string]struct{ listen, more, scheme string }{
		"tcp":  {"", "", "http"},
		"unix": {"serving.sock", "", "http"},
		"tls":  {"", fmt.Sprintf("[tls]\ncert = %q\nkey = %q\n", own.Cert, own.Key), "https"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, c.listen, c.more, simulate(t), simulate(t))
			s.scheme = c.scheme
			l := s.begin(each, tokens)
			for range rounds {
				l.more(between)
				leave := s.hold()
				s.upgradeBeside(func() {
					goOn := l.pause()
					defer goOn()
					eventually(t, "the old router's requests count as others'", func() bool { return s.others() > 0 })
					leave()
				})
			}
			l.more(between)
			l.end()
			s.idle(2)
			t.Logf("%d upgrades: %d requests, %d streams, %d answers that it is well, %d failed", rounds,
				l.requests.Load(), l.streams.Load(), l.answers.Load(), l.failed.Load())
			s.now.signal(syscall.SIGTERM)
			eventually(t, "it drains", func() bool { return strings.Contains(s.now.logged(), "stopping:") })
			s.now.signal(syscall.SIGTERM)
			s.now.mustExit("forced")
			if left, err := filepath.Glob(filepath.Join(filepath.Dir(s.config), "*.sock")); err != nil ||
				len(left) > 0 {
				t.Errorf("left behind: %v %v", left, err)
			}
		})
	}
}

// unready is a router that asks for the sockets of the site's router and never becomes ready,
// because its node does not exist.
func (s *site) unready(timeout string) *process {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	dead := l.Addr().String()
	l.Close()
	doc, err := os.ReadFile(s.config)
	if err != nil {
		s.t.Fatal(err)
	}
	whole, _, _ := strings.Cut(string(doc), "[[backend]]")
	whole = strings.Replace(whole, "[takeover]\n", "[takeover]\ntimeout = \""+timeout+"\"\n", 1)
	p := &process{t: s.t, config: filepath.Join(s.t.TempDir(), "router.toml")}
	if err := os.WriteFile(p.config, []byte(whole+"[[backend]]\nurl = \"http://"+dead+"\"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	p.launch("--takeover")
	eventually(s.t, "it has the sockets", func() bool {
		return strings.Contains(s.now.logged(), fmt.Sprintf("this one serves until that is ready\" process=%d",
			p.Process.Pid))
	})
	return p
}

func (p *process) mustFail(want string) {
	p.t.Helper()
	select {
	case err := <-p.exited:
		if exit := new(exec.ExitError); !errors.As(err, &exit) || !strings.Contains(p.logged(), want) {
			p.t.Errorf("it ends with %v, want %q in\n%s", err, want, p.logged())
		}
	case <-time.After(patience):
		p.t.Errorf("it does not end with %q", want)
	}
}

// goesOn checks that the old router still serves and can still be replaced.
func (s *site) goesOn(abandoned int) {
	s.t.Helper()
	eventually(s.t, "it is told", func() bool {
		return strings.Count(s.now.logged(), "has ended before it was ready, this one goes on") == abandoned
	})
	s.counted("abandoned", abandoned)
	if err := s.ask(s.client(false), 2, false); err != nil {
		s.t.Error(err)
	}
}

// TestTakeoverThatFails checks that a router that does not become ready, or is killed by kill -9,
// changes nothing. The next takeover succeeds.
func TestTakeoverThatFails(t *testing.T) {
	s := newSite(t, "serving.sock", "", simulate(t))
	s.unready("100ms").mustFail("not ready within takeover.timeout (100ms): no node can take a request")
	s.goesOn(1)
	killed := s.unready("1h")
	s.start().mustFail(fmt.Sprintf("process %d is taking over already", killed.Process.Pid))
	killed.signal(syscall.SIGKILL)
	<-killed.exited
	s.goesOn(2)
	stopped := s.unready("1h")
	stopped.signal(syscall.SIGTERM)
	stopped.mustFail("")
	s.goesOn(3)
	s.upgrade()
	if err := s.ask(s.client(false), 2, true); err != nil {
		t.Error(err)
	}
}

// TestTakeoverWithoutAuth checks that the log says who may ask, and warns if the new router no
// longer asks clients who they are.
func TestTakeoverWithoutAuth(t *testing.T) {
	e := simulate(t)
	certs := t.TempDir()
	if err := pki.Bootstrap(certs, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	own := pki.FilesIn(certs, pki.Router)
	s := newSite(t, "serving.sock", fmt.Sprintf("[tls]\ncert = %q\nkey = %q\nclient_ca = %q\n", own.Cert, own.Key,
		own.CA), e)
	const warning = "the router before asked clients who they are, and this one does not"
	s.upgrade()
	if log := s.now.logged(); !strings.Contains(log, "auth=certificates") || strings.Contains(log, warning) {
		t.Error(log)
	}
	s.write(s.config, "unix://"+filepath.Join(filepath.Dir(s.config), "serving.sock"), "", e)
	s.upgrade()
	if log := s.now.logged(); !strings.Contains(log, "auth=none") || !strings.Contains(log, warning) {
		t.Error(log)
	}
}

// TestTakeoverOutlivesTheOldOne checks that the new router serves at once, ready or not, if the old
// one is killed during the takeover.
func TestTakeoverOutlivesTheOldOne(t *testing.T) {
	s := newSite(t, "serving.sock", "", simulate(t))
	next := s.unready("1h")
	s.now.signal(syscall.SIGKILL)
	<-s.now.exited
	next.serves()
	s.now = next
	if err := s.ask(s.client(false), 2, false); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("without nodes: %v", err)
	}
	s.upgrade()
	if err := s.ask(s.client(false), 2, false); err != nil {
		t.Error(err)
	}
}

// TestUpgradeSignal checks that SIGUSR2 makes a router start its successor, and that the service
// manager is told of it.
func TestUpgradeSignal(t *testing.T) {
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "notify"),
		Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	manager.SetReadDeadline(time.Now().Add(2 * patience))
	told := func() string {
		b := make([]byte, 128)
		n, err := manager.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	t.Setenv("NOTIFY_SOCKET", manager.LocalAddr().String())
	s := newSite(t, "", "", simulate(t))
	if state := told(); state != "READY=1" {
		t.Errorf("told %q", state)
	}
	s.now.signal(syscall.SIGUSR2)
	states := []string{told(), told()}
	var pid int
	for _, state := range states {
		if text, ok := strings.CutPrefix(state, "MAINPID="); ok {
			pid, _ = strconv.Atoi(text)
		}
	}
	if pid == 0 {
		t.Fatalf("told %q", states)
	}
	defer func() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}()
	s.now.mustExit("replaced")
	if err := s.ask(s.client(false), 2, true); err != nil {
		t.Error(err)
	}
}

// TestTakeoverHasABound checks that a request that does not end in time gets an error, as at any
// stop.
func TestTakeoverHasABound(t *testing.T) {
	t.Setenv("CGN_ROUTER_DRAIN_DELAY", "1ms")
	t.Setenv("CGN_ROUTER_DRAIN_TIMEOUT", "300ms")
	s := newSite(t, "", "", simulate(t))
	_, rest := s.now.stream(8, "stall_after=2")
	s.upgrade()
	page, err := io.ReadAll(rest)
	if err != nil || !strings.Contains(string(page), "shutting_down") {
		t.Errorf("%v: %s", err, page)
	}
}
