package router

import (
	"crypto/tls"

	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/internal/pki"
)

// server returns the TLS configuration of the serving port and the router's identity there; nil for
// plain HTTP.
func (t *TLSConfig) server() (*tls.Config, *pki.Identity, error) {
	if t.Cert == "" {
		return nil, nil, nil
	}
	files := pki.Files{CA: t.ClientCA, Cert: t.Cert, Key: t.Key}
	id, err := pki.Load(files)
	if err != nil {
		return nil, nil, files.Explain("tls.client_ca", "tls.cert", "tls.key", err)
	}
	if t.Optional {
		return id.ServerOptional(), id, nil
	}
	return id.Server(t.ClientCA != ""), id, nil
}

// These are the indices of tlsDefs.
const (
	tlsCertificateEnd = iota
	tlsReloadFailures
)

var tlsDefs = []metric.Def{
	tlsCertificateEnd: {
		Name: "cgn_router_tls_certificate_end_seconds",
		Help: "When the serving port's certificate ends, Unix time; absent without TLS.",
	},
	tlsReloadFailures: {
		Name: "cgn_router_tls_reload_failures_total", Kind: metric.Counter,
		Help: "Changed files of the serving port's certificate that could not be used, since the start; absent without TLS.",
	},
}

// readTLS emits the metrics of the serving port's certificate.
func (p *ports) readTLS(emit func(def int, value float64, labels ...string)) {
	if p.identity != nil {
		emit(tlsCertificateEnd, float64(p.identity.NotAfter().Unix()))
		emit(tlsReloadFailures, float64(p.identity.Failures()))
	}
}
