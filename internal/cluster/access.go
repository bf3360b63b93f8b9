package cluster

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cognitora/dataplane/internal/pki"
)

// Access is the [etcd] section of a configuration: where etcd is, and the files that open it. Without endpoints etcd is
// not used. A CA alone checks etcd's certificate and shows none.
type Access struct {
	Endpoints    []string `toml:"endpoints" flag:"etcd" help:"etcd client URLs; empty: etcd is not used"`
	CA           string   `toml:"ca" help:"PEM file that etcd's certificate is checked against; the system's when empty"`
	Cert         string   `toml:"cert" help:"client certificate for etcd"`
	Key          string   `toml:"key" help:"key of the client certificate"`
	Username     string   `toml:"username" help:"etcd user"`
	PasswordFile string   `toml:"password_file" help:"file with the etcd user's password"`
}

// Validate names the half of a pair that is missing.
func (a *Access) Validate() error {
	var errs []error
	pair := func(first, second, name, other string) {
		if (first == "") != (second == "") {
			errs = append(errs, fmt.Errorf("etcd.%s and etcd.%s go together; give both or neither", name, other))
		}
	}
	pair(a.Cert, a.Key, "cert", "key")
	pair(a.Username, a.PasswordFile, "username", "password_file")
	return errors.Join(errs...)
}

// Config reads the files that a names.
func (a *Access) Config() (Config, error) {
	c := Config{Endpoints: a.Endpoints, Username: a.Username}
	if err := a.Validate(); err != nil {
		return c, err
	}
	if a.PasswordFile != "" {
		secret, err := os.ReadFile(a.PasswordFile)
		if err != nil {
			return c, fmt.Errorf("etcd.password_file: %w", err)
		}
		c.Password = strings.TrimSpace(string(secret))
	}
	if a.CA == "" && a.Cert == "" {
		return c, nil
	}
	var err error
	if c.TLS, err = pki.Service(pki.Files{CA: a.CA, Cert: a.Cert, Key: a.Key}); err != nil {
		return c, fmt.Errorf("etcd.ca, etcd.cert, etcd.key: %w", err)
	}
	return c, nil
}
