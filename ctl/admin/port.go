// Package admin sends requests to a router's admin port.
package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/cognitora/dataplane/ctl/cli"
)

// Default is the default address of a router's admin port.
const Default = "http://127.0.0.1:9091"

const (
	timeout     = 10 * time.Second
	answerBytes = 32 << 20
)

// Port is the admin port of a router.
type Port struct {
	At string // base URL, or HOST:PORT
	access
}

// Flags defines the flags for the address, the certificates and the API key.
func (p *Port) Flags(flags *pflag.FlagSet, getenv func(string) string) {
	flags.StringVar(&p.At, "admin", cli.FirstSet(getenv, Default, Variable),
		"a router's admin address (env "+Variable+")")
	p.flags(flags, getenv)
}

// url returns the same URL for "127.0.0.1:9091" and "http://127.0.0.1:9091/".
func (p *Port) url(path string) string {
	base := p.At
	if !strings.Contains(base, "://") {
		base = p.scheme() + base
	}
	return strings.TrimRight(base, "/") + path
}

// Ask sends one request and returns the body of a 200.
func (p *Port) Ask(ctx context.Context, method, path, body string) ([]byte, error) {
	return p.AskFor(ctx, timeout, method, path, body)
}

// AskFor is Ask with a time limit of the caller's.
func (p *Port) AskFor(ctx context.Context, limit time.Duration, method, path, body string) ([]byte, error) {
	return p.ask(ctx, limit, method, path, body, http.Header{})
}

// ask is AskFor with the given headers besides its own.
func (p *Port) ask(
	ctx context.Context, limit time.Duration, method, path, body string, h http.Header,
) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.url(path), strings.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("--admin %q: %w", p.At, err)
	}
	if req.URL.Host == "" {
		return nil, fmt.Errorf("--admin %q: has no host; use HOST:PORT, such as 127.0.0.1:9091", p.At)
	}
	if err := p.open(req.URL.Hostname()); err != nil {
		return nil, err
	}
	req.Header = h.Clone()
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := p.do(req)
	if err != nil {
		return nil, cli.WithHint(fmt.Errorf("no router answers at %s: %w", p.url(""), err), unreached(err))
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, answerBytes))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", req.URL, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, refused(req, resp.StatusCode, answer)
	}
	return answer, nil
}

// refused turns an error answer into an error with the router's own text.
func refused(req *http.Request, status int, answer []byte) error {
	var envelope struct {
		Error struct {
			Message string `json:"message"`
			Code    string `json:"code"`
		} `json:"error"`
	}
	err := fmt.Errorf("%s answers HTTP %d: %s", req.URL, status, firstLine(answer))
	said := json.Unmarshal(answer, &envelope) == nil && envelope.Error.Message != ""
	if said {
		err = fmt.Errorf("%s (HTTP %d from %s)", envelope.Error.Message, status, req.URL)
	}
	if hint := denied(status, string(answer)); hint != "" {
		return cli.WithHint(err, hint)
	}
	if status == http.StatusNotFound && (!said || envelope.Error.Code == "unknown_path") {
		return cli.WithHint(err, "is that the admin port of a cgn-router (127.0.0.1:9091 unless set)? "+
			"The port that serves /v1 is another one.")
	}
	return err
}

func firstLine(text []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(text)), "\n")
	return line[:min(len(line), 200)]
}

// Decode decodes the answer of a GET, or of a POST if body is not empty.
func (p *Port) Decode(ctx context.Context, path, body string, into any) error {
	return p.DecodeWith(ctx, http.Header{}, path, body, into)
}

// DecodeWith is Decode for a request with the given headers.
func (p *Port) DecodeWith(ctx context.Context, h http.Header, path, body string, into any) error {
	method := http.MethodGet
	if body != "" {
		method = http.MethodPost
	}
	answer, err := p.ask(ctx, timeout, method, path, body, h)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(answer, into); err != nil {
		return fmt.Errorf("%s: not the JSON that was expected: %w", p.url(path), err)
	}
	return nil
}
