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
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cognitora/dataplane/internal/enginemetrics"
	"github.com/cognitora/dataplane/internal/relay"
)

// Bounds of what a prober reads.
const (
	maxProbeBody      = 4 << 20
	maxProbeModels    = 1024
	metricsRetry      = time.Minute // for an engine without /metrics
	completionTimeout = 8 * time.Second
	completionsAtOnce = 4
	completionEvery   = time.Second
)

// prober asks one node how it is: its health, and, of a static node, its models and metrics. It has connections of its
// own, so that a check tells whether the node accepts new ones.
type prober struct {
	fleet  *Fleet
	node   *Node
	http   *http.Client
	base   string
	auth   string
	wake   chan struct{}
	failed atomic.Pointer[string] // what the last check failed with
	found  atomic.Pointer[discovery]

	// Owned by run.
	checkedAt  time.Time
	modelsAt   time.Time
	metricsAt  time.Time // not before
	startTime  float64   // of the engine's process, Unix seconds; 0 = unknown
	wasRefused bool
	trials     sync.WaitGroup
	trialsOut  atomic.Int32
	trialAt    time.Time
}

// discovery is what an engine says of itself. It is immutable.
type discovery struct {
	asked       bool // it was asked for its models
	models      []string
	engine      string
	blockTokens int
}

func newProber(f *Fleet, n *Node, t relay.Target) *prober {
	dial := f.opts.Pool.Dial
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
	p := &prober{fleet: f, node: n, base: scheme + host + t.BasePath, auth: t.Authorization, wake: make(chan struct{}, 1)}
	p.found.Store(&discovery{})
	p.http = &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, t.Network, t.Addr) },
			// The relay speaks HTTP/1.1, so that is what is checked.
			TLSClientConfig: t.TLS.Clone(), TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
			MaxIdleConnsPerHost: 1, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
			ResponseHeaderTimeout: completionTimeout, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return p
}

// kick makes the prober look at once, no more often than its interval for unhealthy nodes allows.
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
	defer p.http.CloseIdleConnections()
	defer p.trials.Wait()
	for {
		p.round(ctx)
		if !p.rest(ctx) {
			return
		}
	}
}

// rest waits until something is due. The wait varies by a tenth, so that nodes do not fall into step.
func (p *prober) rest(ctx context.Context) bool {
	o := &p.fleet.opts
	wait := o.ProbeIntervalDown
	if p.node.State() == Healthy && p.lastError() == "" {
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
	return pause(ctx, o.ProbeIntervalDown/4)
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
	select { // a bounded number of nodes is checked at a time
	case p.fleet.checks <- struct{}{}:
	case <-ctx.Done():
		return
	}
	p.checkHealth(ctx)
	if p.node.Source == Static && p.node.State() != Unproven && p.lastError() == "" {
		p.scrape(ctx)
	}
	<-p.fleet.checks
	if p.node.State() == Aside {
		p.tryCompletion(ctx)
	}
}

// checkHealth asks /health where that is due, and a static node's models before it is called well.
func (p *prober) checkHealth(ctx context.Context) {
	now, last := time.Now(), p.checkedAt
	if p.node.State() == Healthy && p.lastError() == "" && now.Sub(last) < p.fleet.opts.ProbeInterval*9/10 {
		return
	}
	p.checkedAt = now
	err := p.health(ctx)
	if err == nil && p.node.Source == Static {
		err = p.discover(ctx)
	}
	if ctx.Err() != nil {
		return
	}
	refused := errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
	p.note(err)
	if err == nil && p.wasRefused {
		p.restarted(ctx)
	}
	p.wasRefused = refused
	p.node.health.checked(err == nil, refused, last)
}

func (p *prober) note(err error) {
	if err == nil {
		p.failed.Store(nil)
		return
	}
	text := err.Error()
	p.failed.Store(&text)
}

// health: a server that does not know /health is alive, one that says 5xx is not (llama.cpp says 503 while it loads).
func (p *prober) health(ctx context.Context) error {
	status, _, err := p.get(ctx, "/health")
	if err != nil {
		return err
	}
	if status >= 500 && status != http.StatusNotImplemented {
		return fmt.Errorf("/health answers %d", status)
	}
	return nil
}

// discover reads /v1/models. A server that does not have it serves what is configured for it.
func (p *prober) discover(ctx context.Context) error {
	now := time.Now()
	if p.node.State() == Healthy && now.Sub(p.modelsAt) < p.fleet.opts.ModelsInterval {
		return nil
	}
	status, body, err := p.get(ctx, "/v1/models")
	if err != nil {
		return err
	}
	d := p.discovered()
	d.asked = true
	switch {
	case status == http.StatusOK:
		if d.models, d.engine, err = readModels(body); err != nil {
			return err
		}
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return fmt.Errorf("/v1/models answers %d; give the engine's key with api_key_file=", status)
	case status >= 500 && status != http.StatusNotImplemented:
		return fmt.Errorf("/v1/models answers %d", status)
	}
	p.modelsAt = now
	p.publish(ctx, d)
	return nil
}

// publish lets the fleet's goroutine know what was found.
func (p *prober) publish(ctx context.Context, d discovery) {
	if reflect.DeepEqual(d, p.discovered()) {
		return
	}
	p.found.Store(&d)
	p.fleet.send(ctx, func(f *Fleet) {
		if m := f.members[p.node.ID]; m != nil && m.node == p.node {
			f.refresh(m)
		}
	})
}

// restarted tells that the engine has started anew, with an empty cache.
func (p *prober) restarted(ctx context.Context) {
	if p.node.Source != Static {
		return // its heartbeat's kv_epoch says so
	}
	p.fleet.send(ctx, func(f *Fleet) {
		if m := f.members[p.node.ID]; m != nil && m.node == p.node {
			f.joinIndex(p.node)
		}
	})
}

// readModels reads an OpenAI model list, and the engine's kind out of owned_by.
func readModels(body []byte) (models []string, engine string, err error) {
	var list struct {
		Data []struct {
			ID      string `json:"id"`
			OwnedBy string `json:"owned_by"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, "", fmt.Errorf("/v1/models: %w", err)
	}
	for _, m := range list.Data {
		if m.ID == "" || len(m.ID) > 512 || len(models) == maxProbeModels || slices.Contains(models, m.ID) {
			continue
		}
		models = append(models, m.ID)
		if kind := engineKinds[m.OwnedBy]; kind != "" {
			engine = kind
		}
	}
	return models, engine, nil
}

var engineKinds = map[string]string{"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama_cpp"}

// scrape reads the engine's own metrics where that is due. An engine without them is unknown, not idle.
func (p *prober) scrape(ctx context.Context) {
	now := time.Now()
	if now.Before(p.metricsAt) {
		return
	}
	p.metricsAt = now.Add(p.fleet.opts.ScrapeInterval)
	before := p.node.InFlight()
	status, page, err := p.get(ctx, "/metrics")
	if err != nil || ctx.Err() != nil {
		return
	}
	if status != http.StatusOK {
		p.metricsAt = now.Add(metricsRetry)
		return
	}
	stats := enginemetrics.Parse(page)
	p.node.setLoad(loadOf(&stats, max(before, p.node.InFlight()), now))
	p.learn(ctx, &stats)
}

// loadOf makes telemetry of a scrape. ours is what this router had in flight meanwhile: what the engine holds beyond that
// is somebody else's.
func loadOf(stats *enginemetrics.Stats, ours int32, now time.Time) Load {
	l := unknownLoad
	l.At = now
	if stats.Known(enginemetrics.Running) {
		l.EngineBusy = float32(stats.Running)
	}
	if stats.Known(enginemetrics.KVUsage) {
		l.KVUsage = float32(stats.KVUsage)
	}
	if stats.Known(enginemetrics.Waiting) {
		l.EngineQueue = float32(stats.Waiting)
		l.Waiting = foreignWaiting(stats.Running+stats.Waiting, stats.Waiting, ours)
	}
	return l
}

// foreignWaiting is how many of the waiting requests are not ours: never more than the engine holds beyond ours.
func foreignWaiting(held, waiting float64, ours int32) int32 {
	return int32(max(0, min(waiting, held-float64(ours), 1<<20)))
}

// learn takes from the metrics what changes with an engine's start.
func (p *prober) learn(ctx context.Context, stats *enginemetrics.Stats) {
	if stats.Known(enginemetrics.StartTime) {
		if p.startTime != 0 && stats.StartTime != p.startTime {
			p.restarted(ctx)
		}
		p.startTime = stats.StartTime
	}
	if stats.Known(enginemetrics.BlockTokens) {
		d := p.discovered()
		d.blockTokens = int(stats.BlockTokens)
		p.publish(ctx, d)
	}
}

// tryCompletion asks a node that was set aside for one token, next to earlier attempts that are still out: a request that
// hangs now may hang for ever, although a later one is answered.
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
		if err == nil && status < 500 {
			p.node.health.completed(status < 300)
		}
	})
}

func (p *prober) complete(ctx context.Context, model string) (status int, err error) {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": ".", "max_tokens": 1})
	if err != nil {
		return 0, err
	}
	status, _, err = p.do(ctx, http.MethodPost, "/v1/completions", body)
	return status, err
}

func (p *prober) get(ctx context.Context, path string) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.fleet.opts.ProbeTimeout)
	defer cancel()
	return p.do(ctx, http.MethodGet, path, nil)
}

func (p *prober) do(ctx context.Context, method, path string, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.base+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("User-Agent", "cgn-router")
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if p.auth != "" {
		req.Header.Set("Authorization", p.auth)
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", path, plainError(err))
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(io.LimitReader(resp.Body, maxProbeBody+1))
	if err == nil && len(page) > maxProbeBody {
		err = fmt.Errorf("more than %d bytes", maxProbeBody)
	}
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", path, err)
	}
	return resp.StatusCode, page, nil
}

// plainError takes the method and URL off net/http's error, which the operator knows from the node.
func plainError(err error) error {
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}
