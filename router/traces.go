package router

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/traces"
)

// TraceConfig sets which requests become spans, and where the spans go.
type TraceConfig struct {
	Endpoint    string  `toml:"endpoint" flag:"traces" help:"collector that takes spans over OTLP, http://host:port or https://host:port; without a port 4318, or 4317 for grpc; without a path /v1/traces. Empty: no traces"`
	Protocol    string  `toml:"protocol" default:"http" oneof:"http|grpc" help:"how spans are sent: OTLP over HTTP (protobuf), or over gRPC"`
	Sample      float64 `toml:"sample" default:"0.1" help:"share of the requests without a traceparent that are recorded, 0 to 1; a request with a traceparent is recorded if the flag in it says so, whatever the share"`
	HeadersFile string  `toml:"headers_file" help:"file with headers for the collector, such as its key: one NAME: VALUE in each line"`
	CA          string  `toml:"ca" help:"PEM file of the CAs that may sign the certificate of an https endpoint; empty: the system's CAs"`
	Cert        string  `toml:"cert" help:"the router's client certificate for the collector"`
	Key         string  `toml:"key" help:"key of the client certificate"`
	Insecure    bool    `toml:"insecure" default:"false" help:"allow an http endpoint beyond loopback; spans, with names of models and nodes, and the headers of headers_file then cross the network in plain text"`
	Queue       int     `toml:"queue" default:"8192" help:"most ended spans that wait to be sent, about 2 KiB each; further spans are dropped and counted"`
}

// files returns the files for TLS.
func (t *TraceConfig) files() pki.Files { return pki.Files{CA: t.CA, Cert: t.Cert, Key: t.Key} }

// at returns the endpoint.
func (t *TraceConfig) at() (traces.Endpoint, error) {
	return traces.ParseEndpoint(t.Endpoint, t.Protocol == "grpc")
}

func (t *TraceConfig) validate(bad problem) {
	if !(t.Sample >= 0 && t.Sample <= 1) {
		bad("traces.sample", "%v is not in 0..1; use 1 to record every request, or leave it out for 0.1", t.Sample)
	}
	if t.Queue < 1 {
		bad("traces.queue", "%d is too small; use 1 or more", t.Queue)
	}
	if (t.Cert == "") != (t.Key == "") {
		bad("traces.cert", "goes together with traces.key; give both or neither")
	}
	if t.Endpoint == "" {
		for _, f := range [][2]string{{"headers_file", t.HeadersFile}, {"ca", t.CA}, {"cert", t.Cert}} {
			if f[1] != "" {
				bad("traces."+f[0], "has no effect without traces.endpoint; set that to the collector's URL, or leave it out")
			}
		}
		return
	}
	switch at, err := t.at(); {
	case err != nil:
		bad("traces.endpoint", "%v", err)
	case !at.TLS && (t.CA != "" || t.Cert != ""):
		bad("traces.endpoint", "is http, which has no use for traces.ca and traces.cert; write https://, or leave them out")
	case at.Plain() && !t.Insecure:
		bad("traces.endpoint", "%s is reached over a network without encryption; write https://, use a collector on "+
			"loopback, or set traces.insecure = true", at.Host)
	}
}

// examine checks the files.
func (t *TraceConfig) examine() error {
	if t.Endpoint == "" {
		return nil
	}
	var err error
	if t.HeadersFile != "" {
		_, err = traces.ReadHeaders(t.HeadersFile)
	}
	return errors.Join(field("traces.headers_file", err), t.files().Examine("traces.ca", "traces.cert", "traces.key"))
}

// tls returns the TLS configuration for the collector on this host.
func (t *TraceConfig) tls(host string) (*tls.Config, error) {
	id, err := pki.Load(t.files())
	if err != nil {
		return nil, t.files().Explain("traces.ca", "traces.cert", "traces.key", err)
	}
	return id.Outside(host), nil
}

// open returns a tracer, or nil without an endpoint.
func (t *TraceConfig) open(m *metrics.Router, log *slog.Logger) (*traces.Tracer, error) {
	if t.Endpoint == "" {
		return nil, nil
	}
	at, err := t.at()
	if err != nil {
		return nil, field("traces.endpoint", err)
	}
	o := traces.Options{
		Endpoint: at, Sample: t.Sample, Queue: t.Queue, Logger: log,
		Dropped: func(why traces.Loss, n int) { m.SpansDropped.WithLabelValues(string(why)).Add(float64(n)) },
	}
	if t.HeadersFile != "" {
		if o.Headers, err = traces.ReadHeaders(t.HeadersFile); err != nil {
			return nil, field("traces.headers_file", err)
		}
	}
	if at.TLS {
		host, _, _ := net.SplitHostPort(at.Host) // ParseEndpoint adds the port
		if o.TLS, err = t.tls(host); err != nil {
			return nil, err
		}
	}
	tracer, err := traces.New(o)
	return tracer, field("traces.endpoint", err)
}
