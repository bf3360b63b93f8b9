package pki

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	requestBlock = "CERTIFICATE REQUEST"
	maxBundle    = 1 << 20 // bytes of a request or an answer that are read
)

// ErrNotPEM means that a text is not what another step of joining has written.
var ErrNotPEM = errors.New("pki: not a sequence of PEM blocks")

// ErrRoleRefused means that a request or an answer is for a role that it may not have.
var ErrRoleRefused = errors.New("pki: the role is not allowed")

// Grant describes one certificate that Sign has made.
type Grant struct {
	Role  Role
	Hosts []string
}

// Request is the first step to join a host to a fleet whose CA is elsewhere. Request makes a
// private key for each of o.Roles in dir, and returns the bundle for Sign. Keys never leave the
// host. Request reuses a key without a certificate, from an earlier request. If there is a
// certificate, Request returns ErrExists unless o.Force is set.
func Request(dir string, o Options) ([]byte, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	var out bytes.Buffer
	for _, r := range o.Roles {
		der, err := request(FilesIn(dir, r), r, o)
		if err != nil {
			return nil, fmt.Errorf("pki: request for %s: %w", r, err)
		}
		if err := pem.Encode(&out, &pem.Block{Type: requestBlock, Bytes: der}); err != nil {
			return nil, fmt.Errorf("pki: %w", err)
		}
	}
	return out.Bytes(), nil
}

func request(f Files, role Role, o Options) ([]byte, error) {
	if _, err := os.Stat(f.Cert); err == nil && !o.Force {
		return nil, fmt.Errorf("%w: %s", ErrExists, f.Cert)
	}
	key, err := readKey(f.Key)
	if errors.Is(err, fs.ErrNotExist) {
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err == nil {
			err = writeKey(f.Key, key)
		}
	}
	if err != nil {
		return nil, err
	}
	t := leaf(role, o)
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: t.Subject, URIs: t.URIs, DNSNames: t.DNSNames, IPAddresses: t.IPAddresses,
	}, key)
}

// Sign makes a certificate for each request in a bundle of Request, with the CA in dir, and returns
// the answer for Accept. If a request's role is not in o.Roles, which the operator allows, Sign
// refuses the whole bundle. Sign ignores o.Hosts: the hosts are in the requests, and the grants
// list them.
func Sign(dir string, bundle []byte, o Options) (answer []byte, grants []Grant, err error) {
	o = o.withDefaults()
	requests, err := blocks(bundle, requestBlock)
	if err != nil {
		return nil, nil, err
	}
	a, err := existingAuthority(dir, o)
	if err != nil {
		return nil, nil, err
	}
	out := pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: a.cert.Raw})
	for _, der := range requests {
		r, err := x509.ParseCertificateRequest(der)
		if err == nil {
			err = r.CheckSignature()
		}
		if err != nil {
			return nil, nil, fmt.Errorf("pki: request: %w", err)
		}
		g := Grant{Role: RoleOf(&x509.Certificate{URIs: r.URIs}), Hosts: hostsOf(r.DNSNames, r.IPAddresses)}
		if !slices.Contains(o.Roles, g.Role) {
			return nil, nil, fmt.Errorf("%w: the request is for role %q, and only %v are to be signed",
				ErrRoleRefused, g.Role, o.Roles)
		}
		own := o
		own.Hosts = g.Hosts
		if err := own.check(); err != nil {
			return nil, nil, err
		}
		der, err := a.sign(r.PublicKey, g.Role, own)
		if err != nil {
			return nil, nil, fmt.Errorf("pki: certificate for %s: %w", g.Role, err)
		}
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: certificateBlock, Bytes: der})...)
		grants = append(grants, g)
	}
	return out, grants, nil
}

// Accept is the last step after Request. Accept checks that each certificate of the answer is
// signed by the CA in the answer, and belongs to a key in dir. Then Accept writes ca.crt and the
// certificates to dir. Accept never replaces another CA's ca.crt in dir.
func Accept(dir string, answer []byte) ([]Role, error) {
	certs, err := blocks(answer, certificateBlock)
	if err != nil {
		return nil, err
	}
	ca, err := x509.ParseCertificate(certs[0])
	if err != nil || !ca.IsCA || len(certs) < 2 {
		return nil, errors.New("pki: the answer is not a CA certificate followed by signed ones: give what sign wrote")
	}
	caFile := filepath.Join(dir, "ca.crt")
	switch was, err := readCertificate(caFile); {
	case err == nil && !was.Equal(ca):
		return nil, fmt.Errorf("%w: %s is another fleet's CA; give another directory", ErrExists, caFile)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("pki: %s: %w", caFile, err)
	}
	var roles []Role
	for _, der := range certs[1:] {
		role, err := acceptable(dir, ca, der)
		if err != nil {
			return nil, fmt.Errorf("pki: answer: %w", err)
		}
		roles = append(roles, role)
	}
	err = writePEM(caFile, certificateBlock, ca.Raw)
	for i, role := range roles {
		err = errors.Join(err, writePEM(FilesIn(dir, role).Cert, certificateBlock, certs[1+i]))
	}
	return roles, err
}

// acceptable returns the role of a signed certificate that belongs to a key in dir.
func acceptable(dir string, ca *x509.Certificate, der []byte) (Role, error) {
	cert, err := x509.ParseCertificate(der)
	if err == nil {
		err = cert.CheckSignatureFrom(ca)
	}
	if err != nil {
		return "", err
	}
	role := RoleOf(cert)
	if !slices.Contains(Options{}.withDefaults().Roles, role) {
		return "", fmt.Errorf("%w: %q", ErrRoleRefused, role)
	}
	key, err := readKey(FilesIn(dir, role).Key)
	if err != nil {
		return "", fmt.Errorf("no key of role %s here: %w", role, err)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return "", fmt.Errorf("the certificate of role %s is for another key than %s", role, FilesIn(dir, role).Key)
	}
	return role, nil
}

// blocks returns the contents of the PEM blocks of one kind. text must contain at least one such
// block, and nothing else.
func blocks(text []byte, kind string) (out [][]byte, err error) {
	if len(text) > maxBundle {
		return nil, fmt.Errorf("pki: %d bytes; at most %d are read", len(text), maxBundle)
	}
	for {
		b, rest := pem.Decode(text)
		if b == nil {
			break
		}
		if b.Type != kind {
			return nil, fmt.Errorf("%w %q: one is %q", ErrNotPEM, kind, b.Type)
		}
		out, text = append(out, b.Bytes), rest
	}
	if len(out) == 0 || len(strings.TrimSpace(string(text))) > 0 {
		return nil, fmt.Errorf("%w %q", ErrNotPEM, kind)
	}
	return out, nil
}

func hostsOf(names []string, addresses []net.IP) []string {
	hosts := slices.Clone(names)
	for _, ip := range addresses {
		hosts = append(hosts, ip.String())
	}
	return hosts
}
