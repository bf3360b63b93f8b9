package engine

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
	"slices"
	"strconv"
	"syscall"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/enginemetrics"
	"github.com/cognitora/dataplane/internal/lora"
	"github.com/cognitora/dataplane/internal/pki"
)

// Bounds on the engine's answers to a look, in bytes.
const (
	maxMetricsPage = 8 << 20
	maxModelsList  = 4 << 20
)

// Errors of a health check.
var (
	errRefused  = errors.New("engine does not accept connections")
	errNotReady = errors.New("engine says it is not ready")
)

// prober sends requests to one engine about its state, one at a time.
type prober struct {
	base   string // scheme, host and base path
	key    string // API key, or ""
	client *http.Client
	page   bytes.Buffer // buffer of the last answer

	patient *http.Client // has no time limit of its own; any goroutine may use it
}

func newProber(c *Config, e address.Address, key string) (*prober, error) {
	t := &http.Transport{
		MaxIdleConns: 1, MaxConnsPerHost: 1, DisableCompression: true,
		ResponseHeaderTimeout: c.ScrapeTimeout.Std(),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, e.Network, e.Addr)
		},
	}
	base := "http://" + e.Host + e.BasePath
	if e.TLS {
		config, err := c.EngineTLS(e)
		if err != nil {
			return nil, err
		}
		t.TLSClientConfig, base = config, "https://"+e.Host+e.BasePath
	}
	noRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	slow := t.Clone()
	slow.ResponseHeaderTimeout, slow.MaxConnsPerHost = 0, 0
	return &prober{
		base: base, key: key,
		client:  &http.Client{Transport: t, Timeout: c.ScrapeTimeout.Std(), CheckRedirect: noRedirect},
		patient: &http.Client{Transport: slow, CheckRedirect: noRedirect},
	}, nil
}

// EngineTLS returns the configuration to dial an https engine; nil for others.
func (c *Config) EngineTLS(e address.Address) (*tls.Config, error) {
	if !e.TLS {
		return nil, nil
	}
	name, _, err := net.SplitHostPort(e.Addr)
	if err != nil {
		return nil, wrong("url", "%w", err)
	}
	id, err := pki.Load(pki.Files{CA: c.CA})
	if err != nil {
		return nil, wrong("ca", "%w; name a PEM file with the CA's certificate", err)
	}
	config := id.Outside(name)
	config.NextProtos = []string{"http/1.1"}
	return config, nil
}

func (p *prober) close() {
	p.client.CloseIdleConnections()
	p.patient.CloseIdleConnections()
}

// keptPage is the largest buffer that is kept for the next answer, in bytes.
const keptPage = 1 << 20

// get returns the status, the header and at most limit bytes of the body. The body is valid until
// the next get.
func (p *prober) get(ctx context.Context, path string, limit int64) (int, http.Header, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+path, nil)
	if err != nil {
		return 0, nil, nil, err
	}
	if p.key != "" {
		req.Header.Set("Authorization", "Bearer "+p.key)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist) {
			err = errRefused
		}
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	if p.page.Reset(); p.page.Cap() > keptPage {
		p.page = bytes.Buffer{}
	}
	_, err = p.page.ReadFrom(io.LimitReader(resp.Body, limit+1))
	body := p.page.Bytes()
	if err == nil && int64(len(body)) > limit {
		err = fmt.Errorf("%s answers more than %d bytes", path, limit)
	}
	return resp.StatusCode, resp.Header, body, err
}

// health returns nil if the engine is healthy. An engine with a missing /health, or an inconclusive
// answer, is healthy if it lists its models.
func (p *prober) health(ctx context.Context) error {
	status, _, _, err := p.get(ctx, "/health", maxModelsList)
	switch {
	case err != nil:
		return err
	case status == http.StatusOK:
		return nil
	case status >= 500 && status != http.StatusNotImplemented:
		return fmt.Errorf("%w: /health answers %d", errNotReady, status)
	}
	_, _, err = p.models(ctx)
	return err
}

// metrics returns the figures of the engine's metrics page and the engine's start, if the page has
// it. started identifies the engine's life, in the engine's own unit. A missing page is no error
// and gives no figures. page is the page itself, until the next get.
func (p *prober) metrics(ctx context.Context) (stats enginemetrics.Stats, started int64, page []byte, err error) {
	status, header, page, err := p.get(ctx, "/metrics", maxMetricsPage)
	if err != nil || status != http.StatusOK {
		return enginemetrics.Stats{}, 0, nil, err
	}
	stats = enginemetrics.Parse(page)
	if stats.Known(enginemetrics.StartTime) {
		return stats, int64(stats.StartTime * 1000), page, nil
	}
	started, _ = strconv.ParseInt(header.Get("Process-Start-Time-Unix"), 10, 64) // llama.cpp; 0 if missing
	return stats, started, page, nil
}

// models returns the names that the engine serves, sorted, and which of them are LoRA adapters.
func (p *prober) models(ctx context.Context) (names []string, adapters []lora.Adapter, err error) {
	status, _, body, err := p.get(ctx, "/v1/models", maxModelsList)
	if err != nil {
		return nil, nil, err
	}
	switch status {
	case http.StatusOK:
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, nil, fmt.Errorf("/v1/models answers %d; give the engine's key with engine.api_key_file, or name what "+
			"it serves with engine.models", status)
	default:
		return nil, nil, fmt.Errorf("/v1/models answers %d", status)
	}
	var list struct {
		Data []struct {
			ID     string `json:"id"`
			Parent string `json:"parent"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, nil, fmt.Errorf("/v1/models is not what OpenAI's looks like: %w", err)
	}
	for _, m := range list.Data {
		if m.ID == "" || slices.Contains(names, m.ID) {
			continue
		}
		if names = append(names, m.ID); m.Parent != "" {
			adapters = append(adapters, lora.Adapter{Name: m.ID, Base: m.Parent})
		}
	}
	slices.Sort(names)
	return names, adapters, nil
}

// slots returns how many requests a llama.cpp server computes at once.
func (p *prober) slots(ctx context.Context) (int, error) {
	status, _, body, err := p.get(ctx, "/props", maxModelsList)
	if err != nil || status != http.StatusOK {
		return 0, err
	}
	var props struct {
		TotalSlots int `json:"total_slots"`
	}
	if err := json.Unmarshal(body, &props); err != nil {
		return 0, fmt.Errorf("/props: %w", err)
	}
	return props.TotalSlots, nil
}

// version returns the version of a vLLM server, or "" if it does not say.
func (p *prober) version(ctx context.Context) (string, error) {
	status, _, body, err := p.get(ctx, "/version", maxModelsList)
	if err != nil || status != http.StatusOK {
		return "", err
	}
	var about struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(body, &about); err != nil {
		return "", fmt.Errorf("/version: %w", err)
	}
	return about.Version, nil
}
