package trust

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
)

// clientName is the name in the certificates of clients, which has a table in the configuration.
const clientName = "spiffe://acme/ci"

// settle is the time that a change of certificates needs to reach every program, and a second.
const settle = pki.CheckEvery + time.Second

// holders are the programs with files of their own, by the role of their certificate.
var holders = map[string]pki.Role{"a": pki.Router, "b": pki.Router, "agent": pki.Agent, "redis": pki.Etcd,
	"etcd": pki.Etcd, "ctl": pki.Ctl, "monitor": pki.Monitor}

// wires are the certificates of all programs and clients.
type wires struct {
	s               *site
	cas             int
	authority       string // directory of the CA that signs now
	roots           atomic.Pointer[x509.CertPool]
	client          atomic.Pointer[shown]      // by clients, signed by that CA
	stale           atomic.Pointer[tls.Config] // of a client whose CA is not trusted any more
	stranger        *tls.Certificate           // signed by a CA that nobody trusts
	pairs, replaced int                        // certificates and CAs, replaced so far
}

// files returns the paths of a program's files.
func (w *wires) files(program string) pki.Files {
	return pki.FilesIn(filepath.Join(w.s.dir, "pki", program), holders[program])
}

// make makes the first CA, and the files of all programs.
func (w *wires) make(s *site) {
	w.s = s
	for program := range holders {
		if err := os.MkdirAll(filepath.Join(s.dir, "pki", program), 0o700); err != nil {
			s.t.Fatal(err)
		}
	}
	other := w.bootstrap()
	w.stranger = w.issue(other)
	w.authority = w.bootstrap()
	w.trust(w.authority)
	w.deal(nil)
	w.useClient()
}

// bootstrap makes a CA, and certificates for all roles.
func (w *wires) bootstrap() (dir string) {
	w.cas++
	dir = filepath.Join(w.s.dir, fmt.Sprint("ca-", w.cas))
	if _, err := w.s.ctl("pki", "bootstrap", "--dir", dir); err != nil {
		w.s.books.broken("%v", err)
	}
	return dir
}

// trust has all programs and clients trust the CAs in these directories.
func (w *wires) trust(dirs ...string) {
	var all []byte
	for _, dir := range dirs {
		all = append(all, w.read(filepath.Join(dir, "ca.crt"))...)
	}
	for program := range holders {
		w.s.put(w.files(program).CA, string(all))
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(all)
	w.roots.Store(pool)
}

// deal gives all programs the certificates that are in the directory of the CA. damage is called
// for each file of routers and agent before that; may be nil.
func (w *wires) deal(damage func(name, text string)) {
	for program, role := range holders {
		from, to := pki.FilesIn(w.authority, role), w.files(program)
		cert, key := string(w.read(from.Cert)), string(w.read(from.Key))
		if damage != nil && (role == pki.Router || role == pki.Agent) {
			damage(to.Cert, cert)
		}
		w.s.put(to.Cert, cert)
		w.s.put(to.Key, key)
		w.pairs++
	}
}

func (w *wires) read(name string) []byte {
	text, err := os.ReadFile(name)
	if err != nil {
		w.s.books.broken("%v", err)
	}
	return text
}

// shown is what clients show of themselves: a certificate, and the sessions that they had with it.
type shown struct {
	pair     *tls.Certificate
	sessions tls.ClientSessionCache
}

// useClient gives clients a new certificate of the CA.
func (w *wires) useClient() {
	w.client.Store(&shown{w.issue(w.authority), tls.NewLRUClientSessionCache(64)})
}

// issue makes a client's certificate that the CA in dir signs.
func (w *wires) issue(dir string) *tls.Certificate {
	pair, err := issue(dir)
	if err != nil {
		w.s.books.broken("%v", err)
	}
	return &pair
}

func issue(dir string) (pair tls.Certificate, err error) {
	ca, err := tls.LoadX509KeyPair(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	if err != nil {
		return pair, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair, err
	}
	name, _ := url.Parse(clientName)
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	now := time.Now()
	doc, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: serial,
		Subject: pkix.Name{CommonName: "ci"}, URIs: []*url.URL{name}, NotBefore: now.Add(-time.Minute),
		NotAfter: now.Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, ca.Leaf, &key.PublicKey, ca.PrivateKey)
	return tls.Certificate{Certificate: [][]byte{doc}, PrivateKey: key}, err
}

// run replaces certificates until ctx ends, and the CA each third time.
func (w *wires) run(ctx context.Context) {
	for turn := 1; pause(ctx, 8*time.Second); turn++ {
		if turn%3 == 0 {
			w.newCA(ctx)
			continue
		}
		if _, err := w.s.ctl("pki", "bootstrap", "--dir", w.authority, "--force"); err != nil {
			w.s.books.broken("%v", err)
			return
		}
		w.deal(w.damage(ctx, turn))
		w.useClient()
		w.s.redis.takeFiles()
		pause(ctx, settle)
	}
}

// damage returns what writes half a certificate in place of a whole one for a while.
func (w *wires) damage(ctx context.Context, turn int) func(name, text string) {
	return func(name, text string) {
		if err := os.WriteFile(name, []byte(text[:len(text)/(1+turn%3)]), 0o600); err != nil {
			w.s.books.broken("%v", err)
		}
		pause(ctx, 300*time.Millisecond)
	}
}

// newCA replaces the CA and all certificates as docs/wires.md says.
func (w *wires) newCA(ctx context.Context) {
	next := w.bootstrap()
	step := func(etcd bool) bool {
		w.s.redis.takeFiles()
		if etcd { // it reads its CAs at its start only
			w.s.restartEtcd()
		}
		return pause(ctx, settle)
	}
	was := w.authority
	w.trust(was, next)
	if !step(true) {
		return
	}
	had := w.client.Load()
	w.authority = next
	w.deal(nil)
	w.useClient()
	if !step(false) {
		return
	}
	w.trust(next)
	if !step(true) {
		return
	}
	w.stale.Store(&tls.Config{InsecureSkipVerify: true, ServerName: "127.0.0.1",
		Certificates: []tls.Certificate{*had.pair}, ClientSessionCache: had.sessions})
	w.replaced++
}

// dialing returns the TLS of a client's next connection.
func (w *wires) dialing(with identity) *tls.Config {
	c := &tls.Config{RootCAs: w.roots.Load(), ServerName: "127.0.0.1"}
	switch with {
	case own:
		is := w.client.Load()
		c.Certificates, c.ClientSessionCache = []tls.Certificate{*is.pair}, is.sessions
	case foreign:
		c.Certificates = []tls.Certificate{*w.stranger}
	case monitoring:
		f := w.files("monitor")
		if pair, err := tls.LoadX509KeyPair(f.Cert, f.Key); err == nil {
			c.Certificates = []tls.Certificate{pair}
		}
	case outdated:
		if old := w.stale.Load(); old != nil {
			return old.Clone()
		}
		c.Certificates = []tls.Certificate{*w.stranger}
	}
	return c
}

// pause waits. pause returns false once ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
