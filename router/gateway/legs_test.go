package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/plan"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/where"
	"github.com/cognitora/dataplane/sim/engine"
)

// twice is a plan of two generating legs. The client gets the events of both legs in one stream.
type twice struct {
	first  string // last node of the first leg
	second bool   // the second leg is under way
	broken bool   // the second leg runs because the first leg broke
	enough int    // events of the first leg before the second one is asked; 0: all
	spoil  bool   // the second leg sends a request that no engine accepts
	hold   bool   // the first leg's events are withheld, and dropped when the second leg begins
	seen   int
	tries  [2]int // attempts until the end of each leg
	gate   *admission.Gate
	most   int // peak of permits during the second leg's events
}

func (p *twice) Answer(t *plan.Task) *apierror.Error { return t.Run(leg.Question{}, t.Client) }

func (p *twice) Follows() bool { return true }

func (p *twice) Event(t *plan.Task, e sse.Event, out []byte, at time.Time) (rest []byte, enough bool) {
	keep := t.Read(e, at)
	if p.seen++; p.second {
		p.most = max(p.most, int(p.gate.InFlight()))
	}
	if !keep || e.IsDone() && !p.second {
		return out, false
	}
	if p.hold && !p.second {
		return t.Withhold(e, out), false
	}
	return append(out, e.Raw...), !p.second && p.enough > 0 && p.seen == p.enough
}

func (p *twice) End(t *plan.Task, out []byte, o relay.Outcome) (rest []byte, more bool) {
	if p.second {
		p.tries[1] = t.Attempts()
		return out, false
	}
	p.tries[0] = t.Attempts()
	p.second, p.broken = true, o == relay.UpstreamFailed
	p.first = t.Account(o).Node
	return append(out, ": the second leg\n\n"...), true
}

func (p *twice) Next(t *plan.Task) *apierror.Error {
	q := leg.Question{Filter: func(n *fleet.Node) bool { return n.ID != p.first }}
	if p.spoil {
		q.Edit = func(e *scan.Edits) { e.Set("messages", []byte("7")) }
	}
	return t.Run(q, t.Client)
}

// lane is a gateway for real clients. lane serves streams on the relay's loops, or with TLS on
// goroutines.
type lane struct {
	*Gateway
	t       testing.TB
	fleet   *fleet.Fleet
	gate    *admission.Gate
	engines []*engine.Engine
	plans   chan *twice // in the order of their requests
	enough  int         // enough of later plans
	hold    bool        // hold of later plans
	spoil   bool        // spoil of later plans
	url     string
	client  *http.Client
}

// newLane starts a lane with n engines.
func newLane(t testing.TB, n int, secure bool) *lane {
	t.Helper()
	ln := &lane{t: t, plans: make(chan *twice, 64), gate: admission.New(admission.Options{})}
	log := slog.New(slog.DiscardHandler)
	index, counts, stored := prefix.NewIndex(prefix.Options{}), metrics.New(), affinity.New(16)
	o := fleet.Options{Index: index, Logger: log}
	for i := range n {
		e, err := engine.New(engine.Config{DecodeStep: 2 * time.Millisecond, PrefillTokensPerSecond: 1e7,
			RecordRequests: 64})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		ln.engines = append(ln.engines, e)
		o.Backends = append(o.Backends, fleet.Backend{URL: e.URL(), ID: fmt.Sprint("sim-", i)})
	}
	var err error
	if ln.fleet, err = fleet.New(o); err != nil {
		t.Fatal(err)
	}
	chosen := &atomic.Pointer[policy.Policy]{}
	chosen.Store(policy.Default())
	legs := leg.New(leg.Parts{
		Fleet: ln.fleet, Policy: chosen, Gate: ln.gate, Metrics: counts, Stored: stored, Logger: log,
		Where: &where.Finder{Index: index, Metrics: counts}, Budget: admission.NewBudget(20, 64, nil),
	}, leg.Options{
		Limits: leg.Limits{FirstByte: time.Minute, Idle: time.Minute, Total: time.Minute}, MaxNodes: 2, Feedback: true,
	})
	watcher, err := relay.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	loops, err := relay.NewLoops(relay.LoopsOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ln.Gateway = New(Parts{
		Fleet: ln.fleet, Metrics: counts, Watcher: watcher, Loops: loops, Logger: log,
		Plans: plan.New(plan.Parts{
			Legs: legs, Fleet: ln.fleet, Stored: stored, Metrics: counts, Logger: log,
			Choose: func(*request.Request) plan.Plan {
				p := &twice{enough: ln.enough, hold: ln.hold, spoil: ln.spoil, gate: ln.gate}
				ln.plans <- p
				return p
			},
		}),
	}, Limits{
		MaxBody: 1 << 20, MaxBodyTotal: 4 << 20, MaxHeader: 16 << 10, MaxConnections: 64, MaxStreams: 64,
		HeaderTimeout: time.Minute, BodyTimeout: time.Minute, KeepAlive: time.Minute, SlowReader: time.Minute,
	}, false)
	ln.open(secure, func() {
		loops.Close()
		watcher.Close()
		index.Close()
	})
	return ln
}

// open serves clients until the test ends. Then open closes everything.
func (ln *lane) open(secure bool, closeAll func()) {
	l := listen(ln.t)
	transport := &http.Transport{}
	var own *tls.Config
	ln.url = "http://" + l.Addr().String()
	if secure {
		certificate := httptest.NewTLSServer(nil)
		certificate.Close()
		own = &tls.Config{Certificates: certificate.TLS.Certificates}
		roots := x509.NewCertPool()
		roots.AddCert(certificate.Certificate())
		transport.TLSClientConfig = &tls.Config{RootCAs: roots, ServerName: "example.com"}
		ln.url = "https://" + l.Addr().String()
	}
	ln.client = &http.Client{Transport: transport}
	ctx, cancel := context.WithCancel(context.Background())
	ran, served := make(chan error, 1), make(chan error, 1)
	go func() { ran <- ln.fleet.Run(ctx) }()
	go func() { served <- ln.Serve(l, own) }()
	ln.t.Cleanup(func() {
		transport.CloseIdleConnections()
		if err := ln.Shutdown(context.Background()); err != nil {
			ln.t.Error(err)
		}
		cancel()
		<-ran
		<-served
		closeAll()
	})
	waitFor(ln.t, func() bool {
		m := ln.fleet.Load().Model([]byte("sim"))
		if m == nil || len(m.Nodes) < len(ln.engines) {
			return false
		}
		for _, n := range m.Nodes {
			if ok, _ := n.Eligible(time.Now()); !ok {
				return false
			}
		}
		return true
	})
}

// ask asks for a stream of tokens and returns its answer, whose body the caller closes.
func (ln *lane) ask(ctx context.Context, tokens int) *http.Response {
	ln.t.Helper()
	return ln.askWith(ctx, tokens, "hello")
}

// askWith is ask with a prompt.
func (ln *lane) askWith(ctx context.Context, tokens int, prompt string) *http.Response {
	ln.t.Helper()
	body := fmt.Sprintf(`{"model":"sim","stream":true,"max_tokens":%d,"messages":[{"role":"user","content":%q}]}`,
		tokens, prompt)
	req, err := http.NewRequestWithContext(ctx, "POST", ln.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		ln.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := ln.client.Do(req)
	if err != nil {
		ln.t.Fatal(err)
	}
	return resp
}

// heard is a complete stream as a client reads it.
type heard struct {
	contents, dones, errors, comments int
	err                               error // error at the end of the stream
}

func read(body io.ReadCloser) (h heard) {
	defer body.Close()
	lines := bufio.NewScanner(body)
	for lines.Scan() {
		switch line := lines.Text(); {
		case line == "data: [DONE]":
			h.dones++
		case strings.HasPrefix(line, `data: {"error"`):
			h.errors++
		case strings.HasPrefix(line, ":"):
			h.comments++
		case strings.Contains(line, `"content":"`) && !strings.Contains(line, `"content":""`):
			h.contents++
		}
	}
	h.err = lines.Err()
	return h
}

// idle waits until the resources of all requests are freed.
func (ln *lane) idle() {
	ln.t.Helper()
	waitFor(ln.t, func() bool {
		for _, n := range ln.fleet.Load().Nodes {
			if n.InFlight() != 0 {
				return false
			}
		}
		return ln.gate.InFlight() == 0 && ln.Streams() == 0 && ln.bodies.Held() == 0
	})
}

// both runs test twice: with streams on the loops and with streams on goroutines.
func both(t *testing.T, engines int, test func(t *testing.T, ln *lane)) {
	for name, secure := range map[string]bool{"loops": false, "goroutines": true} {
		t.Run(name, func(t *testing.T) { test(t, newLane(t, engines, secure)) })
	}
}

// TestTwoLegsInOneStream checks that the second leg goes to another node and that its events follow
// the first leg's events.
func TestTwoLegsInOneStream(t *testing.T) {
	both(t, 3, func(t *testing.T, ln *lane) {
		const tokens = 20
		for range 3 { // the later rounds reuse the first round's connections
			resp := ln.ask(t.Context(), tokens)
			if got := (heard{2 * tokens, 1, 0, 1, nil}); resp.StatusCode != 200 || read(resp.Body) != got {
				t.Fatalf("status %d; not %+v", resp.StatusCode, got)
			}
			ln.idle()
			if p := <-ln.plans; p.first == "" || p.broken || p.most != 1 {
				t.Errorf("the legs, of which each has one permit: %+v", p)
			}
		}
		asked := 0
		for _, e := range ln.engines {
			asked += len(e.Requests())
		}
		if asked < 6 {
			t.Errorf("%d requests reached engines, want 6", asked)
		}
	})
}

// TestBodyIsKeptForLegsToCome checks that the request's body stays in memory while the first leg's
// stream is on the loops. The body goes on counting as memory in use. Other requests use the
// server's read buffer meanwhile.
func TestBodyIsKeptForLegsToCome(t *testing.T) {
	both(t, 2, func(t *testing.T, ln *lane) {
		for _, size := range []int{1 << 10, 300 << 10} { // in the server's own buffer, and in a region
			prompt := strings.Repeat("abcdefg ", size/8)
			resp := ln.askWith(t.Context(), 60, prompt)
			if held := ln.bodies.Held(); held < int64(size) && (size > 64<<10 || strings.HasPrefix(ln.url, "http:")) {
				t.Errorf("%d bytes are counted of a body of %d that a leg may need", held, size)
			}
			for range 4 { // requests that could overwrite the body
				other := ln.askWith(t.Context(), 1, strings.Repeat("x", size))
				if got := read(other.Body); got.contents != 2 {
					t.Errorf("beside it: %+v", got)
				}
			}
			if got := read(resp.Body); got != (heard{120, 1, 0, 1, nil}) {
				t.Errorf("%+v", got)
			}
			arrived := 0
			for _, e := range ln.engines {
				for _, r := range e.Requests() {
					if strings.Contains(string(r.Body), prompt) {
						arrived++
					}
				}
			}
			if arrived != 2 {
				t.Errorf("%d legs had the whole prompt of %d bytes, want 2", arrived, size)
			}
			ln.idle()
		}
	})
}

// TestEachLegIsRetried checks that a leg whose node does not answer asks another node.
func TestEachLegIsRetried(t *testing.T) {
	both(t, 4, func(t *testing.T, ln *lane) {
		const tokens = 10
		for _, e := range ln.engines[2:] { // the nodes that win this prompt's ties
			e.SetFault(&engine.Fault{Status: 503})
		}
		retried := [2]int{}
		for range 8 {
			if got := read(ln.ask(t.Context(), tokens).Body); got != (heard{2 * tokens, 1, 0, 1, nil}) {
				t.Fatalf("%+v", got)
			}
			ln.idle()
			p := <-ln.plans
			retried[0] += p.tries[0] - 1
			retried[1] += p.tries[1] - p.tries[0] - 1
		}
		if retried[0] == 0 || retried[1] == 0 {
			t.Errorf("retries of the first legs and of the second ones: %v", retried)
		}
	})
}

// TestLegGoesOnWhereAnotherBroke checks that another node continues the stream of a node that dies.
func TestLegGoesOnWhereAnotherBroke(t *testing.T) {
	both(t, 2, func(t *testing.T, ln *lane) {
		const tokens, died = 20, 5
		after := died
		for _, e := range ln.engines {
			e.SetFault(&engine.Fault{DieAfter: &after, Close: "rst", Count: 1})
		}
		got := read(ln.ask(t.Context(), tokens).Body) // events of both nodes: the second one dies too
		ln.idle()
		if p := <-ln.plans; !p.broken || got.contents > 2*died || got.dones != 0 || got.errors != 1 || got.err != nil {
			t.Errorf("two broken legs: %+v, %+v", got, p)
		}
		ln.engines[0].SetFault(&engine.Fault{DieAfter: &after, Close: "rst"})
		ln.engines[1].SetFault(nil)
		for range 8 {
			got := read(ln.ask(t.Context(), tokens).Body)
			ln.idle()
			p := <-ln.plans
			if !p.broken { // the first leg met the sound node, and the dying node ends the stream
				continue
			}
			if got.contents < tokens || got.dones != 1 || got.errors != 0 {
				t.Errorf("one broken leg: %+v", got)
			}
		}
		ln.idle()
	})
}

// TestEnoughOfALeg checks that a leg can end between two events, and that its node is told.
func TestEnoughOfALeg(t *testing.T) {
	both(t, 2, func(t *testing.T, ln *lane) {
		const tokens = 100
		ln.enough = 4
		got := read(ln.ask(t.Context(), tokens).Body)
		if got.contents < tokens || got.contents > tokens+ln.enough || got.dones != 1 || got.errors != 0 {
			t.Errorf("%+v", got)
		}
		ln.idle()
		waitFor(t, func() bool {
			running := 0
			for _, e := range ln.engines {
				running += int(e.Stats().Running)
			}
			return running == 0
		})
	})
}

// TestEventsAreWithheld checks that the client sees no event of a withheld leg before another leg
// takes its place.
func TestEventsAreWithheld(t *testing.T) {
	both(t, 2, func(t *testing.T, ln *lane) {
		const tokens = 10
		ln.hold = true
		if got := read(ln.ask(t.Context(), tokens).Body); got != (heard{tokens, 1, 0, 1, nil}) {
			t.Errorf("%+v", got)
		}
		ln.idle()
	})
}

// TestClientLeavesBetweenLegs checks that a client that leaves between the legs, or during a leg,
// leaves nothing behind.
func TestClientLeavesBetweenLegs(t *testing.T) {
	both(t, 2, func(t *testing.T, ln *lane) {
		for _, when := range []string{"first", "second", "between"} {
			ctx, leave := context.WithCancel(t.Context())
			tokens := 10
			if when == "first" {
				tokens = 5000
			}
			resp := ln.ask(ctx, tokens)
			lines := bufio.NewScanner(resp.Body)
			for lines.Scan() {
				if when == "first" || strings.HasPrefix(lines.Text(), ": the second") {
					break
				}
			}
			if when == "second" {
				lines.Scan()
			}
			leave()
			for lines.Scan() {
			}
			if err := lines.Err(); when == "first" && !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", when, err)
			}
			resp.Body.Close()
			ln.idle()
		}
	})
}

// TestNoNodeForTheSecondLeg checks that the stream then ends with an error about the missing node.
func TestNoNodeForTheSecondLeg(t *testing.T) {
	both(t, 1, func(t *testing.T, ln *lane) {
		got := read(ln.ask(t.Context(), 10).Body)
		if got != (heard{10, 0, 1, 1, nil}) {
			t.Errorf("%+v", got)
		}
		ln.idle()
	})
}

// TestSecondLegIsNoStream checks that an answer that can't continue the stream ends it. That answer
// does not count against its node.
func TestSecondLegIsNoStream(t *testing.T) {
	both(t, 2, func(t *testing.T, ln *lane) {
		ln.spoil = true
		for range 5 {
			if got := read(ln.ask(t.Context(), 10).Body); got != (heard{10, 0, 1, 1, nil}) {
				t.Fatalf("%+v", got)
			}
			ln.idle()
		}
		if strings.Contains(metricsPage(ln.Gateway), "cgn_router_upstream_errors_total{") {
			t.Error("a node is charged")
		}
	})
}

// TestOldClientGetsNoFurtherLegs checks that the router refuses an HTTP/1.0 client an answer of
// several legs. The server itself would send that answer, without the relay.
func TestOldClientGetsNoFurtherLegs(t *testing.T) {
	ln := newLane(t, 1, false)
	conn, err := net.Dial("tcp", strings.TrimPrefix(ln.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"model":"sim","stream":true,"max_tokens":5,"messages":[{"role":"user","content":"hello"}]}`
	if _, err := fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.0\r\nHost: x\r\n"+
		"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil || !strings.Contains(string(got), `"http_version"`) || strings.Contains(string(got), "second leg") {
		t.Errorf("%v: %s", err, got)
	}
	ln.idle()
}
