// Package adminport has what the admin ports of all daemons share: the HTTP server, its TLS, and
// the rights of certificates by their role.
//
// An admin port without admin_tls.client_ca asks nobody who he is. With it, every request but those
// of probes needs a certificate whose role may do what is asked. The router's admin port takes API
// keys too.
package adminport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/pki"
)

// TLS is the [admin_tls] section of a configuration.
type TLS struct {
	Cert     string `toml:"cert" help:"certificate of the admin port; empty: plain HTTP"`
	Key      string `toml:"key" help:"key of the certificate"`
	ClientCA string `toml:"client_ca" empty:"refused" help:"PEM file of the CA that clients' certificates must chain to; every request but GET /healthz and GET /readyz then needs a certificate: of the role ctl, or of the role monitor for what changes nothing. Left out: clients show no certificate"`
}

// Validate returns an error for each field that lacks another one.
func (t *TLS) Validate() error {
	var errs []error
	if (t.Cert == "") != (t.Key == "") {
		errs = append(errs, errors.New("admin_tls.cert: goes together with admin_tls.key; give both or neither"))
	}
	if t.ClientCA != "" && t.Cert == "" {
		errs = append(errs, errors.New("admin_tls.client_ca: needs admin_tls.cert and admin_tls.key"))
	}
	return errors.Join(errs...)
}

// Examine returns an error for each bad file, with its field.
func (t *TLS) Examine() error {
	return t.files().Examine("admin_tls.client_ca", "admin_tls.cert", "admin_tls.key")
}

func (t *TLS) files() pki.Files { return pki.Files{CA: t.ClientCA, Cert: t.Cert, Key: t.Key} }

// Certified says whether the port knows its clients by their certificates.
func (t *TLS) Certified() bool { return t.ClientCA != "" }

// Config reads the files and returns the port's TLS configuration, which follows them; nil: plain
// HTTP.
func (t *TLS) Config() (*tls.Config, error) {
	if t.Cert == "" {
		return nil, nil
	}
	id, err := pki.Load(t.files())
	if err != nil {
		return nil, t.files().Explain("admin_tls.client_ca", "admin_tls.cert", "admin_tls.key", err)
	}
	if t.Certified() {
		return id.Asking(), nil
	}
	return id.Server(false), nil
}

// Server is the HTTP server of an admin port.
type Server struct {
	http.Server
	tls *tls.Config
}

// New returns a server that answers with h. conf is the result of Config. Problems of connections
// are logged at level debug.
func New(h http.Handler, conf *tls.Config, log *slog.Logger) *Server {
	return &Server{http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}, conf}
}

// Serve serves l until Shutdown or Close, or until l is closed. Then Serve returns nil.
func (s *Server) Serve(l net.Listener) error {
	if s.tls != nil {
		l = tls.NewListener(l, s.tls)
	}
	if err := s.Server.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Stop lets running requests finish until ctx ends, and then cuts them.
func (s *Server) Stop(ctx context.Context) error { return errors.Join(s.Shutdown(ctx), s.Close()) }

// Probe says whether a request is that of a probe, which needs no rights.
func Probe(req *http.Request) bool {
	return (req.Method == http.MethodGet || req.Method == http.MethodHead) &&
		(req.URL.Path == "/healthz" || req.URL.Path == "/readyz")
}

// May says whether the client's certificate gives the right to read, or to change something.
// May returns ErrNoCertificate without a certificate, otherwise the error names the role.
func May(req *http.Request, change bool) error {
	role, shown := pki.RoleIn(req.TLS)
	switch {
	case !shown:
		return ErrNoCertificate
	case time.Now().After(req.TLS.PeerCertificates[0].NotAfter):
		return errors.New("the certificate has expired; connect again with a new one")
	case role == pki.Ctl, role == pki.Monitor && !change:
		return nil
	case role == pki.Monitor:
		return errors.New("a certificate of the role monitor may not change anything; use one of the role ctl")
	}
	return fmt.Errorf("a certificate of the role %q may not use this port; use one of the role ctl, or of the role "+
		"monitor to read", role)
}

// ErrNoCertificate means that a client has shown no certificate.
var ErrNoCertificate = errors.New("this admin port asks for a certificate of the CA in admin_tls.client_ca; show one of " +
	"the role ctl, or of the role monitor to read (cgn-ctl pki bootstrap makes them)")

// Local returns a handler for a port that asks nobody who he is. On loopback it refuses requests,
// but those of probes, whose Host is a name other than localhost: the page of another site has sent
// them, whose name points at this host.
func Local(address string, next http.Handler) http.Handler {
	if !listen.Loopback(address) || strings.HasPrefix(address, "unix:") {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if listen.Rebindable(req.Host) && !Probe(req) {
			const text = "this admin port on loopback asks nobody who he is, so it answers only requests whose Host is an " +
				"address or localhost"
			ActsAs(req, "", text)
			http.Error(w, text, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, req)
	})
}

// Guard returns a handler that passes requests on to next if they are of probes, or if the client's
// certificate may read. It is for ports that change nothing. Without certificates it is Local.
func (t *TLS) Guard(address string, next http.Handler) http.Handler {
	if !t.Certified() {
		return Local(address, next)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := May(req, false); err != nil && !Probe(req) {
			ActsAs(req, pki.NameIn(req.TLS), err.Error())
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, req)
	})
}
