package doctor

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/agent/engine"
	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/logfile"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/internal/rights"
	"github.com/cognitora/dataplane/kvcached"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/keys"
)

// admin examines an admin port. keyed says that it asks for API keys or tokens.
func (e *exam) admin(field, address string, t *adminport.TLS, keyed bool) {
	e.listen(listener{
		field: field, address: address, encrypted: t.Cert != "", cert: t.Cert, authenticates: keyed || t.Certified(),
		fix: "set admin_tls.cert, .key and .client_ca, or reach it by a tunnel",
	})
	e.files(pki.Files{CA: t.ClientCA, Cert: t.Cert, Key: t.Key}, "admin_tls.client_ca", "admin_tls.cert",
		"admin_tls.key", "")
}

const encryptEngine = "run cgn-agent on the engine's host, or let the engine serve https and write https://"

func (e *exam) router(c *router.Config) {
	keyed := c.Auth.KeysFile != "" || c.Auth.KeysEtcd || c.Auth.OIDC.Issuer != ""
	e.listen(listener{
		field: "router.listen", address: c.Router.Listen, encrypted: c.TLS.Cert != "", cert: c.TLS.Cert,
		authenticates: c.TLS.ClientCA != "" || keyed,
		fix:           "set tls.cert and tls.key, with tls.client_ca or auth.keys_file",
	})
	e.admin("router.admin", c.Router.Admin, &c.AdminTLS, keyed)
	for i, text := range c.Router.Backends {
		if b, err := fleet.ParseBackend(text); err == nil { // otherwise the daemon refuses the file
			e.backend(fmt.Sprintf("router.backends[%d]", i), ": option ", b)
		}
	}
	for i, b := range c.Backends {
		e.backend(fmt.Sprintf("backend[%d]", i), ".", fleet.Backend{URL: b.URL, APIKeyFile: b.APIKeyFile, CA: b.CA,
			Cert: b.Cert, CertKey: b.CertKey, KVEvents: b.KVEvents})
	}
	if e.etcd(&c.Etcd) && (c.Upstream.CA == "" || c.Upstream.Cert == "") {
		e.add(severe, kindPlaintext, "upstream_tls.ca", "the router shows agents and cache daemons no certificate, or does "+
			"not check theirs", "set upstream_tls.ca, .cert and .key; cgn-ctl pki bootstrap makes them")
	}
	e.dial("traces.endpoint", c.Traces.Endpoint, "the names of models and nodes", c.Traces.HeadersFile != "",
		"write https://, or use a collector on "+
			"loopback")
	e.files(pki.Files{CA: c.TLS.ClientCA, Cert: c.TLS.Cert, Key: c.TLS.Key}, "tls.client_ca", "tls.cert", "tls.key", "")
	e.files(pki.Files{CA: c.Upstream.CA, Cert: c.Upstream.Cert, Key: c.Upstream.Key}, "upstream_tls.ca",
		"upstream_tls.cert", "upstream_tls.key", pki.Router)
	e.files(pki.Files{CA: c.Traces.CA, Cert: c.Traces.Cert, Key: c.Traces.Key}, "traces.ca", "traces.cert",
		"traces.key", "")
	e.secret("traces.headers_file", c.Traces.HeadersFile)
	e.keys(c)
	e.secret("auth.isolation_secret_file", c.Auth.IsolationSecretFile)
	e.expiry("auth.oidc.ca", c.Auth.OIDC.CA)
	e.redis(&c.RateLimit)
	if c.Usage.Dir != "" {
		e.kept("usage.dir", filepath.Join(c.Usage.Dir, "file"))
	}
	e.logs(c.Logs())
}

// logs examines who may read or change log files.
func (e *exam) logs(all []logfile.Place) {
	for _, l := range all {
		if mode, ok := l.Wide(); ok {
			e.add(warning, kindReadable, l.Setting, fmt.Sprintf("%s has the mode %#o, so other users can read or "+
				"change it", l.File, mode), fmt.Sprintf("chmod %#o %s", mode&l.Mode, l.File))
		}
	}
}

// keys examines the router's file of keys, and whether keys leave the router.
func (e *exam) keys(c *router.Config) {
	e.secret("auth.keys_file", c.Auth.KeysFile)
	if doc, err := rights.ReadFile(c.Auth.KeysFile); err == nil { // otherwise secret has said why
		if _, err := keys.ParseFile(doc); err != nil {
			e.add(severe, kindConfig, "auth.keys_file", "the daemon does not start: "+c.Auth.KeysFile+": "+err.Error(),
				"restore the file, or make its keys anew with cgn-ctl key create")
		}
	}
	if c.Router.ForwardAuth && (c.Auth.KeysFile != "" || c.Auth.KeysEtcd || c.Auth.OIDC.Issuer != "") {
		e.add(warning, kindOpen, "router.forward_auth", "engines and agents get the API keys and tokens of clients, and can "+
			"use them at the router", "leave it out, and give engines a key of their own with api_key_file")
	}
}

// redis examines the Redis of shared limits.
func (e *exam) redis(c *router.RateLimitConfig) {
	for i, at := range c.Redis {
		e.checked.Connections++
		if !c.TLS && !listen.Loopback(at) {
			e.crosses(fmt.Sprintf("ratelimit.redis[%d]", i), at, "the names of tenants and models",
				c.Password != "", "set ratelimit.tls = true")
		}
	}
	e.secret("ratelimit.password_file", c.Password)
	e.secret("ratelimit.sentinel_password_file", c.SentinelsWord)
	e.files(pki.Files{CA: c.CA, Cert: c.Cert, Key: c.Key}, "ratelimit.ca", "ratelimit.cert", "ratelimit.key", "")
}

// backend examines an engine of the router. within separates the name of one of its settings.
func (e *exam) backend(field, within string, b fleet.Backend) {
	e.dial(field, b.URL, prompts, b.APIKeyFile != "", encryptEngine)
	e.events(field+within+"kv_events", b.KVEvents)
	e.secret(field+within+"api_key_file", b.APIKeyFile)
	e.files(pki.Files{CA: b.CA, Cert: b.Cert, Key: b.CertKey}, field+within+"ca", field+within+"cert",
		field+within+"cert_key", "")
}

func (e *exam) agent(c *agent.Config) {
	front := listener{encrypted: c.TLS.Cert != "", cert: c.TLS.Cert, authenticates: c.TLS.CA != "" && c.TLS.Cert != "",
		fix: "set tls.ca, tls.cert and tls.key; cgn-ctl pki bootstrap makes them"}
	at := func(field, address string) {
		l := front
		l.field, l.address = field, address
		e.listen(l)
	}
	one := func(prefix string, g *engine.Config) {
		e.dial(prefix+"url", g.URL, prompts, g.APIKeyFile != "", encryptEngine)
		e.secret(prefix+"api_key_file", g.APIKeyFile)
		e.expiry(prefix+"ca", g.CA)
	}
	if len(c.Engines) == 0 {
		at("agent.listen", c.Agent.Listen)
		at("kv_events.listen", c.Events.Listen)
		e.events("kv_events.endpoint", c.Events.Endpoint)
		one("engine.", &c.Engine)
	}
	for i := range c.Engines {
		g, prefix := &c.Engines[i], fmt.Sprintf("engine[%d].", i)
		at(prefix+"listen", g.Listen)
		at(prefix+"kv_events.listen", g.Events.Listen)
		e.events(prefix+"kv_events.endpoint", g.Events.Endpoint)
		one(prefix, &g.Engine)
	}
	if c.Agent.Push != "off" {
		at("agent.push", c.Agent.Push)
	}
	e.admin("agent.admin", c.Agent.Admin, &c.AdminTLS, false)
	e.logs(c.Logs())
	e.etcd(&c.Etcd)
	e.files(pki.Files{CA: c.TLS.CA, Cert: c.TLS.Cert, Key: c.TLS.Key}, "tls.ca", "tls.cert", "tls.key",
		roleIf(c.TLS.CA != "", pki.Agent))
	e.secret("power.redfish.password_file", c.Power.Redfish.PasswordFile)
	e.expiry("power.redfish.ca", c.Power.Redfish.CA)
	token := filepath.Join(c.Agent.StateDir, cluster.TokenFile)
	if _, err := os.Stat(token); err == nil && c.Agent.StateDir != "" {
		e.secret("agent.state_dir", token)
	}
}

// roleIf returns role if peers check it.
func roleIf(checked bool, role pki.Role) pki.Role {
	if checked {
		return role
	}
	return ""
}

func (e *exam) kvcached(c *kvcached.Config) {
	const users = "with TLS, and let only known clients in: "
	e.listen(listener{field: "resp.listen", address: c.RESP.Listen, encrypted: c.RESP.TLS, cert: c.TLS.Cert,
		authenticates: len(c.RESP.Users) > 0, fix: users + "resp.tls = true and [[resp.users]]"})
	e.listen(listener{field: "s3.listen", address: c.S3.Listen, encrypted: c.S3.TLS, cert: c.TLS.Cert,
		authenticates: len(c.S3.Keys) > 0, fix: users + "s3.tls = true and [[s3.keys]]"})
	lane := c.QUIC.TLSListen
	if lane == "off" {
		lane = ""
	}
	for _, l := range [][2]string{{"quic.listen", c.QUIC.Listen}, {"quic.tls_listen", lane},
		{"grpc.listen", c.GRPC.Listen}} {
		e.listen(listener{field: l[0], address: l[1], encrypted: true, cert: c.TLS.Cert, authenticates: true})
	}
	e.admin("kvcached.admin", c.Daemon.Admin, &c.AdminTLS, false)
	e.logs(c.Logs())
	e.etcd(&c.Etcd)
	e.files(pki.Files{CA: c.TLS.CA, Cert: c.TLS.Cert, Key: c.TLS.Key}, "tls.ca", "tls.cert", "tls.key",
		roleIf(c.TLS.CA != "", pki.KVCached))
	for i, u := range c.RESP.Users {
		e.secret(fmt.Sprintf("resp.users[%d].password_file", i), u.PasswordFile)
	}
	for i, k := range c.S3.Keys {
		e.secret(fmt.Sprintf("s3.keys[%d].secret_file", i), k.SecretFile)
	}
	e.secret("ssd.key_file", c.SSD.KeyFile)
	if len(c.RDMA.Trusted) > 0 {
		e.add(warning, kindPlaintext, "rdma.trusted_networks", "blocks that RDMA moves are neither encrypted nor "+
			"authenticated", "trust only networks that no other tenant shares")
	}
}
