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

	"github.com/cognitora/dataplane/perf/netpath"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// island is a router in a namespace of its own. Engines near-0 and so on are beside the router, and
// one engine, far, is at the end of a network path.
type island struct {
	*site
	path *netpath.Path
	far  *engine.Engine
	near []*engine.Engine
}

// maroon starts an island. watch is router.watch_nodes.
func maroon(t *testing.T, near int, watch bool) *island {
	t.Helper()
	path, err := netpath.New(netpath.Options{Seed: 1})
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		t.Skipf("needs root and /dev/net/tun, for a path between network namespaces: %v", err)
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
			addr := side.Addr.String() + ":0"
			e, err = engine.New(engine.Config{ID: id, Listen: addr, DecodeStep: 2 * time.Millisecond})
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
	s.client = &http.Client{Transport: &http.Transport{DialContext: dial, MaxIdleConnsPerHost: 256},
		Timeout: time.Minute}
	t.Cleanup(s.client.CloseIdleConnections)
	return s
}

// outcome is one answer in a load.
type outcome struct {
	*reply
	began time.Time
}

// load is a group of clients that each send one request after the other.
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

// lastPick looks at requests whose first node gave no answer. lastPick returns when the last of
// these requests began, counted from at.
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

// order says whether the log contains all of words in this order.
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

// TestBlackhole checks a node whose packets vanish. The node becomes suspect at the first
// retransmission timeout and is out at the second. Requests without an answer so far are answered
// elsewhere, and a running stream ends with an error event. The node comes back with the path.
func TestBlackhole(t *testing.T) {
	t.Parallel()
	i := maroon(t, 2, true)
	mustAll(t, "before", sixteen(i.site, "before", streaming))
	long := chatBody("long", `,"stream":true,"max_tokens":1000000`)
	stream, err := i.send(t.Context(), "POST", "/v1/chat/completions", long, "x-cgn-node", "far")
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
	isFar := func(a outcome) bool { return a.node() == "far" }
	eventually(t, "the far node gets its share", func() bool { return l.count(isFar) >= 8 })

	i.cut()
	select {
	case tail := <-ended:
		if !strings.Contains(tail, `"error"`) {
			t.Errorf("the stream under way ended with %q", tail)
		}
	case <-time.After(time.Minute):
		t.Error("the stream under way did not end")
	}
	i.join()
	before := l.count(isFar)
	eventually(t, "it gets its share again", func() bool { return l.count(isFar) > before })
	for tries := 1; !i.suspectFirst(); tries++ {
		if tries == 50 {
			t.Fatal("it is always out without being suspect first")
		}
		i.cut()
		i.join()
	}
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

// cut drops all packets, and waits until the router takes the far node out of service for that.
func (i *island) cut() {
	i.t.Helper()
	i.path.Set(netpath.Conditions{Loss: 1})
	i.is("it is out", func(n node) bool {
		return n.State == "open" && n.Reason == "breaker open: it acknowledges no packets"
	})
}

// join ends a cut and waits until the far node is well.
func (i *island) join() {
	i.t.Helper()
	i.path.Set(netpath.Conditions{})
	i.is("it is well again", func(n node) bool { return n.State == "healthy" && !n.Suspect })
}

// suspectFirst says whether the far node was suspect before it was out. A router without CPU time
// between the two timeouts, 0.2 s and more, learns of both at once.
func (i *island) suspectFirst() bool {
	i.t.Helper()
	page, log := i.metrics(), i.log.text()
	if !order(log, `"node takes no requests" node=far state=open why="no packet is acknowledged"`) {
		i.t.Error("the log does not say why it is out")
	}
	times := page.sum("cgn_router_node_suspected_total", `node="far"`)
	if n := page.sum("cgn_router_node_suspected_total"); n != times {
		i.t.Errorf("nodes were suspect %v times, the far one %v times", n, times)
	}
	return times > 0 && order(log, `"node is suspect" node=far`, `"node takes no requests" node=far`)
}

// TestIdleWaitOnABlackhole checks a request that waits for a long prefill. All packets of that
// request were acknowledged. The request must end because a probe is not acknowledged, not at a
// limit on its wait.
func TestIdleWaitOnABlackhole(t *testing.T) {
	t.Parallel()
	i := maroon(t, 2, true)
	i.far.SetFault(&engine.Fault{Hang: true})
	result := make(chan *reply, 1)
	go func() { result <- i.chat(chatBody("hello", plain), "x-cgn-node", "far") }()
	eventually(t, "the far node has the request", func() bool { return i.far.Stats().Faults > 0 })
	i.path.Set(netpath.Conditions{Loss: 1})
	select {
	case r := <-result: // the request's node is pinned, so no other node can be asked
		if r.status != 503 || i.metrics().sum("cgn_router_upstream_errors_total", `node="far"`, `kind="silent"`) != 1 {
			t.Errorf("%v\n%s", r, i.log.text())
		}
	case <-time.After(time.Minute):
		t.Error("it waits on")
	}
}

// TestShortOutage checks that an outage shorter than the second timeout clears the suspicion and
// costs nothing. The only node of a fleet is asked even when suspect.
func TestShortOutage(t *testing.T) {
	t.Parallel()
	i := maroon(t, 0, true)
	mustAll(t, "before", []*reply{i.chat(chatBody("hello", plain))})
	i.far.SetFault(&engine.Fault{Slow: engine.Duration(300 * time.Millisecond)})
	for n := 0; ; n++ {
		if n == 50 {
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

// TestKilledNode kills a node's process, which the kernel reports. The breaker opens at the third
// failure in a row at the latest. The node then gets no request, and no request fails.
func TestKilledNode(t *testing.T) {
	t.Parallel()
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
	const clients = 8
	l := s.load(clients, plain)
	eventually(t, "it gets its share", func() bool {
		return l.count(func(a outcome) bool { return a.node() == "killed" }) >= 8
	})
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is out", func() bool { return !s.nodes()["killed"].Eligible })
	answered := l.count(func(outcome) bool { return true })
	eventually(t, "more is answered", func() bool { return l.count(func(outcome) bool { return true }) > answered+50 })
	all := l.end()
	if n := slices.IndexFunc(all, func(a outcome) bool { return a.status != 200 || a.err != nil }); n >= 0 {
		t.Errorf("%v", all[n].reply)
	}
	// When the breaker opens, each client has one request out. Each client may also have one answer
	// that came before the end and counts between two failures.
	failed := s.metrics().sum("cgn_router_upstream_errors_total", `node="killed"`)
	t.Logf("%v requests tried it in vain", failed)
	if most := 3.0 * clients; failed > most {
		t.Errorf("that is more than %v", most)
	}
}
