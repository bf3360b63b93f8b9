package router_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/perf/engine"
	"github.com/cognitora/dataplane/perf/netpath"
	"github.com/cognitora/dataplane/router"
)

// island is a router in a namespace of its own with engines beside it, near-0 and so on, and one engine, far, at the end of a path.
type island struct {
	*site
	path *netpath.Path
	far  *engine.Engine
	near []*engine.Engine
}

// maroon starts all that. watch is router.watch_nodes.
func maroon(t *testing.T, near int, watch bool) *island {
	t.Helper()
	path, err := netpath.New(netpath.Options{Seed: 1})
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		t.Skipf("needs root and /dev/net/tun, for a path between network namespaces that can be cut: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(path.Close)
	i := &island{path: path}
	dir := t.TempDir()
	args := []string{dir, strconv.FormatBool(watch)}
	beside := func(side *netpath.Side, id string) *engine.Engine {
		var e *engine.Engine
		side.Do(func() {
			e, err = engine.New(engine.Config{ID: id, Addr: side.Addr.String() + ":0", DecodeStep: 2 * time.Millisecond})
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		args = append(args, e.URL()+",id="+id+",max_concurrent=1000")
		return e
	}
	i.far = beside(path.B, "far")
	for n := range near {
		i.near = append(i.near, beside(path.A, fmt.Sprint("near-", n)))
	}
	log := &logged{t: t}
	program(t, "router", path.A.Start, log, args...)
	i.site = unixSite(t, dir, log)
	eventually(t, "the router serves", func() bool { return strings.Contains(log.text(), "router serves") })
	eventually(t, "every node is eligible", func() bool { return i.eligible() == near+1 })
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(log.text())
		}
	})
	return i
}

// unixSite is a client of a router whose ports are sockets in dir.
func unixSite(t *testing.T, dir string, log *logged) *site {
	dial := func(ctx context.Context, _, addr string) (net.Conn, error) {
		name, _, _ := strings.Cut(addr, ":")
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(dir, name))
	}
	s := &site{t: t, log: log, url: "http://api", admin: "http://admin"}
	s.client = &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 256}, Timeout: time.Minute}
	t.Cleanup(s.client.CloseIdleConnections)
	return s
}

// outcome is one answer to the load.
type outcome struct {
	*reply
	began time.Time
}

// load is clients that ask one request after the other.
type load struct {
	mu   sync.Mutex
	all  []outcome
	stop atomic.Bool
	wg   sync.WaitGroup
}

func (s *site) load(clients int, more string) *load {
	l := &load{}
	for n := range clients {
		l.wg.Go(func() {
			for i := 0; !l.stop.Load(); i++ {
				began := time.Now()
				r := s.chat(chatBody(fmt.Sprint("client ", n, " request ", i), more))
				l.mu.Lock()
				l.all = append(l.all, outcome{r, began})
				l.mu.Unlock()
			}
		})
	}
	s.t.Cleanup(func() { l.end() })
	return l
}

func (l *load) end() []outcome {
	l.stop.Store(true)
	l.wg.Wait()
	return l.all
}

func (l *load) count(ok func(a outcome) bool) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.all {
		if ok(a) {
			n++
		}
	}
	return n
}

// lastPick is when, since at, the last request began that was sent to another node first, of the first that were answered in one attempt alone.
func lastPick(all []outcome, at time.Time) time.Duration {
	last := time.Duration(0)
	for _, a := range all {
		if a.attempts() != "1" && a.began.After(at) {
			last = max(last, a.began.Sub(at))
		}
	}
	return last
}

func (i *island) is(what string, ok func(n node) bool) {
	i.t.Helper()
	eventually(i.t, what, func() bool { return ok(i.nodes()["far"]) })
}

// order says whether the log has all of words, one after the other.
func order(log string, words ...string) bool {
	for _, w := range words {
		at := strings.Index(log, w)
		if at < 0 {
			return false
		}
		log = log[at+len(w):]
	}
	return true
}

// TestBlackhole: a node to which packets vanish becomes suspect at the first retransmission timeout and is out at the second. Requests of which nothing
// has come are answered elsewhere, a stream under way ends with an error event. Once the path is back, so is the node.
func TestBlackhole(t *testing.T) {
	t.Parallel()
	i := maroon(t, 2, true)
	mustAll(t, "before", sixteen(i.site, "before", streaming))
	stream, err := i.send(t.Context(), "POST", "/v1/chat/completions", chatBody("long", `,"stream":true,"max_tokens":1000000`), "x-cgn-node", "far")
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	ended := make(chan string, 1)
	go func() {
		var tail string
		for lines := bufio.NewScanner(stream.Body); lines.Scan(); {
			if lines.Text() != "" {
				tail = lines.Text()
			}
		}
		ended <- tail
	}()
	l := i.load(8, plain)
	eventually(t, "the far node gets its share", func() bool { return l.count(func(a outcome) bool { return a.node() == "far" }) >= 8 })

	waited := waits(t)
	i.path.Set(netpath.Conditions{Loss: 1})
	i.is("it is out", func(n node) bool {
		return n.State == "open" && n.Reason == "breaker open: it acknowledges no packets"
	})
	busy := waited()
	select {
	case tail := <-ended:
		if !strings.Contains(tail, `"error"`) {
			t.Errorf("the stream under way ended with %q", tail)
		}
	case <-time.After(time.Minute):
		t.Error("the stream under way did not end")
	}
	// A router that gets no CPU in the 0.2 s and more between the two timeouts learns of both at once.
	page, log := i.metrics(), i.log.text()
	times := page.sum("cgn_router_node_suspected_total", `node="far"`)
	if !order(log, `"node takes no requests" node=far state=open why="no packet is acknowledged"`) || times > 0 && !order(log, `"node is suspect" node=far`, `"node takes no requests" node=far`) {
		t.Error("it was not suspect first, out then")
	}
	if times == 0 && busy < 50*time.Millisecond {
		t.Errorf("it was out, and never suspect; threads of this host wait for a CPU for %v at most", busy)
	}
	if n := page.sum("cgn_router_node_suspected_total"); n != times {
		t.Errorf("nodes were suspect %v times, the far one %v times", n, times)
	}

	i.path.Set(netpath.Conditions{})
	i.is("it is well again", func(n node) bool { return n.State == "healthy" && !n.Suspect })
	before := l.count(func(a outcome) bool { return a.node() == "far" })
	eventually(t, "it gets its share again", func() bool { return l.count(func(a outcome) bool { return a.node() == "far" }) > before })
	all := l.end()
	retried := 0
	for _, a := range all {
		if a.status != 200 || a.err != nil {
			t.Errorf("%v", a.reply)
		}
		if a.attempts() != "1" {
			retried++
		}
	}
	if retried == 0 {
		t.Error("no request was asked of another node")
	}
	t.Logf("%d answers, %d of them after another node was asked", len(all), retried)
}

// TestIdleWaitOnABlackhole: a request that waits for a long prefill, all of whose packets have been acknowledged, hears of it by a probe.
func TestIdleWaitOnABlackhole(t *testing.T) {
	t.Parallel()
	i := maroon(t, 2, true)
	i.far.SetFault(&engine.Fault{Hang: true})
	result := make(chan *reply, 1)
	go func() { result <- i.chat(chatBody("hello", plain), "x-cgn-node", "far") }()
	eventually(t, "the far node has the request", func() bool { return i.far.Stats().Faults > 0 })
	waited, cut := waits(t), time.Now()
	i.path.Set(netpath.Conditions{Loss: 1})
	select {
	case r := <-result: // its node is pinned, so no other one can be asked
		took, busy := time.Since(cut), waited()
		t.Logf("the wait ended after %v; threads waited for a CPU for %v at most", took, busy)
		if took > 3*time.Second && busy < 300*time.Millisecond { // the second probe goes after 2 s
			t.Error("that is more than 3 s")
		}
		if r.status != 503 || i.metrics().sum("cgn_router_upstream_errors_total", `node="far"`, `kind="silent"`) != 1 {
			t.Errorf("%v\n%s", r, i.log.text())
		}
	case <-time.After(time.Minute):
		t.Error("it waits on")
	}
}

// TestShortOutage: an outage that ends before the second timeout clears the suspicion and costs nothing; the only node of a fleet is asked all the same.
func TestShortOutage(t *testing.T) {
	t.Parallel()
	i := maroon(t, 0, true)
	mustAll(t, "before", []*reply{i.chat(chatBody("hello", plain))})
	i.far.SetFault(&engine.Fault{Slow: engine.Duration(300 * time.Millisecond)})
	for n := 0; ; n++ {
		if n == 20 {
			t.Fatal("the outage was never both long and short enough")
		}
		i.path.Set(netpath.Conditions{Loss: 1})
		result := make(chan *reply, 1)
		go func() { result <- i.chat(chatBody("hello", plain)) }()
		suspects := func() float64 { return i.metrics().sum("cgn_router_node_suspected_total") }
		was := suspects()
		eventually(t, "suspect or out", func() bool { return suspects() > was || i.nodes()["far"].State != "healthy" })
		i.path.Set(netpath.Conditions{})
		r := <-result
		eventually(t, "well again", func() bool { n := i.nodes()["far"]; return n.State == "healthy" && !n.Suspect })
		if r.status == 200 && strings.Contains(i.log.text(), "node is not suspect any more") {
			break
		}
	}
}

// TestKilledNode: of a node whose process is killed the kernel tells at once: the last request that tries it begins within twice the target of 10 ms, in one of five attempts at least, where
// nobody has to wait for a CPU. Nothing that had no byte yet fails.
func TestKilledNode(t *testing.T) {
	t.Parallel()
	const bound = 20 * time.Millisecond
	undisturbed := 0
	for range 5 {
		took, busy := killed(t)
		t.Logf("the last request to it: after %v; threads waited for a CPU for %v at most", took, busy)
		if took <= bound {
			return
		}
		if busy < bound/10 {
			undisturbed++
		}
	}
	if undisturbed > 0 {
		t.Errorf("that is always more than %v", bound)
	}
}

// killed kills a node under load and returns when, after that, the last request began that tried it, and for how long threads had to wait for a CPU until the node was out.
func killed(t *testing.T) (took, busy time.Duration) {
	t.Helper()
	cmd, out := program(t, "engine", (*exec.Cmd).Start, &logged{t: t})
	url, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	engines := simulate(t, 2)
	s := serve(t, nil, inTurn, func(c *router.Config) {
		c.Router.Backends = []string{engines[0].URL(), engines[1].URL(), strings.TrimSpace(url) + ",id=killed"}
	})
	eventually(t, "every node is eligible", func() bool { return s.eligible() == 3 })
	l := s.load(8, plain)
	eventually(t, "it gets its share", func() bool { return l.count(func(a outcome) bool { return a.node() == "killed" }) >= 8 })
	waited, at := waits(t), time.Now()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	within(t, soon, "it is out", func() bool { return !s.nodes()["killed"].Eligible })
	busy = waited()
	answered := l.count(func(outcome) bool { return true })
	eventually(t, "more is answered", func() bool { return l.count(func(outcome) bool { return true }) > answered+50 })
	all := l.end()
	if n := slices.IndexFunc(all, func(a outcome) bool { return a.status != 200 || a.err != nil }); n >= 0 {
		t.Errorf("%v", all[n].reply)
	}
	return lastPick(all, at), busy
}
