package pki

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/internal/rights"
)

// CheckEvery is the least time between two checks by handshakes whether files changed.
const CheckEvery = 2 * time.Second

// ErrRole means that a peer's certificate is valid but of the wrong role.
var ErrRole = errors.New("pki: peer has the wrong role")

// Identity is a program's own certificate and the CA that it trusts, kept in step with the files. A
// client may have only the CA, or for Outside no file, and then shows no certificate. Handshakes
// check the files at most every CheckEvery, and a timer does so without handshakes. If new files do
// not load, or their certificate is not valid now, the old set stays in use, and each check tries
// them again. Failures counts the change once; the log has its reason, and has it again when it
// differs. An Identity has no goroutine and needs no closing.
type Identity struct {
	files Files
	now   func() time.Time
	state atomic.Pointer[material]

	failures atomic.Int64
	mu       sync.Mutex // held by the only handshake that checks the files
	checked  time.Time  // guarded by mu
	seen     [3]stamp   // files at the last attempt; guarded by mu
	failed   string     // why the last attempt failed; empty: it did not; guarded by mu
}

// material is a consistent set of the files' contents.
type material struct {
	pair  tls.Certificate
	roots *x509.CertPool
}

func (m *material) notAfter() time.Time {
	if m.pair.Leaf == nil {
		return time.Time{}
	}
	return m.pair.Leaf.NotAfter
}

// ended returns an error if the certificate in a file has ended.
func ended(file string, pair *tls.Certificate, now time.Time) error {
	if pair.Leaf == nil || !now.After(pair.Leaf.NotAfter) {
		return nil
	}
	return fmt.Errorf("certificate %s has ended, at %s", file, pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
}

// early returns an error if the certificate in a file is not valid yet. A program begins with such
// a certificate, as its clock may be wrong then, but does not take it in place of another.
func early(file string, pair *tls.Certificate, now time.Time) error {
	if pair.Leaf == nil || !now.Before(pair.Leaf.NotBefore) {
		return nil
	}
	return fmt.Errorf("certificate %s is valid only from %s on", file, pair.Leaf.NotBefore.UTC().Format(time.RFC3339))
}

// stamp distinguishes two states of a file. New rights or another owner make another state, since
// they may make it readable.
type stamp struct {
	inode   uint64
	size    int64
	changed int64 // ctime, in ns
}

// Load reads files and returns their identity. A certificate that has ended is an error.
func Load(files Files) (*Identity, error) {
	id := &Identity{files: files, now: time.Now}
	id.checked, id.seen = id.now(), files.stamps()
	m, err := read(files)
	if err == nil {
		err = ended(files.Cert, &m.pair, id.now())
	}
	if err != nil {
		return nil, err
	}
	id.state.Store(m)
	watch(weak.Make(id))
	return id, nil
}

// watch checks the files from time to time, until nobody has the identity any more. Without it a
// wire without new connections would miss whole replacements. Files that do not load at its next
// connection would then leave it with a certificate of a CA that nobody trusts any more.
func watch(of weak.Pointer[Identity]) {
	time.AfterFunc(CheckEvery, func() {
		if id := of.Value(); id != nil {
			id.current()
			watch(of)
		}
	})
}

// Failures returns how often changed files could not be used.
func (id *Identity) Failures() int64 { return id.failures.Load() }

// NotAfter returns when the certificate in use ends; zero without one.
func (id *Identity) NotAfter() time.Time { return id.current().notAfter() }

// Server returns the TLS configuration of a listener. With requireClient a client must show a
// certificate of the CA, and have one of roles if any are given, otherwise any role but Monitor.
// ALPN offers http/1.1 only.
func (id *Identity) Server(requireClient bool, roles ...Role) *tls.Config {
	return id.ServerFor(requireClient, []string{"http/1.1"}, roles...)
}

// ServerFor is Server with these ALPN protocols instead of http/1.1.
func (id *Identity) ServerFor(requireClient bool, protocols []string, roles ...Role) *tls.Config {
	return id.serve(func(m *material) *tls.Config { return m.server(requireClient, roles) }, protocols...)
}

// ServerOptional is Server, except that a client may also show no certificate.
func (id *Identity) ServerOptional() *tls.Config {
	return id.serve(func(m *material) *tls.Config {
		c := m.server(true, nil)
		c.ClientAuth = tls.VerifyClientCertIfGiven
		c.VerifyConnection = func(cs tls.ConnectionState) error {
			if len(cs.PeerCertificates) == 0 {
				return nil
			}
			return checkRole(cs, nil)
		}
		return c
	}, "http/1.1")
}

// Mutual is Server for connections between daemons. ALPN offers protocols. The client must show a
// certificate of any role. All records have full size, also the first ones. Because only a client
// with a certificate gets a session ticket, a resumed session is checked against the CA again.
func (id *Identity) Mutual(protocols ...string) *tls.Config {
	return id.serve(func(m *material) *tls.Config {
		c := m.server(true, nil)
		c.DynamicRecordSizingDisabled = true
		return c
	}, protocols...)
}

// Asking is Server for a port whose clients need no certificate. A certificate that a client shows
// must be of the CA. The port's owner checks its role, with RoleIn.
func (id *Identity) Asking() *tls.Config {
	return id.serve(func(m *material) *tls.Config {
		c := m.server(false, nil)
		c.ClientAuth, c.ClientCAs = tls.VerifyClientCertIfGiven, m.roots
		return c
	}, "http/1.1")
}

// RoleIn returns the role in the client's certificate of a connection whose server has verified it.
// shown is false without a verified certificate. A nil state is a connection without TLS.
func RoleIn(state *tls.ConnectionState) (role Role, shown bool) {
	if state == nil || len(state.VerifiedChains) == 0 {
		return "", false
	}
	return RoleOf(state.PeerCertificates[0]), true
}

// NameIn names the client's certificate of a connection, for logs, by its first URI or else its
// common name. Without a certificate, or with a nil state, the name is "".
func NameIn(state *tls.ConnectionState) string {
	if state == nil || len(state.PeerCertificates) == 0 {
		return ""
	}
	shown := state.PeerCertificates[0]
	if len(shown.URIs) > 0 {
		return "certificate " + shown.URIs[0].String()
	}
	return "certificate " + shown.Subject.CommonName
}

// serve builds the configuration once for each certificate, so that session tickets are valid as
// long as the certificate is in use.
func (id *Identity) serve(build func(*material) *tls.Config, protocols ...string) *tls.Config {
	var built atomic.Pointer[serverConfig]
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			m := id.current()
			if b := built.Load(); b != nil && b.from == m {
				return b.config, nil
			}
			b := &serverConfig{m, build(m)}
			b.config.NextProtos = protocols
			built.Store(b)
			return b.config, nil
		},
	}
}

// serverConfig is a configuration and the material that it was built from.
type serverConfig struct {
	from   *material
	config *tls.Config
}

func (m *material) server(requireClient bool, roles []Role) *tls.Config {
	c := &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{m.pair},
	}
	if requireClient {
		c.ClientAuth = tls.RequireAndVerifyClientCert
		c.ClientCAs = m.roots
		c.VerifyConnection = func(cs tls.ConnectionState) error { return checkRole(cs, roles) }
	}
	return c
}

// Client returns the TLS configuration for dialling. The peer must chain to the CA, be valid for
// serverName (a DNS name or an IP address) and, if roles are given, have one of them. With an empty
// serverName the name is not checked, so roles must be given: then the fleet's CA vouches for the
// peer, on any host.
func (id *Identity) Client(serverName string, roles ...Role) (*tls.Config, error) {
	if serverName == "" && len(roles) == 0 {
		return nil, errors.New("pki: a client needs a server name or a role to check")
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{"http/1.1"},
		ServerName: serverName,
		// The standard check would always use the pool given here. VerifyConnection does the same
		// check against the present CA.
		InsecureSkipVerify: true,
		VerifyConnection: func(cs tls.ConnectionState) error {
			if err := verifyServer(cs, serverName, id.current().roots); err != nil {
				return err
			}
			return checkRole(cs, roles)
		},
		GetClientCertificate: id.clientCertificate,
	}, nil
}

// Outside returns the TLS configuration for dialling a server outside the fleet, such as etcd or an
// engine. The server's certificate must be valid for serverName (a DNS name or an IP address), and
// needs no role. Without a CA file the system's CAs count. The caller may set the protocols.
func (id *Identity) Outside(serverName string) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: serverName}
	if id.files.CA != "" {
		c.InsecureSkipVerify = true // as in Client
		c.VerifyConnection = func(cs tls.ConnectionState) error {
			return verifyServer(cs, serverName, id.current().roots)
		}
	}
	if id.files.Cert != "" {
		c.GetClientCertificate = id.clientCertificate
	}
	return c
}

// CAs returns the CAs in use, for a client that dials servers of several names. They are those of
// the file when CAs is called.
func (id *Identity) CAs() *x509.CertPool { return id.current().roots }

func (id *Identity) clientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return &id.current().pair, nil
}

func verifyServer(cs tls.ConnectionState, name string, roots *x509.CertPool) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("pki: peer sent no certificate")
	}
	o := x509.VerifyOptions{
		Roots:         roots,
		DNSName:       name,
		Intermediates: x509.NewCertPool(),
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, c := range cs.PeerCertificates[1:] {
		o.Intermediates.AddCert(c)
	}
	if _, err := cs.PeerCertificates[0].Verify(o); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: cs.PeerCertificates, Err: err}
	}
	return nil
}

// checkRole returns an error if the peer has none of roles. Without roles it may have any but
// Monitor, whose holder may only read admin ports.
func checkRole(cs tls.ConnectionState, roles []Role) error {
	got := RoleOf(cs.PeerCertificates[0])
	if len(roles) == 0 && got != Monitor || slices.Contains(roles, got) {
		return nil
	}
	if len(roles) == 0 {
		return fmt.Errorf("%w: %q is for admin ports only", ErrRole, got)
	}
	return fmt.Errorf("%w: %q, wanted one of %q", ErrRole, got, roles)
}

// ClientConfig is Load followed by Client.
func ClientConfig(files Files, serverName string, roles ...Role) (*tls.Config, error) {
	id, err := Load(files)
	if err != nil {
		return nil, err
	}
	return id.Client(serverName, roles...)
}

// current returns the material in use, after it has checked the files if a check is due. current
// does not wait if another handshake is checking them.
func (id *Identity) current() *material {
	if id.mu.TryLock() {
		id.refresh()
		id.mu.Unlock()
	}
	return id.state.Load()
}

func (id *Identity) refresh() {
	now := id.now()
	if now.Sub(id.checked) < CheckEvery {
		return
	}
	id.checked = now
	stamps := id.files.stamps()
	changed := stamps != id.seen
	if !changed && id.failed == "" {
		return
	}
	id.seen = stamps
	m, err := read(id.files)
	if err == nil {
		err = cmp.Or(ended(id.files.Cert, &m.pair, now), early(id.files.Cert, &m.pair, now))
	}
	if err != nil {
		id.fail(err, changed)
		return
	}
	id.failed = ""
	id.state.Store(m)
	slog.Info("certificate reloaded", "ca", id.files.CA, "cert", id.files.Cert, "not_after", m.notAfter())
}

// fail records that an attempt has failed. changed says whether the files have changed since the
// one before.
func (id *Identity) fail(err error, changed bool) {
	if changed {
		id.failures.Add(1)
	}
	text := err.Error()
	if changed || text != id.failed {
		slog.Error("changed certificate files cannot be used, keeping the old ones", "ca", id.files.CA, "cert",
			id.files.Cert, "error", err)
	}
	id.failed = text
}

func (f Files) stamps() (s [3]stamp) {
	for i, name := range []string{f.CA, f.Cert, f.Key} {
		var at unix.Stat_t
		if unix.Stat(name, &at) == nil {
			s[i] = stamp{at.Ino, at.Size, at.Ctim.Nano()}
		}
	}
	return s
}

func read(f Files) (*material, error) {
	var pair tls.Certificate
	if f.Cert != "" || f.Key != "" {
		var err error
		if pair, err = f.pair(); err != nil {
			return nil, fmt.Errorf("pki: certificate %s with key %s: %w", f.Cert, f.Key, err)
		}
	}
	if f.CA == "" { // the program checks no peer
		return &material{pair, x509.NewCertPool()}, nil
	}
	roots, err := Roots(f.CA)
	if err != nil {
		return nil, err
	}
	return &material{pair, roots}, nil
}

// pair reads the certificate and its key.
func (f Files) pair() (tls.Certificate, error) {
	cert, err := rights.ReadFile(f.Cert)
	if err != nil {
		return tls.Certificate{}, err
	}
	key, err := rights.ReadFile(f.Key)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// Roots reads the certificates of one or several CAs from a PEM file.
func Roots(name string) (*x509.CertPool, error) {
	pem, err := rights.ReadFile(name)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s holds no certificate", name)
	}
	return roots, nil
}
