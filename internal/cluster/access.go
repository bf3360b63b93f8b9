package cluster

import (
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/internal/rights"
)

// Access is the [etcd] section of a configuration: the endpoints, and the files of credentials.
// Without endpoints etcd is not used. With only a CA, etcd's certificate is checked, and the client
// shows none.
type Access struct {
	Endpoints    []string `toml:"endpoints" flag:"etcd" env:"CGN_ETCD" help:"etcd client URLs; empty: etcd is not used"`
	CA           string   `toml:"ca" help:"PEM file of the CA that etcd's certificate must chain to; empty: the system's CAs"`
	Cert         string   `toml:"cert" help:"client certificate for etcd"`
	Key          string   `toml:"key" help:"key of the client certificate"`
	Username     string   `toml:"username" help:"etcd user"`
	PasswordFile string   `toml:"password_file" help:"file with the etcd user's password"`
}

// Validate returns an error if half of a pair is missing.
func (a *Access) Validate() error {
	var errs []error
	pair := func(first, second, name, other string) {
		if (first == "") != (second == "") {
			errs = append(errs, fmt.Errorf("etcd.%s and etcd.%s go together; give both or neither", name, other))
		}
	}
	pair(a.Cert, a.Key, "cert", "key")
	pair(a.Username, a.PasswordFile, "username", "password_file")
	for i, e := range a.Endpoints {
		if err := checkEndpoint(e); err != nil {
			errs = append(errs, fmt.Errorf("etcd.endpoints[%d]: %w", i, err))
		}
	}
	return errors.Join(errs...)
}

// checkEndpoint accepts the forms of etcd's client: host:port, http://host:port, https://host:port
// or a socket.
func checkEndpoint(endpoint string) error {
	rest, isURL := endpoint, false
	for _, scheme := range []string{"http://", "https://"} {
		if after, ok := strings.CutPrefix(endpoint, scheme); ok {
			rest, isURL = strings.TrimSuffix(after, "/"), true
		}
	}
	if !isURL && (strings.HasPrefix(rest, "unix:") || strings.HasPrefix(rest, "unixs:")) {
		return nil
	}
	host, port, err := net.SplitHostPort(rest)
	if n, portErr := net.LookupPort("tcp", port); err != nil || host == "" || portErr != nil || n == 0 {
		return fmt.Errorf("%q is not an address of etcd; use host:port or https://host:port, usually with port 2379",
			address.Redact(endpoint))
	}
	return nil
}

// Examine returns an error for each bad file in a, with its field.
func (a *Access) Examine() error {
	errs := []error{pki.Files{CA: a.CA, Cert: a.Cert, Key: a.Key}.Examine("etcd.ca", "etcd.cert", "etcd.key")}
	if a.PasswordFile != "" {
		if err := rights.Readable(a.PasswordFile); err != nil {
			errs = append(errs, fmt.Errorf("etcd.password_file: %w; name a file that holds the password of "+
				"etcd.username", err))
		}
	}
	return errors.Join(errs...)
}

// Config reads the files of a and returns the client's configuration.
func (a *Access) Config() (Config, error) {
	c := Config{Endpoints: a.Endpoints, Username: a.Username}
	if err := a.Validate(); err != nil {
		return c, err
	}
	if a.PasswordFile != "" {
		secret, err := rights.ReadFile(a.PasswordFile)
		if err != nil {
			return c, fmt.Errorf("etcd.password_file: %w", err)
		}
		c.Password = strings.TrimSpace(string(secret))
	}
	if a.CA == "" && a.Cert == "" {
		return c, nil
	}
	files := pki.Files{CA: a.CA, Cert: a.Cert, Key: a.Key}
	var err error
	if c.TLS, err = pki.Load(files); err != nil {
		return c, files.Explain("etcd.ca", "etcd.cert", "etcd.key", err)
	}
	return c, nil
}
