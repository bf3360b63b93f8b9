package traces

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/grpc/credentials"

	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/rights"
)

// Endpoint is the place of a collector.
type Endpoint struct {
	GRPC bool   // OTLP over gRPC, else over HTTP
	TLS  bool   // https
	Host string // host:port
	Path string // of HTTP
}

// ParseEndpoint parses http://host[:port][/path] or https://…, for OTLP over gRPC or over HTTP.
// Without a port the endpoint has OTLP's own, 4317 or 4318. Without a path HTTP uses /v1/traces.
func ParseEndpoint(text string, grpc bool) (e Endpoint, err error) {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || !isHost(u):
		return e, errors.New("want http://host:port or https://host:port of a collector")
	case u.User != nil:
		return e, errors.New("takes no user or password; put the header with the collector's key into a file and " +
			"name that with traces.headers_file")
	case u.RawQuery != "" || u.Fragment != "":
		return e, errors.New("takes no query or fragment")
	case grpc && strings.Trim(u.Path, "/") != "":
		return e, fmt.Errorf("has the path %s, which gRPC has no use for; leave it out, or set traces.protocol to http",
			u.Path)
	}
	e = Endpoint{GRPC: grpc, TLS: u.Scheme == "https", Path: u.Path}
	port := "4318"
	if grpc {
		port = "4317"
	}
	if strings.Trim(e.Path, "/") == "" {
		e.Path = "/v1/traces"
	}
	e.Host = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
	return e, nil
}

func isHost(u *url.URL) bool { return u.Hostname() != "" && httpguts.ValidHostHeader(u.Host) }

// Plain says whether spans would cross a network without encryption.
func (e *Endpoint) Plain() bool { return !e.TLS && !listen.Loopback(e.Host) }

// Bounds of a file of headers.
const (
	headersMax     = 32
	headersMaxSize = 16 << 10 // bytes
)

// ReadHeaders reads a file with one header in each line, as in "authorization: Bearer KEY". Empty
// lines, and lines that begin with #, do not count. The file has at most 32 headers and 16 KiB.
// Its errors name lines and contain no values.
func ReadHeaders(file string) (map[string]string, error) {
	text, err := rights.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if len(text) > headersMaxSize {
		return nil, fmt.Errorf("%s has %d bytes; a file of headers has at most %d", file, len(text), headersMaxSize)
	}
	all := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, found := strings.Cut(line, ":")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		switch {
		case !found || !httpguts.ValidHeaderFieldName(name) || value == "" || !printable(value):
			return nil, fmt.Errorf("%s: line %d is no header; write NAME: VALUE, of printable ASCII", file, n)
		case name == "content-type" || name == "content-length" || name == "host" || strings.HasPrefix(name, "grpc-"):
			return nil, fmt.Errorf("%s: line %d: %s belongs to the protocol; leave it out", file, n, name)
		}
		all[name] = value
	}
	if len(all) > headersMax {
		return nil, fmt.Errorf("%s has %d headers; it takes %d at most", file, len(all), headersMax)
	}
	return all, lines.Err()
}

func printable(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' })
}

// exportTime bounds the sending of one batch, with its repetitions.
const exportTime = 10 * time.Second

// open returns an exporter for the endpoint. release frees what the exporter itself leaves open.
func (o *Options) open() (e *otlptrace.Exporter, release func(), err error) {
	if o.Endpoint.GRPC {
		e, err = otlptrace.New(context.Background(), o.overGRPC())
		return e, func() {}, err
	}
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: o.TLS, ForceAttemptHTTP2: true, MaxIdleConns: 1,
		IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: exportTime,
		DialContext: (&net.Dialer{Timeout: exportTime}).DialContext,
	}
	e, err = otlptrace.New(context.Background(), o.overHTTP(t))
	return e, t.CloseIdleConnections, err
}

func (o *Options) overGRPC() otlptrace.Client {
	options := []otlptracegrpc.Option{
		otlptracegrpc.WithEndpoint(o.Endpoint.Host), otlptracegrpc.WithTimeout(exportTime),
		otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{
			Enabled: true, InitialInterval: time.Second, MaxInterval: exportTime, MaxElapsedTime: exportTime,
		}),
	}
	if o.Endpoint.TLS {
		options = append(options, otlptracegrpc.WithTLSCredentials(credentials.NewTLS(o.TLS)))
	} else {
		options = append(options, otlptracegrpc.WithInsecure())
	}
	if len(o.Headers) > 0 {
		options = append(options, otlptracegrpc.WithHeaders(o.Headers))
	}
	return otlptracegrpc.NewClient(options...)
}

func (o *Options) overHTTP(t *http.Transport) otlptrace.Client {
	options := []otlptracehttp.Option{
		otlptracehttp.WithEndpoint(o.Endpoint.Host), otlptracehttp.WithURLPath(o.Endpoint.Path),
		otlptracehttp.WithHTTPClient(&http.Client{Transport: t, Timeout: exportTime, CheckRedirect: keep}),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
			Enabled: true, InitialInterval: time.Second, MaxInterval: exportTime, MaxElapsedTime: exportTime,
		}),
	}
	if !o.Endpoint.TLS {
		options = append(options, otlptracehttp.WithInsecure())
	}
	if len(o.Headers) > 0 {
		options = append(options, otlptracehttp.WithHeaders(o.Headers))
	}
	return otlptracehttp.NewClient(options...)
}

// keep makes a redirection an answer, so that no other host gets the headers.
func keep(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
