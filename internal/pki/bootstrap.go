// Package pki makes and uses the fleet's certificates: one private CA, one
// certificate per role, and TLS configurations that follow the files on disk.
//
// A certificate states its holder's role in a URI SAN such as spiffe://cognitora/role/router.
// Programs accept a peer by its role, so a valid certificate of another role is refused.
package pki

import (
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Role is the role of a certificate's holder.
type Role string

// Roles that Bootstrap knows.
const (
	Router   Role = "router"
	Agent    Role = "agent"
	KVCached Role = "kvcached"
	Ctl      Role = "ctl"
	Etcd     Role = "etcd"
	Monitor  Role = "monitor" // reads admin ports, and may do nothing else
)

// Roles returns every role that Bootstrap knows.
func Roles() []Role { return []Role{Router, Agent, KVCached, Ctl, Etcd, Monitor} }

// Defaults of Options, and how far certificates are backdated. Backdating lets hosts whose clocks
// differ a little accept them immediately.
const (
	DefaultCALifetime = 10 * 365 * 24 * time.Hour
	DefaultLifetime   = 397 * 24 * time.Hour
	backdate          = 5 * time.Minute
)

// ErrExists means that Bootstrap would have replaced a file.
var ErrExists = errors.New("pki: file exists")

// Files names the PEM files one program needs.
type Files struct {
	CA   string // certificates that peers must chain to; empty: no peer is accepted
	Cert string // own certificate, followed by any intermediates
	Key  string // private key of Cert
}

// FilesIn returns the paths of a role's files in dir, as Bootstrap names them.
func FilesIn(dir string, role Role) Files {
	return Files{
		CA:   filepath.Join(dir, "ca.crt"),
		Cert: filepath.Join(dir, string(role)+".crt"),
		Key:  filepath.Join(dir, string(role)+".key"),
	}
}

// Options of Bootstrap. The zero value makes every role for this host only.
type Options struct {
	Hosts      []string      // DNS names and IP addresses; default localhost, 127.0.0.1, ::1
	Roles      []Role        // default Roles()
	CALifetime time.Duration // default DefaultCALifetime
	Lifetime   time.Duration // default DefaultLifetime, never beyond the CA's end
	Force      bool          // replace the roles' files, but never the CA's
	Now        time.Time     // default time.Now()
}

func (o Options) withDefaults() Options {
	if len(o.Hosts) == 0 {
		o.Hosts = []string{"localhost", "127.0.0.1", "::1"}
	}
	if len(o.Roles) == 0 {
		o.Roles = Roles()
	}
	o.CALifetime, o.Lifetime = cmp.Or(o.CALifetime, DefaultCALifetime), cmp.Or(o.Lifetime, DefaultLifetime)
	if o.Now.IsZero() {
		o.Now = time.Now()
	}
	return o
}

// Bootstrap writes ca.crt, ca.key, and <role>.crt and <role>.key for each role into dir, which it
// creates with mode 0700. Every new file has mode 0600, and a replaced one keeps the right of its
// group to read.
//
// If dir has a CA already, this CA signs the new certificates and is never replaced. So a second
// call with other Roles extends a fleet. If a role's file exists, Bootstrap returns
// ErrExists before it writes anything, unless Force is set.
func Bootstrap(dir string, o Options) error {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("pki: %w", err)
	}
	if err := refuseExisting(dir, o); err != nil {
		return err
	}
	a, err := loadOrCreateAuthority(dir, o)
	if err != nil {
		return err
	}
	for _, r := range o.Roles {
		if err := a.issue(FilesIn(dir, r), r, o); err != nil {
			return fmt.Errorf("pki: certificate for %s: %w", r, err)
		}
	}
	return nil
}

// check returns an error for an invalid role or host.
func (o Options) check() error {
	for _, r := range o.Roles {
		if !slices.Contains(Roles(), r) {
			return fmt.Errorf("pki: unknown role %q: use one of %s", r,
				strings.Trim(strings.ReplaceAll(fmt.Sprint(Roles()), " ", ", "), "[]"))
		}
	}
	for _, h := range o.Hosts {
		if net.ParseIP(h) == nil && !isName(h) {
			return fmt.Errorf("pki: host %q is neither a DNS name nor an address: give names like gpu1.example or "+
				"*.example, and addresses like 10.0.0.7", h)
		}
	}
	return nil
}

// isName tells whether host can be a DNS name: labels of letters, digits, - and _. Only the first
// label may be *.
func isName(host string) bool {
	if host == "" || len(host) > 253 {
		return false
	}
	for i, label := range strings.Split(host, ".") {
		if i == 0 && label == "*" && strings.Contains(host, ".") {
			continue
		}
		wrong := func(r rune) bool {
			return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
		}
		if label == "" || len(label) > 63 || label[0] == '-' || strings.ContainsFunc(label, wrong) {
			return false
		}
	}
	return true
}

func refuseExisting(dir string, o Options) error {
	if o.Force {
		return nil
	}
	for _, r := range o.Roles {
		f := FilesIn(dir, r)
		for _, name := range []string{f.Cert, f.Key} {
			if _, err := os.Stat(name); err == nil {
				return fmt.Errorf("%w: %s", ErrExists, name)
			}
		}
	}
	return nil
}

// authority is the CA certificate with its private key.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func loadOrCreateAuthority(dir string, o Options) (*authority, error) {
	certFile, keyFile := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	a, err := existingAuthority(dir, o)
	if errors.Is(err, fs.ErrNotExist) {
		return createAuthority(certFile, keyFile, o)
	}
	return a, err
}

// existingAuthority returns the CA in dir. existingAuthority fails if the CA has expired.
func existingAuthority(dir string, o Options) (*authority, error) {
	a, err := loadAuthority(filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("pki: no CA in %s: %w", dir, err)
	case err != nil:
		return nil, fmt.Errorf("pki: the CA in %s cannot be used: %w", dir, err)
	case !o.Now.Before(a.cert.NotAfter):
		return nil, fmt.Errorf("pki: the CA in %s ended on %s: move ca.crt and ca.key away to make a new one",
			dir, a.cert.NotAfter.Format(time.DateOnly))
	}
	return a, nil
}

// loadAuthority returns fs.ErrNotExist only if both files are missing. A key or certificate alone
// is another error, because it is an accident and not a new fleet.
func loadAuthority(certFile, keyFile string) (*authority, error) {
	_, certErr := os.Stat(certFile)
	_, keyErr := os.Stat(keyFile)
	if (certErr == nil) != (keyErr == nil) {
		return nil, fmt.Errorf("only one of %s and %s is there", certFile, keyFile)
	}
	cert, err := readCertificate(certFile)
	if err != nil {
		return nil, err
	}
	key, err := readKey(keyFile)
	if err != nil {
		return nil, err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("%s is not the key of %s", keyFile, certFile)
	}
	return &authority{cert, key}, nil
}

func createAuthority(certFile, keyFile string, o Options) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{Organization: []string{"Cognitora"}, CommonName: "Cognitora fleet CA"},
		NotBefore:             o.Now.Add(-backdate),
		NotAfter:              o.Now.Add(o.CALifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("pki: CA certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("pki: CA certificate: %w", err)
	}
	if err := writePair(certFile, keyFile, der, key); err != nil {
		return nil, fmt.Errorf("pki: CA: %w", err)
	}
	return &authority{cert, key}, nil
}

func (a *authority) issue(f Files, role Role, o Options) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := a.sign(&key.PublicKey, role, o)
	if err != nil {
		return err
	}
	return writePair(f.Cert, f.Key, der, key)
}

// sign makes the certificate of a role for the holder of public's private key.
func (a *authority) sign(public any, role Role, o Options) ([]byte, error) {
	end := o.Now.Add(o.Lifetime)
	if end.After(a.cert.NotAfter) {
		end = a.cert.NotAfter
	}
	template := leaf(role, o)
	template.NotBefore, template.NotAfter = o.Now.Add(-backdate), end
	return x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
}

// leaf returns the template of a role's certificate.
func leaf(role Role, o Options) *x509.Certificate {
	template := &x509.Certificate{
		Subject: pkix.Name{Organization: []string{"Cognitora"}, OrganizationalUnit: []string{string(role)},
			CommonName: "cgn-" + string(role)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: usages(role),
		URIs:        []*url.URL{roleURI(role)},
	}
	for _, h := range o.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	return template
}

// usages lets every daemon both listen and dial; ctl only dials.
func usages(role Role) []x509.ExtKeyUsage {
	if role == Ctl {
		return []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	}
	return []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
}

func roleURI(role Role) *url.URL {
	return &url.URL{Scheme: "spiffe", Host: "cognitora", Path: "/role/" + string(role)}
}

// RoleOf returns the role in cert, or "".
func RoleOf(cert *x509.Certificate) Role {
	for _, u := range cert.URIs {
		if u.Scheme == "spiffe" && u.Host == "cognitora" && len(u.Path) > len("/role/") && u.Path[:6] == "/role/" {
			return Role(u.Path[6:])
		}
	}
	return ""
}
