package router

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/cognitora/dataplane/router/auth"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/isolation"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/limits/shared"
	"github.com/cognitora/dataplane/router/trust"
)

// AuthConfig says who may use the serving port.
type AuthConfig struct {
	KeysFile     string              `toml:"keys_file" empty:"refused" flag:"keys-file" help:"file with the API keys that clients may use, as cgn-ctl key create --keys-file writes it; it has the keys' hashes, and only its owner and its group may read it; read again every 2 s. Left out: no file. Without keys_file, keys_etcd, oidc and certificate clients need not say who they are"`
	KeysEtcd     bool                `toml:"keys_etcd" default:"false" flag:"keys-etcd" help:"take the API keys that clients may use from etcd, where cgn-ctl key create stores them; a revoked key ends at once on all routers. While etcd is away the keys known last count on"`
	Revoked      string              `toml:"revoked" default:"end" oneof:"end|finish" help:"what becomes of the running requests of a key that is revoked: end breaks them off, finish lets them finish"`
	OIDC         OIDCConfig          `toml:"oidc" help:"Tokens of an OpenID Connect provider, in place of API keys or beside them (docs/auth.md). Without issuer no token counts."`
	Certificates []CertificateConfig `toml:"certificate" help:"rights of clients that show a certificate of tls.client_ca and neither a key nor a token, one table each"`

	Isolation           string `toml:"isolation" default:"none" flag:"isolation" oneof:"none|tenant|key" help:"who shares cached prompts; none: all clients; tenant: the keys of one tenant; key: nobody, each key has its own. Then nobody learns from the time of an answer what others have asked (docs/auth.md). The router gives engines a cache_salt; it says which engines do not obey one. Needs keys, tokens or certificates with rights, and isolation_secret_file"`
	IsolationSecretFile string `toml:"isolation_secret_file" empty:"refused" flag:"isolation-secret-file" help:"file with a secret of at least 32 bytes, the same for all routers of a fleet, from which the salts of tenants and keys follow; only its owner and its group may read it. Another secret makes all cached prompts unknown. Read at the start"`
}

// CertificateConfig maps a client certificate.
type CertificateConfig struct {
	Name        string `toml:"name" help:"a URI or DNS name of the certificate, such as spiffe://acme/ci; its common name if it has none of these"`
	GrantConfig `toml:",inline"`
}

// GrantConfig has rights.
type GrantConfig struct {
	Tenant string   `toml:"tenant" default:"" help:"tenant; empty: default, or for a group that of tenant_claim"`
	Scopes []string `toml:"scopes" default:"inference,models" help:"rights: inference, models, route.pin, admin.read, admin.write, act_as"`
	Models []string `toml:"models" help:"models that may be used, by the names that clients ask for; a name may end with *; empty: all"`
}

// grant returns the rights, whose check has passed.
func (g *GrantConfig) grant() trust.Grant {
	scopes, _ := trust.ParseScopes(g.Scopes)
	return trust.Grant{Tenant: g.Tenant, Scopes: scopes, Models: trust.NewModelList(g.Models)}
}

// on says whether clients must say who they are.
func (a *AuthConfig) on() bool { return a.keyed() || a.OIDC.Issuer != "" || len(a.Certificates) > 0 }

// noIdentities is the result of identities if any client may ask.
const noIdentities = "none"

// identities says how clients of the serving port say who they are: none, or some of keys, oidc and
// certificates with commas between.
func (c *Config) identities() string {
	var all []string
	for _, way := range []struct {
		name string
		on   bool
	}{
		{"keys", c.Auth.keyed()}, {"oidc", c.Auth.OIDC.Issuer != ""}, {"certificates", c.TLS.ClientCA != ""},
	} {
		if way.on {
			all = append(all, way.name)
		}
	}
	return cmp.Or(strings.Join(all, ","), noIdentities)
}

// keyed says whether API keys count.
func (a *AuthConfig) keyed() bool { return a.KeysFile != "" || a.KeysEtcd }

func (c *Config) validateAuth(bad problem) {
	a := &c.Auth
	if a.KeysFile != "" && a.KeysEtcd {
		bad("auth.keys_etcd", "cannot be set beside auth.keys_file; keys come from one of them")
	}
	if a.KeysEtcd && len(c.Etcd.Endpoints) == 0 {
		bad("auth.keys_etcd", "needs etcd.endpoints (--etcd)")
	}
	if len(a.Certificates) > 0 && c.TLS.ClientCA == "" {
		bad("auth.certificate", "needs tls.client_ca, which signs the clients' certificates")
	}
	if a.on() && !a.keyed() && a.OIDC.Issuer == "" && !c.AdminTLS.Certified() {
		bad("auth.certificate", "needs admin_tls.client_ca, API keys or auth.oidc beside it; otherwise nobody may use "+
			"the admin port")
	}
	seen := map[string]bool{}
	for i, table := range a.Certificates {
		table.validate(fmt.Sprintf("auth.certificate[%d]", i), table.Name, seen, bad)
	}
	a.OIDC.validate(bad)
	switch isolates := a.Isolation != "none"; {
	case isolates && !a.on():
		bad("auth.isolation", "needs to know whose requests are whose: set auth.keys_file, auth.keys_etcd, auth.oidc or auth.certificate")
	case isolates && a.IsolationSecretFile == "":
		bad("auth.isolation_secret_file", "is needed for auth.isolation; make the file by: "+makeSecret)
	}
}

// validate checks the rights of a table with this name. seen has the names of the tables before.
func (g *GrantConfig) validate(field, name string, seen map[string]bool, bad problem) {
	if name == "" || seen[name] {
		bad(field+".name", "%q is empty or there twice; each table has a name of its own", name)
	}
	seen[name] = true
	if g.Tenant != "" {
		if err := trust.CheckTenant(g.Tenant); err != nil {
			bad(field+".tenant", "%v", err)
		}
	}
	if _, err := trust.ParseScopes(g.Scopes); err != nil {
		bad(field+".scopes", "%v", err)
	} else if len(g.Scopes) == 0 {
		bad(field+".scopes", "empty; name some of %s, or leave out the table", strings.Join(trust.ScopeNames(), ", "))
	}
	if err := trust.CheckModels(g.Models); err != nil {
		bad(field+".models", "%v", err)
	}
}

// makeSecret is a command that makes a file for isolation_secret_file.
const makeSecret = "(umask 077; head -c 32 /dev/urandom | base64 > FILE)"

// salts returns the salts of clients, or nil if they share cached prompts.
func (a *AuthConfig) salts() (*isolation.Salts, error) {
	by, err := isolation.ParseBy(a.Isolation)
	if err != nil || by == isolation.None {
		return nil, err
	}
	secret, err := keys.ReadFile(a.IsolationSecretFile)
	if secret = bytes.TrimRight(secret, "\r\n"); err == nil && len(secret) < isolation.SecretBytes {
		err = fmt.Errorf("%s has %d bytes, and a secret has at least %d; make one by: %s", a.IsolationSecretFile,
			len(secret), isolation.SecretBytes, makeSecret)
	}
	if err != nil {
		return nil, fmt.Errorf("auth.isolation_secret_file: %w", err)
	}
	return isolation.New(by, secret), nil
}

func (c *Config) examineAuth() error {
	_, rootsErr := c.Auth.OIDC.transport()
	var saltsErr error
	if c.Auth.IsolationSecretFile != "" { // otherwise Validate reports it
		_, saltsErr = c.Auth.salts()
	}
	if c.Auth.KeysFile == "" {
		return errors.Join(rootsErr, saltsErr)
	}
	doc, err := keys.ReadFile(c.Auth.KeysFile)
	if err == nil {
		_, err = keys.ParseFile(doc)
	}
	return errors.Join(keysProblem(err), rootsErr, saltsErr)
}

// keysProblem adds the setting and the fix to the error of a file of keys.
func keysProblem(err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("auth.keys_file: %w; cgn-ctl key create --keys-file makes such a file", err)
	}
	return fmt.Errorf("auth.keys_file: %w", err)
}

// callers are the identities that may ask, and how much they may take.
type callers struct {
	keys   *keys.Follower   // nil: no API key counts
	door   *auth.Door       // nil: everybody may ask
	salts  *isolation.Salts // nil: clients share cached prompts
	book   limits.Book      // of tenants and models
	shared *shared.Limiter  // nil: the router counts limits alone
	admins *adminRights     // of the admin port
}

// openDoor prepares the check of identities. A bad file stops the start; a provider that does not
// answer does not.
func (r *Router) openDoor() (err error) {
	a := &r.config.Auth
	if !a.on() {
		return nil
	}
	if r.callers.salts, err = a.salts(); err != nil {
		return err
	}
	r.callers.door = &auth.Door{Certificates: a.certificates()}
	if r.callers.door.Tokens, err = a.OIDC.verifier(r.log); err != nil {
		return err
	}
	if !a.keyed() {
		return nil
	}
	set := &keys.Set{Changed: r.keyChanged}
	r.callers.keys = &keys.Follower{
		Set: set, File: a.KeysFile, Etcd: r.known.cluster, Log: r.log, Changed: r.endRevoked,
	}
	r.callers.door.Keys = set
	return keysProblem(r.callers.keys.Load())
}

// certificates returns the principals of client certificates.
func (a *AuthConfig) certificates() map[string]*trust.Principal {
	all := map[string]*trust.Principal{}
	for _, table := range a.Certificates {
		g := table.grant()
		all[table.Name] = g.Principal(trust.SafeID("cert", table.Name))
	}
	return all
}

// endRevoked ends the running requests of principals that are revoked.
func (r *Router) endRevoked() {
	if r.config.Auth.Revoked == "end" {
		r.gateway.EndRevoked()
	}
}

// authProblems says why the API keys, or the OIDC provider's, could not be read.
func (c *callers) authProblems() (all []fleet.Problem) {
	if why := c.keys.Problem(); why != "" {
		all = append(all, fleet.Problem{Subject: "API keys",
			Reason: c.keys.Source() + ": " + why + "; " + c.keys.Meanwhile()})
	}
	if v := c.tokenVerifier(); v != nil && v.Problem() != "" {
		all = append(all, fleet.Problem{Subject: "OIDC provider",
			Reason: v.Problem() + "; the keys read last count on"})
	}
	return all
}
