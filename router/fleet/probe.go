package fleet

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
)

// Bounds of what a prober reads.
const (
	maxProbeBody      = 4 << 20  // model lists and metrics; a bounded number is read at a time
	maxSmallBody      = 16 << 10 // of other answers: only their status counts, and a longer one costs its connection
	completionTimeout = 8 * time.Second
	completionsAtOnce = 4
	completionEvery   = time.Second
)

// prober asks one node how it is: its health, and, of a static node, its models and metrics. It has
// connections of its own, so that a check tells whether the node accepts new ones.
type prober struct {
	fleet   *Fleet
	node    *Node
	line    atomic.Pointer[line]
	wake    chan struct{}
	failed  atomic.Pointer[string] // what the last check failed with
	failing atomic.Int64           // since when checks have failed without a pause (Unix ns); 0: the last one has not
	found   atomic.Pointer[discovery]
	// changed: the line is another, so a healthy node is checked before its time.
	changed atomic.Bool
	// doubted: a request's connection has failed, and so is this.
	doubted atomic.Bool
	port    atomic.Uint32 // local, of the connection that was made last

	// Owned by run.
	checkedAt  time.Time
	hurried    int // checks that were to be at once, since there was none for long
	modelsAt   time.Time
	metricsAt  time.Time // not before
	startTime  float64   // of the engine's process, Unix seconds; 0 = unknown
	wasRefused bool
	warm       bool // connections were opened ahead since the node was last found unwell
	trials     sync.WaitGroup
	trialsOut  atomic.Int32
	trialAt    time.Time
	complained complaint
}

// line is how a node is reached. It is immutable.
type line struct {
	http *http.Client
	base string
	auth string // value of Authorization; empty: none
}

func newProber(f *Fleet, n *Node, t relay.Target) *prober {
	p := &prober{fleet: f, node: n, wake: make(chan struct{}, 1)}
	p.line.Store(p.lineTo(t))
	p.found.Store(&discovery{})
	return p
}

// retarget makes further checks go over another line, the next one soon.
func (p *prober) retarget(t relay.Target) {
	p.line.Swap(p.lineTo(t)).http.CloseIdleConnections()
	p.changed.Store(true)
	p.kick()
}

// doubt makes the node be checked at once, eight times in an interval for unhealthy nodes at most.
func (p *prober) doubt() {
	p.doubted.Store(true)
	p.kick()
}

func (p *prober) lineTo(t relay.Target) *line {
	dial := p.fleet.opts.Pool.Dial
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	scheme := "http://"
	if t.TLS != nil {
		scheme = "https://"
	}
	host := t.Host
	if host == "" {
		host = t.Addr
	}
	l := &line{base: scheme + host + t.BasePath, auth: t.Authorization}
	l.http = &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				c, err := dial(ctx, t.Network, t.Addr)
				if err == nil {
					if at, ok := c.LocalAddr().(*net.TCPAddr); ok {
						p.port.Store(uint32(at.Port))
					}
				}
				return c, err
			},
			// The relay speaks HTTP/1.1, so that is what is checked.
			TLSClientConfig: t.TLS.Clone(), TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
			MaxIdleConnsPerHost: 1, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
			ResponseHeaderTimeout: completionTimeout, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return l
}

// kick makes the prober look at once, no more often than haste allows.
func (p *prober) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *prober) discovered() discovery { return *p.found.Load() }

func (p *prober) lastError() string {
	if s := p.failed.Load(); s != nil {
		return *s
	}
	return ""
}

// run checks the node until ctx ends.
func (p *prober) run(ctx context.Context) {
	defer func() { p.line.Load().http.CloseIdleConnections() }()
	defer p.trials.Wait()
	for {
		p.round(ctx)
		if !p.rest(ctx) {
			return
		}
	}
}

// rest waits until something is due. The wait varies by a tenth, so that nodes do not fall into
// step.
func (p *prober) rest(ctx context.Context) bool {
	o := &p.fleet.opts
	wait := o.ProbeIntervalDown
	if p.node.State() == Healthy && p.lastError() == "" && !p.node.Suspect() {
		wait = o.ProbeInterval
		if p.node.Source == Static {
			wait = min(wait, max(time.Until(p.metricsAt), o.ScrapeInterval/2))
		}
	}
	timer := time.NewTimer(wait - wait/10 + rand.N(wait/5+1))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	case <-p.wake:
	}
	return pause(ctx, p.haste(time.Since(p.checkedAt)))
}

// haste is how long to wait with a check that is to be at once, since after the one before. The
// first few follow each other quickly: the one before may have met a server in the middle of its
// end, which has reset it, where the next one is refused.
func (p *prober) haste(since time.Duration) time.Duration {
	if since > p.fleet.opts.ProbeIntervalDown {
		p.hurried = 0
	}
	least := p.fleet.opts.ProbeIntervalDown / 4 >> max(5-p.hurried, 0)
	p.hurried++
	return least - since
}

func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// round does what is due.
func (p *prober) round(ctx context.Context) {
	p.checkHealth(ctx)
	if p.node.Source == Static && p.node.State() != Unproven && p.lastError() == "" {
		p.scrape(ctx)
	}
	if p.node.State() != Healthy && p.node.health.wantsCompletion(time.Now()) {
		p.tryCompletion(ctx)
	}
}

// checkHealth asks /health where that is due, and a static node's models before it is called well.
func (p *prober) checkHealth(ctx context.Context) {
	now, last := time.Now(), p.checkedAt
	doubted := p.doubted.Swap(false)
	if p.changed.Swap(false) {
		p.modelsAt, p.warm = time.Time{}, false
	} else if !doubted && !p.node.Suspect() && p.node.State() == Healthy && p.lastError() == "" &&
		now.Sub(last) < p.fleet.opts.ProbeInterval*9/10 {
		return
	}
	p.checkedAt = now
	err := p.health(ctx)
	if err == nil && p.node.Source == Static {
		err = p.discover(ctx)
	}
	if ctx.Err() != nil || relay.IsLocal(err) {
		return // says nothing of the node
	}
	result := resultOf(err, doubted)
	p.note(err)
	p.complain(err, now)
	if err == nil && p.wasRefused {
		p.restarted(ctx)
	}
	p.wasRefused = result >= checkRefused
	p.warmUp(ctx, err == nil)
	p.node.health.checked(result, last)
	if err != nil {
		p.node.unanswered(now)
	}
}

// warmUp opens connections ahead of the requests to a node that was not well before, or is new. A
// failure is not told: it is the next request's or check's to find.
func (p *prober) warmUp(ctx context.Context, well bool) {
	if p.warm && well && p.node.State() != Open {
		return
	}
	if p.warm = well; well && p.keepsIdle() {
		_, _ = p.node.Pool.Warm(ctx, p.fleet.opts.Warm)
	}
}

// keepsIdle reports whether the node is known to bear connections on which nothing is asked:
// agents, vLLM and SGLang do. A server with a thread for each connection, or with one thread, would
// be blocked by them.
func (p *prober) keepsIdle() bool {
	engine := p.discovered().engine
	return p.node.Source == Etcd || engine == "vllm" || engine == "sglang"
}

func (p *prober) note(err error) {
	if err == nil {
		p.failed.Store(nil)
		p.failing.Store(0)
		return
	}
	p.failing.CompareAndSwap(0, time.Now().UnixNano())
	text := err.Error()
	p.failed.Store(&text)
}

// health: a server that does not know /health is alive, one that says 5xx is not (llama.cpp says
// 503 while it loads).
func (p *prober) health(ctx context.Context) error {
	wait := p.fleet.opts.ProbeTimeout
	if p.node.Suspect() {
		wait = min(wait, suspectProbe)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	status, err := p.status(ctx, http.MethodGet, "/health", nil)
	if err != nil {
		return err
	}
	if status >= 500 && status != http.StatusNotImplemented {
		return fmt.Errorf("/health answers %d", status)
	}
	return nil
}

// tryCompletion asks a node of which only that can show that it is well for one token, next to
// earlier attempts that are still out: a request that hangs now may hang for ever, although a later
// one is answered.
func (p *prober) tryCompletion(ctx context.Context) {
	models := p.node.Info().Models
	now := time.Now()
	if len(models) == 0 || p.trialsOut.Load() >= completionsAtOnce || now.Sub(p.trialAt) < completionEvery {
		return
	}
	p.trialAt = now
	p.trialsOut.Add(1)
	model := p.node.UpstreamModel(models[0])
	p.trials.Go(func() {
		defer p.trialsOut.Add(-1)
		ctx, cancel := context.WithTimeout(ctx, completionTimeout)
		defer cancel()
		status, err := p.complete(ctx, model)
		if ctx.Err() == nil || errors.Is(ctx.Err(), context.DeadlineExceeded) {
			p.node.health.completed(completionOf(status, err), now, p.node.InFlight() > 0)
		}
	})
}

func completionOf(status int, err error) completion {
	switch {
	case err != nil || status >= 500:
		return incomplete
	case status >= 300:
		return declined
	}
	return computed
}

func (p *prober) complete(ctx context.Context, model string) (status int, err error) {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": ".", "max_tokens": 1})
	if err != nil {
		return 0, err
	}
	return p.status(ctx, http.MethodPost, "/v1/completions", body)
}

// status sends a request of which only the answer's status counts.
func (p *prober) status(ctx context.Context, method, path string, body []byte) (int, error) {
	resp, err := p.send(ctx, method, path, body)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if _, err := io.CopyN(io.Discard, resp.Body, maxSmallBody); err != nil && err != io.EOF {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return resp.StatusCode, nil
}

// get reads a page.
func (p *prober) get(ctx context.Context, path string) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.fleet.opts.ProbeTimeout)
	defer cancel()
	resp, err := p.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	select {
	case p.fleet.reads <- struct{}{}:
		defer func() { <-p.fleet.reads }()
	case <-ctx.Done():
		return 0, nil, fmt.Errorf("%s: %w", path, ctx.Err())
	}
	page, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeBody+1))
	if err == nil && len(page) > maxProbeBody {
		err = fmt.Errorf("more than %d bytes", maxProbeBody)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", path, err)
	}
	return resp.StatusCode, page, nil
}

func (p *prober) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	l := p.line.Load()
	req, err := http.NewRequestWithContext(ctx, method, l.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "cgn-router")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if l.auth != "" {
		req.Header.Set("Authorization", l.auth)
	}
	resp, err := l.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, plainError(err))
	}
	p.node.suspicion.answered(time.Now())
	return resp, nil
}

// complainEvery is how often at most the reason why one node has not answered yet makes a line,
// where it changes.
const complainEvery = time.Minute

// complaint is what has been said of a node that has never answered. Of others the breaker tells.
type complaint struct {
	failed int    // checks in a row
	why    string // said last
	at     time.Time
}

// complain says why a node has not answered yet: at the second failed check, and again when the
// reason is another.
func (p *prober) complain(err error, now time.Time) {
	c := &p.complained
	if err == nil || p.node.State() != Unproven {
		*c = complaint{}
		return
	}
	c.failed++
	why := reason(err)
	if c.failed < 2 || why == c.why || now.Sub(c.at) < complainEvery {
		return
	}
	c.why, c.at = why, now
	p.fleet.opts.Log.Warn("node has not answered yet, so it takes no requests",
		"node", p.node.ID, "address", p.node.Info().Address, "error", err)
}

// reason is what an error says without the ports of this connection, so that the same is told apart
// from something new.
func reason(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

// plainError takes the method and URL off net/http's error, which the operator knows from the node,
// and says what some of its errors mean.
func plainError(err error) error {
	var wrapped *url.Error
	var network *net.OpError
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer in time: %w", err)
	case strings.Contains(err.Error(), "readLoopPeekFailLocked") && !errors.As(err, &network):
		// Bytes where nothing was asked yet.
		return errors.New("it speaks before it is asked, so it is no HTTP server")
	case strings.Contains(err.Error(), `malformed HTTP response "\x15\x03`): // a TLS alert
		return fmt.Errorf("it speaks TLS (is its URL https://?): %w", err)
	}
	return missingCertificate(err)
}

// missingCertificate names the setting behind an error of TLS.
func missingCertificate(err error) error {
	var refused tls.AlertError
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &refused), strings.Contains(err.Error(), "remote error: tls: "):
		return fmt.Errorf("%w; an agent takes certificates of role router or ctl: "+
			"set upstream_tls.ca, .cert and .key", err)
	case errors.As(err, &untrusted):
		return fmt.Errorf("%w; an agent's certificate is checked with upstream_tls.ca (and shown .cert and .key), "+
			"a backend's with its own ca", err)
	}
	return err
}
