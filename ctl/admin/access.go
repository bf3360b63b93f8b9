package admin

import (
	"crypto/x509"
	"errors"
	"net/http"
	"strings"

	"github.com/spf13/pflag"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/apikey"
	"github.com/cognitora/dataplane/internal/pki"
)

// Environment variables for flags, and for the key itself, which belongs into no command line.
const (
	Variable   = "CGN_ADMIN"
	envCA      = "CGN_ADMIN_CA"
	envCert    = "CGN_ADMIN_CERT"
	envKey     = "CGN_ADMIN_KEY"
	envAPIKey  = "CGN_API_KEY"
	envKeyFile = "CGN_API_KEY_FILE"
)

// Variables returns the names of all environment variables for a Port.
func Variables() []string { return []string{Variable, envCA, envCert, envKey, envAPIKey, envKeyFile} }

// access is how a Port's client shows who it is.
type access struct {
	files   pki.Files
	keyFile string
	key     string       // from the environment; keyFile comes first
	client  *http.Client // nil until the first request
}

// flags defines the flags for certificates and the API key.
func (x *access) flags(flags *pflag.FlagSet, getenv func(string) string) {
	file := func(into *string, flag, variable, help string) {
		flags.StringVar(into, flag, getenv(variable), help+" (env "+variable+")")
	}
	file(&x.files.CA, "admin-ca", envCA, "PEM file that the certificate of an https --admin is checked against; none: "+
		"the system's")
	file(&x.files.Cert, "admin-cert", envCert, "own certificate for the admin port, of the role ctl")
	file(&x.files.Key, "admin-key", envKey, "key of the certificate")
	file(&x.keyFile, "api-key-file", envKeyFile, "file with the API key for the admin port, with the scope admin.read or "+
		"admin.write; the key itself can be in "+envAPIKey)
	x.key = getenv(envAPIKey)
}

// scheme is that of an address without one.
func (x *access) scheme() string {
	if x.files != (pki.Files{}) {
		return "https://"
	}
	return "http://"
}

// open reads the files, once. The port's certificate must be valid for the host.
func (x *access) open(host string) error {
	if x.client != nil {
		return nil
	}
	if x.keyFile != "" {
		key, err := apikey.Read(x.keyFile)
		if err != nil {
			return cli.WithHint(err, "--api-key-file and "+envKeyFile+" name a file with the key that cgn-ctl key "+
				"create has printed")
		}
		x.key = key
	} else if x.key != "" {
		key, err := apikey.Parse(envAPIKey, x.key)
		if err != nil {
			return cli.WithHint(err, "set it to the key that cgn-ctl key create has printed")
		}
		x.key = key
	}
	client := http.DefaultClient
	if x.files != (pki.Files{}) {
		id, err := pki.Load(x.files)
		if err != nil {
			return x.files.Explain("--admin-ca", "--admin-cert", "--admin-key", err)
		}
		client = &http.Client{Transport: &http.Transport{TLSClientConfig: id.Outside(host), DisableKeepAlives: true}}
	}
	x.client = client
	return nil
}

// do sends a request with the key.
func (x *access) do(req *http.Request) (*http.Response, error) {
	if x.key != "" {
		req.Header.Set("Authorization", "Bearer "+x.key)
	}
	return x.client.Do(req)
}

// unreached returns the hint for a request without an answer.
func unreached(err error) string {
	if _, untrusted := errors.AsType[x509.UnknownAuthorityError](err); untrusted {
		return "name the CA of the admin port's certificate with --admin-ca FILE or " + envCA + "."
	}
	if strings.Contains(err.Error(), "server gave HTTP response to HTTPS client") {
		return "that port speaks plain HTTP: give http://HOST:PORT, and no --admin-ca, --admin-cert or --admin-key."
	}
	return "is a router running? Give its admin address with --admin HOST:PORT or " + Variable + " (cgn-router --admin, " +
		"cgn-ctl up)."
}

// denied returns the hint for an answer with this status; "": none.
func denied(status int, text string) string {
	switch {
	case status == http.StatusUnauthorized || status == http.StatusForbidden:
		return "give an API key with the scope admin.read, or admin.write to change something, with --api-key-file FILE " +
			"or " + envAPIKey + " (cgn-ctl key create --scope admin.read); or a certificate of the role ctl with " +
			"--admin-cert and --admin-key."
	case status == http.StatusBadRequest && strings.Contains(text, "HTTP request to an HTTPS server"):
		return "that port speaks TLS: give https://HOST:PORT, and its CA with --admin-ca FILE."
	}
	return ""
}
