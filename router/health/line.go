package health

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
)

// line is the way to a node: its URL, key and connections. line is immutable.
type line struct {
	http *http.Client
	base string
	auth string // value of Authorization; empty: none
}

func (c *checker) lineTo(t relay.Target) *line {
	scheme := "http://"
	if t.TLS != nil {
		scheme = "https://"
	}
	l := &line{base: scheme + cmp.Or(t.Host, t.Addr) + t.BasePath, auth: t.Authorization}
	l.http = &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				conn, err := c.checks.Dial(ctx, t.Network, t.Addr)
				if err == nil {
					if at, ok := conn.LocalAddr().(*net.TCPAddr); ok {
						c.port.Store(uint32(at.Port))
					}
				}
				return conn, err
			},
			// The relay speaks HTTP/1.1, so the check uses HTTP/1.1 too.
			TLSClientConfig: t.TLS.Clone(), TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
			MaxIdleConnsPerHost: 1, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
			ResponseHeaderTimeout: completionTimeout, MaxResponseHeaderBytes: 64 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return l
}

func (c *checker) complete(ctx context.Context, model string) (status int, err error) {
	body, _ := json.Marshal(map[string]any{"model": model, "prompt": ".", "max_tokens": 1})
	return c.status(ctx, http.MethodPost, "/v1/completions", body)
}

// status sends a request and returns the status of the answer.
func (c *checker) status(ctx context.Context, method, path string, body []byte) (int, error) {
	resp, err := c.send(ctx, method, path, body)
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
func (c *checker) get(ctx context.Context, path string) (int, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.checks.Timeout)
	defer cancel()
	resp, err := c.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	select {
	case c.checks.reads <- struct{}{}:
		defer func() { <-c.checks.reads }()
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

func (c *checker) send(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	l := c.line.Load()
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
		return nil, fmt.Errorf("%s: %w", path, c.unlikeScheme(plainError(err)))
	}
	c.node.suspicion.answered(time.Now())
	return resp, nil
}

// reason returns an error's text without this connection's ports. Equal errors then have equal
// texts.
func reason(err error) string {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		return op.Op + ": " + op.Err.Error()
	}
	return err.Error()
}

// plainError removes the method and URL from net/http's error, because the log names the node.
// plainError also explains some errors.
func plainError(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err
	}
	var network *net.OpError
	switch _, plain := errors.AsType[tls.RecordHeaderError](err); {
	case plain, errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("it speaks no TLS: write http:// in its URL if it speaks plain HTTP (%w)", err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer in time: %w", err)
	case strings.Contains(err.Error(), "readLoopPeekFailLocked") && !errors.As(err, &network):
		// These bytes came before anything was asked.
		return errors.New("it speaks before it is asked, so it is no HTTP server")
	case strings.Contains(err.Error(), `malformed HTTP response "\x15\x03`): // a TLS alert
		return fmt.Errorf("it speaks TLS: write https:// in its URL (%w)", err)
	}
	return missingCertificate(err)
}

// unlikeScheme adds a hint to the error of a node that has closed a connection and has never
// answered: the scheme of the node's URL may be wrong.
func (c *checker) unlikeScheme(err error) error {
	closed := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)
	switch secure := strings.HasPrefix(c.line.Load().base, "https:"); {
	case !closed, c.node.State() != Unproven:
		return err
	case secure:
		return fmt.Errorf("%w; if it speaks plain HTTP, write http:// in its URL", err)
	}
	return fmt.Errorf("%w; if it speaks TLS, write https:// in its URL", err)
}

// missingCertificate names the setting behind a TLS error.
func missingCertificate(err error) error {
	_, refused := errors.AsType[tls.AlertError](err)
	switch _, untrusted := errors.AsType[*tls.CertificateVerificationError](err); {
	case refused, strings.Contains(err.Error(), "remote error: tls: "):
		return fmt.Errorf("%w; an agent takes certificates of role router or ctl: "+
			"set upstream_tls.ca, .cert and .key; a backend is shown its own cert, with its cert_key", err)
	case untrusted:
		return fmt.Errorf("%w; an agent's certificate is checked with upstream_tls.ca (and shown .cert and .key), "+
			"a backend's with its own ca", err)
	}
	return err
}
