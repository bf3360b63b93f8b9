package router

import (
	"cmp"
	"fmt"
	"os"
	"strings"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/internal/rights"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/trust"
)

// Advise returns warnings about valid settings that do less than they seem to.
func (c *Config) Advise() (notes []string) {
	first := map[string]string{} // the id of the first backend of a URL
	all, _ := c.backends()       // Validate reports problems
	for _, b := range all {
		url, id := strings.TrimRight(b.URL, "/"), b.NodeID()
		if other := first[url]; other != "" && other != id {
			notes = append(notes, fmt.Sprintf("the backends %s and %s have the same URL, %s: the router takes the engine for "+
				"two nodes, with two loads and two caches; leave one out", other, id, url))
		}
		first[url] = id
		if b.Role == string(cluster.RolePrefill) && c.Router.Disagg.Enabled == "false" && !c.pooled(id) {
			notes = append(notes, fmt.Sprintf("the backend %s has role prefill and gets no requests, because "+
				"router.disagg.enabled is false; role both or decode, or pools of a [[model]], give it some", id))
		}
	}
	if !listen.Loopback(c.Router.Listen) {
		if note := pki.AdviseHosts("tls.cert", c.TLS.Cert, "router.listen", c.Router.Listen); note != "" {
			notes = append(notes, note)
		}
	}
	for i, g := range c.Auth.OIDC.Groups {
		if g.Tenant == "" && c.Auth.OIDC.TenantName == "" {
			notes = append(notes, fmt.Sprintf("auth.oidc.group[%d] has no tenant, so %q shares the limits and the use of tenant "+
				"%s; set its tenant, or auth.oidc.tenant_claim", i, g.Name, trust.DefaultTenant))
		}
	}
	notes = append(append(notes, c.exposed()...), c.readable()...)
	if doc, err := rights.ReadFile(c.Router.PolicyFile); err == nil {
		notes = append(notes, idle("router.policy_file", doc, c.Router.Mode)...)
	}
	for i, m := range c.Models {
		notes = append(notes, idle(fmt.Sprintf("model[%d].policy", i), []byte(m.Policy), "")...)
		if len(m.Cascade) > 0 && !c.Router.Cascade.Enabled {
			notes = append(notes, fmt.Sprintf("model[%d].cascade has no effect; set router.cascade.enabled = true", i))
		}
	}
	return notes
}

// exposed warns about ports that other hosts reach, and that are open or unencrypted because
// insecure_listen or insecure_admin is set.
func (c *Config) exposed() (notes []string) {
	for _, p := range []struct {
		field, address, tls     string
		encrypted, certificates bool
	}{
		{"router.listen", c.Router.Listen, "tls", c.TLS.Cert != "", c.TLS.ClientCA != ""},
		{"router.admin", c.Router.Admin, "admin_tls", c.AdminTLS.Cert != "", c.AdminTLS.Certified()},
	} {
		switch {
		case listen.Loopback(p.address):
		case !c.Auth.on() && !p.certificates:
			notes = append(notes, fmt.Sprintf("%s: anybody who reaches %s may use it, because nothing asks who comes; set "+
				"auth.keys_file, auth.keys_etcd or auth.oidc, unless something in front of it authenticates", p.field,
				p.address))
		case c.Auth.on() && !p.encrypted:
			notes = append(notes, fmt.Sprintf("%s: API keys and tokens cross the network to %s unencrypted, and whoever "+
				"reads one can use it; set %s.cert and .key, unless something in front of it encrypts", p.field, p.address,
				p.tls))
		}
	}
	return notes
}

// readable warns of secrets in files that other users can read. Such files of keys and of the
// secret of isolation are refused; others are not, as Kubernetes mounts secrets with the mode 0644.
func (c *Config) readable() (notes []string) {
	secrets := [][2]string{
		{"tls.key", c.TLS.Key}, {"admin_tls.key", c.AdminTLS.Key}, {"upstream_tls.key", c.Upstream.Key},
		{"etcd.key", c.Etcd.Key}, {"etcd.password_file", c.Etcd.PasswordFile},
		{"ratelimit.password_file", c.RateLimit.Password}, {"ratelimit.key", c.RateLimit.Key},
		{"ratelimit.sentinel_password_file", c.RateLimit.SentinelsWord},
		{"traces.headers_file", c.Traces.HeadersFile}, {"traces.key", c.Traces.Key},
	}
	all, _ := c.backends() // Validate reports problems
	for _, b := range all {
		at := "of the backend " + b.NodeID()
		secrets = append(secrets, [2]string{"api_key_file " + at, b.APIKeyFile}, [2]string{"cert_key " + at, b.CertKey})
	}
	seen := map[string]bool{"": true}
	for _, s := range secrets {
		info, err := os.Stat(s[1])
		if seen[s[1]] || err != nil {
			continue
		}
		seen[s[1]] = true
		if err := cmp.Or(rights.Private(s[1], info), rights.Kept(s[1])); err != nil {
			notes = append(notes, s[0]+": "+err.Error())
		}
	}
	return notes
}

// pooled says whether a pool of a model gives the node requests.
func (c *Config) pooled(id string) bool {
	for _, m := range c.Models {
		for role, ids := range m.Pools {
			for _, other := range ids {
				if other == id && role != string(cluster.RolePrefill) {
					return true
				}
			}
		}
	}
	return false
}

// idle warns about the settings of a policy document that have no effect. name is the setting that
// gives the document, and mode the mode in place of the document's; "": none.
func idle(name string, doc []byte, mode string) []string {
	p, err := policy.Parse(doc)
	if len(doc) == 0 || err != nil {
		return nil
	}
	if m, err := policy.ParseMode(mode); err == nil {
		p.Mode = m
	}
	if len(p.Idle()) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%s: %s: no effect in mode %s", name, strings.Join(p.Idle(), ", "), p.Mode)}
}
