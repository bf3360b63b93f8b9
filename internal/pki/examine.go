package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/rights"
)

// Examine returns an error for each bad file in f, with the name of its field: ca, cert and key are
// these names.
func (f Files) Examine(ca, cert, key string) error {
	var errs []error
	readable := func(field, name, what string) bool {
		if name == "" {
			return false
		}
		err := rights.Readable(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w; name a PEM file with the %s", field, err, what))
		}
		return err == nil
	}
	if readable(ca, f.CA, "CA's certificate") {
		if _, err := Roots(f.CA); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w; name a PEM file with the CA's certificate", ca, err))
		}
	}
	hasCert, hasKey := readable(cert, f.Cert, "certificate"), readable(key, f.Key, "certificate's key")
	if hasCert && hasKey {
		if pair, err := f.pair(); err == nil {
			if err = ended(f.Cert, &pair, time.Now()); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w; put a new one in its place (cgn-ctl pki)", cert, err))
			}
		} else {
			errs = append(errs, fmt.Errorf("%s: %s and %s cannot be used: %w; name a PEM certificate and, with %s, "+
				"its own key", cert, f.Cert, f.Key, err, key))
		}
	}
	return errors.Join(errs...)
}

// Explain returns the error of the bad files in f, with their fields, for err from Load or
// ClientConfig. If no file is bad by itself, the result is err with the fields that are given.
func (f Files) Explain(ca, cert, key string, err error) error {
	if bad := f.Examine(ca, cert, key); bad != nil {
		return bad
	}
	var fields []string
	for _, given := range [][2]string{{ca, f.CA}, {cert, f.Cert}, {key, f.Key}} {
		if given[1] != "" {
			fields = append(fields, given[0])
		}
	}
	return fmt.Errorf("%s: %w; name PEM files that belong together", strings.Join(fields, ", "), err)
}

// CheckOwn returns an error if peers would not accept the certificate in f as that of a program
// with this role. The certificate must chain to f.CA and have the role. The certificate's validity
// period is not checked, because it may be replaced while the program runs. Errors are ErrRole,
// those of x509, and those of the files.
func (f Files) CheckOwn(role Role) error {
	m, err := read(f)
	if err != nil {
		return err
	}
	own := m.pair.Leaf
	o := x509.VerifyOptions{Roots: m.roots, Intermediates: x509.NewCertPool(),
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}, CurrentTime: own.NotAfter}
	for _, der := range m.pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			o.Intermediates.AddCert(c)
		}
	}
	if _, err := own.Verify(o); err != nil {
		return fmt.Errorf("%s is no certificate of the CA in %s: %w", f.Cert, f.CA, err)
	}
	if got := RoleOf(own); got != role {
		return fmt.Errorf("%w: %s is of the role %q, not %q", ErrRole, f.Cert, got, role)
	}
	return nil
}

// ForThisHost tells whether the certificate in a file has names, and all of them are names of
// loopback, as those of development are. ForThisHost returns false for a file that cannot be read.
func ForThisHost(certFile string) bool {
	c, err := readCertificate(certFile)
	if err != nil {
		return false
	}
	for _, name := range c.DNSNames {
		if name != "localhost" {
			return false
		}
	}
	for _, ip := range c.IPAddresses {
		if !net.IP.IsLoopback(ip) {
			return false
		}
	}
	return len(c.DNSNames)+len(c.IPAddresses) > 0
}

// AdviseHosts returns a warning if the certificate that the setting field names is for this host
// alone, and other hosts reach the address that the setting at names; else "".
func AdviseHosts(field, certFile, at, address string) string {
	if certFile == "" || !ForThisHost(certFile) {
		return ""
	}
	return fmt.Sprintf("%s: %s is for localhost alone, as in development, and other hosts reach %s, %s: make one with "+
		"the host's names by cgn-ctl pki bootstrap --host NAME,ADDRESS, or pki join", field, certFile, at, address)
}
