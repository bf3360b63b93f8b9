package pki

import (
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/internal/rights"
)

// Examine says what is wrong with the files that f names, each problem with the
// field that named it: ca, cert and key are what those are called.
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
		if _, err := tls.LoadX509KeyPair(f.Cert, f.Key); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s and %s cannot be used: %w; name a PEM certificate and, with %s, its own key", cert, f.Cert, f.Key, err, key))
		}
	}
	return errors.Join(errs...)
}
