package router

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/router/auth"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/isolation"
	"github.com/cognitora/dataplane/router/keys"
)

// AuthConfig says who may use the serving port.
type AuthConfig struct {
	KeysFile string `toml:"keys_file" default:"" flag:"keys-file" help:"file with the API keys that clients may use, as cgn-ctl key create --keys-file writes it; it has the keys' hashes, and only its owner and its group may read it; read again every 2 s. Empty: no file. Without keys_file and keys_etcd clients need no key"`
	KeysEtcd bool   `toml:"keys_etcd" default:"false" flag:"keys-etcd" help:"take the API keys that clients may use from etcd, where cgn-ctl key create stores them; a revoked key ends at once on all routers. While etcd is away the keys known last count on"`
	Revoked  string `toml:"revoked" default:"end" oneof:"end|finish" help:"what becomes of the running requests of a key that is revoked: end breaks them off, finish lets them finish"`

	Isolation           string `toml:"isolation" default:"none" flag:"isolation" oneof:"none|tenant|key" help:"who shares cached prompts; none: all clients; tenant: the keys of one tenant; key: nobody, each key has its own. Then nobody learns from the time of an answer what others have asked (docs/auth.md). The router gives engines a cache_salt; it says which engines do not obey one. Needs keys, and isolation_secret_file"`
	IsolationSecretFile string `toml:"isolation_secret_file" default:"" flag:"isolation-secret-file" help:"file with a secret of at least 32 bytes, the same for all routers of a fleet, from which the salts of tenants and keys follow; only its owner and its group may read it. Another secret makes all cached prompts unknown. Read at the start"`
}

// on says whether clients must say who they are.
func (a *AuthConfig) on() bool { return a.KeysFile != "" || a.KeysEtcd }

func (c *Config) validateAuth(bad problem) {
	a := &c.Auth
	if a.KeysFile != "" && a.KeysEtcd {
		bad("auth.keys_etcd", "cannot be set beside auth.keys_file; keys come from one of them")
	}
	if a.KeysEtcd && len(c.Etcd.Endpoints) == 0 {
		bad("auth.keys_etcd", "needs etcd.endpoints (--etcd)")
	}
	switch isolates := a.Isolation != "none"; {
	case isolates && !a.on():
		bad("auth.isolation", "needs keys, which say whose requests are whose: set auth.keys_file or auth.keys_etcd")
	case isolates && a.IsolationSecretFile == "":
		bad("auth.isolation_secret_file", "is needed for auth.isolation; make the file by: "+makeSecret)
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
	_, bad := c.Auth.salts()
	if c.Auth.KeysFile == "" {
		return bad
	}
	doc, err := keys.ReadFile(c.Auth.KeysFile)
	if err == nil {
		_, err = keys.ParseFile(doc)
	}
	return errors.Join(bad, keysProblem(err))
}

// keysProblem adds the setting and the fix to the error of a file of keys.
func keysProblem(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("auth.keys_file: %w; cgn-ctl key create --keys-file makes such a file", err)
}

// openDoor prepares the check of identities. A bad file stops the start.
func (r *Router) openDoor() (err error) {
	if !r.config.Auth.on() {
		return nil
	}
	if r.salts, err = r.config.Auth.salts(); err != nil {
		return err
	}
	set := &keys.Set{Changed: r.keyChanged}
	r.keys = &keys.Follower{
		Set: set, File: r.config.Auth.KeysFile, Etcd: r.cluster, Log: r.log, Changed: r.endRevoked,
	}
	r.door = &auth.Door{Keys: set}
	return keysProblem(r.keys.Load())
}

// endRevoked ends the running requests of principals that are revoked.
func (r *Router) endRevoked() {
	if r.config.Auth.Revoked == "end" {
		r.gateway.EndRevoked()
	}
}

// keyProblems says why the API keys are not those of their source.
func (r *Router) keyProblems() []fleet.Problem {
	if r.keys.Problem() == "" {
		return nil
	}
	return []fleet.Problem{{Subject: "API keys", Reason: r.keys.Source() + ": " + r.keys.Problem() +
		"; the keys read last count on"}}
}
