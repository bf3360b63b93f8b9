package doctor

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/internal/rights"
)

// Severities. Only severe findings make the command fail.
const (
	severe  = "error"
	warning = "warning"
)

var severities = []string{severe, warning}

// Kinds of findings.
const (
	kindConfig      = "config"      // the daemon refuses the file
	kindOpen        = "open"        // other hosts get in without authentication
	kindPlaintext   = "plaintext"   // others on the network can read along
	kindCertificate = "certificate" // not usable, ended, or ends soon
	kindDevelopment = "development" // a certificate for this host alone, used beyond it
	kindReadable    = "readable"    // other users of this host can read or change the file
	kindUnseen      = "unseen"      // the file cannot be examined
	kindClock       = "clock"
)

// finding is one hole.
type finding struct {
	Severity string `json:"severity"`
	Kind     string `json:"kind"`
	File     string `json:"file"`
	Field    string `json:"field"` // empty: the whole file, or the host
	Problem  string `json:"problem"`
	Fix      string `json:"fix"`
}

// certificate is one that a configuration names. Until is the earliest end in its file.
type certificate struct {
	Field string    `json:"field"`
	File  string    `json:"file"`
	Until time.Time `json:"until"`
}

// exam collects the findings of one configuration file.
type exam struct {
	now      time.Time
	file     string
	findings []finding
	checked  checked
	seen     map[string]bool // files whose mode has been examined
	read     map[string]bool // certificates that have been examined; true: usable
}

func (e *exam) add(severity, kind, field, problem, fix string) {
	e.findings = append(e.findings, finding{severity, kind, e.file, field, problem, fix})
}

// listener is an address that a daemon listens on.
type listener struct {
	field, address string
	authenticates  bool   // clients need a key, a password or a certificate
	encrypted      bool   // TLS or QUIC
	fix            string // what lets only known clients in
	cert           string // file of the certificate; empty: none
}

// listen examines an address that other hosts may reach. An empty address is none.
func (e *exam) listen(l listener) {
	if l.address == "" {
		return
	}
	e.checked.Listeners++
	if listen.Loopback(l.address) {
		return
	}
	switch {
	case !l.authenticates:
		e.add(severe, kindOpen, l.field, fmt.Sprintf("%q lets clients of other hosts in without a key or a certificate",
			l.address), "listen on loopback, or "+l.fix)
	case !l.encrypted:
		e.add(severe, kindPlaintext, l.field, fmt.Sprintf("%q takes keys and passwords of other hosts without TLS",
			l.address), "listen on loopback, or "+l.fix)
	}
	if l.encrypted && pki.ForThisHost(l.cert) {
		e.add(severe, kindDevelopment, l.field, fmt.Sprintf("other hosts reach %q, and its certificate %s is for "+
			"localhost alone, as in development", l.address, l.cert),
			"make one with the host's names: cgn-ctl pki bootstrap --host NAME,ADDRESS, or pki join")
	}
}

// prompts are what a connection to an engine carries.
const prompts = "prompts and answers"

// dial examines the URL of a server that a daemon connects to. The connection carries what carries
// names, in the plural, and with secret a key or a password too.
func (e *exam) dial(field, url, carries string, secret bool, fix string) {
	if url == "" {
		return
	}
	e.checked.Connections++
	at, err := address.Parse(url)
	if err != nil || at.TLS || at.Network == "unix" || listen.Loopback(at.Addr) {
		return
	}
	e.crosses(field, url, carries, secret, fix)
}

// crosses reports a connection without encryption, as dial does.
func (e *exam) crosses(field, to, carries string, secret bool, fix string) {
	severity, what := warning, carries+" cross"
	if secret {
		severity, what = severe, "a key, with "+carries+", crosses"
	}
	e.add(severity, kindPlaintext, field, fmt.Sprintf("%s: %s the network without encryption", to, what), fix)
}

// events examines the address of an engine's KV events, which have no encryption.
func (e *exam) events(field, endpoint string) {
	hostPort, isTCP := strings.CutPrefix(strings.TrimPrefix(endpoint, "@"), "tcp://")
	if endpoint == "" {
		return
	}
	e.checked.Connections++
	if isTCP && !listen.Loopback(hostPort) {
		e.add(warning, kindPlaintext, field, fmt.Sprintf("%s: KV events, which contain the prompts' tokens, cross the "+
			"network without encryption", endpoint), "run cgn-agent on the engine's host, which reports them by mTLS")
	}
}

// etcd examines the section [etcd]. beyond says that the etcd is on another host.
func (e *exam) etcd(a *cluster.Access) (beyond bool) {
	for i, endpoint := range a.Endpoints {
		e.checked.Connections++
		rest, secure := strings.CutPrefix(endpoint, "https://")
		rest, plain := strings.CutPrefix(rest, "http://")
		if !secure && !plain {
			secure = a.CA != "" || a.Cert != ""
		}
		if strings.HasPrefix(rest, "unix") || listen.Loopback(strings.TrimSuffix(rest, "/")) {
			continue
		}
		beyond = true
		if !secure {
			e.add(severe, kindPlaintext, fmt.Sprintf("etcd.endpoints[%d]", i), address.Redact(endpoint)+": whoever is "+
				"on the network can read and change the fleet's state",
				"write https://, and set etcd.ca, etcd.cert and etcd.key; cgn-ctl pki bootstrap makes them")
		}
	}
	if beyond && a.Cert == "" && a.Username == "" {
		e.add(severe, kindOpen, "etcd.cert", "etcd is used without a client certificate or a user, so it lets everybody "+
			"change the fleet's state", "set etcd.cert and etcd.key, and start etcd with --client-cert-auth")
	}
	e.files(pki.Files{CA: a.CA, Cert: a.Cert, Key: a.Key}, "etcd.ca", "etcd.cert", "etcd.key", "")
	e.secret("etcd.password_file", a.PasswordFile)
	return beyond
}

// secret examines who may read a file with a key or a password. An empty name is none.
func (e *exam) secret(field, name string) {
	if name == "" {
		return
	}
	e.checked.Secrets++
	e.mode(field, name, 0o027, "read or change")
	e.kept(field, name)
}

// kept reports a file that every user can replace.
func (e *exam) kept(field, name string) {
	if err := rights.Kept(name); err != nil {
		e.add(severe, kindReadable, field, err.Error(), "make the directory writable by its owner only")
	}
}

// mode reports a file whose mode has any of the bits in forbidden.
func (e *exam) mode(field, name string, forbidden fs.FileMode, verb string) {
	if e.seen[name] {
		return
	}
	e.seen[name] = true
	info, err := os.Stat(name)
	if err != nil {
		e.missing(field, err)
		return
	}
	if bits := info.Mode().Perm(); bits&forbidden != 0 {
		e.add(severe, kindReadable, field, fmt.Sprintf("%s has the mode %#o, so other users can %s it", name, bits,
			verb), fmt.Sprintf("chmod %#o %s", bits&^forbidden, name))
	}
}

// credentials is the folder where systemd shows files to a running unit.
const credentials = "/run/credentials/"

// missing reports a file that cannot be examined.
func (e *exam) missing(field string, err error) {
	var at *fs.PathError
	if errors.As(err, &at) && strings.HasPrefix(at.Path, credentials) {
		e.add(warning, kindUnseen, field, err.Error(), "run doctor as root while the unit runs, and see that the unit "+
			"has a LoadCredential= for the file: systemd shows it only then")
		return
	}
	if errors.Is(err, fs.ErrPermission) {
		e.add(warning, kindUnseen, field, err.Error(), "run doctor as root, which can examine it")
		return
	}
	e.add(severe, kindUnseen, field, err.Error(), "name a file that exists")
}

// files examines a certificate, its key and its CA, and the role that peers demand of the
// certificate. role is empty if they demand none. ca, cert and key are the fields' names.
func (e *exam) files(f pki.Files, ca, cert, key string, role pki.Role) {
	e.secret(key, f.Key)
	usable := e.expiry(ca, f.CA)
	usable = e.expiry(cert, f.Cert) && usable // an ended CA does not hide an ended certificate
	if f.CA != "" {
		e.authority(ca, filepath.Join(filepath.Dir(f.CA), "ca.key"))
	}
	if _, err := os.Stat(f.Key); !usable || f.Cert == "" || err != nil {
		return
	}
	if err := f.Examine(ca, cert, key); err != nil {
		e.add(severe, kindCertificate, cert, err.Error(), "name a certificate and its own key")
		return
	}
	if role == "" || f.CA == "" {
		return
	}
	if err := f.CheckOwn(role); err != nil {
		e.add(severe, kindCertificate, cert, err.Error(), fmt.Sprintf("cgn-ctl pki bootstrap or join, with --role %s, "+
			"makes one", role))
	}
}

// authority warns of the CA's key beside the CA's certificate.
func (e *exam) authority(field, name string) {
	if _, err := os.Stat(name); err == nil && !e.seen[name] {
		e.checked.Secrets++
		e.mode(field, name, 0o077, "read or change")
		e.kept(field, name)
		e.add(warning, kindReadable, field, name+" signs certificates of every role, and a daemon does not need it",
			"keep it where certificates are made, and off the other hosts")
	}
}

// soon is the remaining life of a certificate below which it is reported.
const soon = 30 * 24 * time.Hour

// expiry examines the validity period of each certificate in a PEM file, and tells whether the file
// could be read and none has ended. An empty name is no file.
func (e *exam) expiry(field, name string) (usable bool) {
	if name == "" {
		return true
	}
	if usable, examined := e.read[name]; examined {
		return usable
	}
	defer func() { e.read[name] = usable }()
	certs, err := readCertificates(name)
	if err != nil {
		if _, ok := errors.AsType[*fs.PathError](err); ok {
			e.missing(field, err)
		} else {
			e.add(severe, kindCertificate, field, err.Error(), "name a PEM file with a certificate")
		}
		return false
	}
	until := certs[0].NotAfter
	for _, c := range certs {
		if c.NotAfter.Before(until) {
			until = c.NotAfter
		}
		if c.NotBefore.After(e.now) {
			e.add(severe, kindClock, field, fmt.Sprintf("%s is valid only from %s on", name,
				c.NotBefore.Format(time.RFC3339)), "set the clocks of this host and of the host that made it")
		}
	}
	e.checked.Certificates = append(e.checked.Certificates, certificate{field, name, until})
	renew := "make a new one with cgn-ctl pki bootstrap --force or join --force; daemons take it without a restart"
	if strings.HasPrefix(name, credentials) {
		renew = "make a new one with cgn-ctl pki bootstrap --force or join --force, and restart the unit: systemd copies " +
			"the file at the start"
	}
	switch left := until.Sub(e.now); {
	case left <= 0:
		e.add(severe, kindCertificate, field, fmt.Sprintf("%s ended on %s", name, until.Format(time.DateOnly)), renew)
		return false
	case left < soon:
		e.add(warning, kindCertificate, field, fmt.Sprintf("%s ends on %s, in %d days", name,
			until.Format(time.DateOnly), int(left.Hours()/24)), renew)
	}
	return true
}

// readCertificates returns the certificates in a PEM file, at least one.
func readCertificates(name string) ([]*x509.Certificate, error) {
	text, err := rights.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var certs []*x509.Certificate
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, fmt.Errorf("%s holds no certificate", name)
	}
	return certs, nil
}
