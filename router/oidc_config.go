package router

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/router/oidc"
)

// OIDCConfig says which tokens count, and what they give.
type OIDCConfig struct {
	Issuer     string            `toml:"issuer" empty:"refused" help:"the provider's issuer, exactly as its tokens name it in iss; its discovery document is at /.well-known/openid-configuration below. https, or http on this host. Left out: no token counts"`
	Audience   []string          `toml:"audience" help:"the router's names at the provider; a token counts if its aud has one of them. Do not share them with other services"`
	Algorithms []string          `toml:"algorithms" default:"RS256,ES256" help:"algorithms by which tokens may be signed: RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384, ES512, EdDSA"`
	Clients    []string          `toml:"clients" help:"ids of the clients whose tokens count, by azp or client_id; empty: any client's"`
	IDTokens   bool              `toml:"id_tokens" default:"false" help:"ID tokens count too; for clients that have no access token for the router"`
	Leeway     config.Duration   `toml:"leeway" default:"30s" help:"how far the clocks of the provider and the router may differ, for exp, nbf and iat; at most 5m"`
	GroupsName string            `toml:"groups_claim" default:"groups" help:"claim with the token's groups: a string, or an array of strings"`
	TenantName string            `toml:"tenant_claim" default:"" help:"claim with the token's tenant, for groups without a tenant; a token without it is refused then. Empty: these groups have the tenant default"`
	CA         string            `toml:"ca" default:"" help:"PEM file of the CAs that may sign the provider's certificate; empty: the system's CAs"`
	Groups     []OIDCGroupConfig `toml:"group" help:"rights of the provider's groups, one table each; of several groups of a token the first table counts. A token without any of them gets 403"`
}

// OIDCGroupConfig maps a group of the provider.
type OIDCGroupConfig struct {
	Name        string `toml:"name" help:"name of the group, as the claim has it"`
	GrantConfig `toml:",inline"`
}

func (o *OIDCConfig) validate(bad problem) {
	if o.Issuer == "" {
		if len(o.Groups)+len(o.Audience) > 0 {
			bad("auth.oidc.issuer", "empty; name the provider whose tokens count, or leave out the section")
		}
		return
	}
	if err := oidc.CheckURL(o.Issuer); err != nil || strings.ContainsAny(o.Issuer, "?#") {
		bad("auth.oidc.issuer", "%.200q cannot be an issuer; give an https URL without ? and #, or http on this host",
			o.Issuer)
	}
	if len(o.Audience) == 0 || slices.Contains(o.Audience, "") {
		bad("auth.oidc.audience", "empty; without the router's own name tokens for other services would count")
	}
	if len(o.Groups) == 0 {
		bad("auth.oidc.group", "no group is mapped, so no token has rights; add [[auth.oidc.group]] tables")
	}
	for _, name := range o.Algorithms {
		if !slices.Contains(oidc.Algorithms(), name) {
			bad("auth.oidc.algorithms", "%q cannot be allowed; use some of %s", name,
				strings.Join(oidc.Algorithms(), ", "))
		}
	}
	if len(o.Algorithms) == 0 {
		bad("auth.oidc.algorithms", "empty; leave it out for RS256 and ES256")
	}
	if v := o.Leeway.Std(); v < 0 || v > 5*time.Minute {
		bad("auth.oidc.leeway", "%s is not in 0s..5m; leave it out for 30s", o.Leeway)
	}
	if o.GroupsName == "" {
		bad("auth.oidc.groups_claim", "empty; leave it out for groups")
	}
	seen := map[string]bool{}
	for i, table := range o.Groups {
		table.validate(fmt.Sprintf("auth.oidc.group[%d]", i), table.Name, seen, bad)
	}
}

// verifier returns the check of tokens, or nil if none counts.
func (o *OIDCConfig) verifier(log *slog.Logger) (*oidc.Verifier, error) {
	if o.Issuer == "" {
		return nil, nil
	}
	transport, err := o.transport()
	if err != nil {
		return nil, err
	}
	groups := make([]oidc.Group, len(o.Groups))
	for i, table := range o.Groups {
		groups[i] = oidc.Group{Name: table.Name, Grant: table.grant()}
	}
	return oidc.New(oidc.Options{
		Issuer: o.Issuer, Audience: o.Audience, Algorithms: o.Algorithms, Clients: o.Clients, IDTokens: o.IDTokens,
		Leeway: o.Leeway.Std(), GroupsClaim: o.GroupsName, TenantClaim: o.TenantName, Groups: groups,
		Transport: transport, Log: log,
	}), nil
}

// transport returns the connections to the provider. None stays open: there is one every 5 minutes.
func (o *OIDCConfig) transport() (http.RoundTripper, error) {
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
		TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if o.CA == "" {
		return t, nil
	}
	id, err := pki.Load(pki.Files{CA: o.CA})
	if err != nil {
		return nil, fmt.Errorf("auth.oidc.ca: %w; name a PEM file of CA certificates", err)
	}
	return &following{t, id}, nil
}

// following makes each connection with the present CAs of a file. Its transport keeps none.
type following struct {
	*http.Transport
	cas *pki.Identity
}

// RoundTrip implements http.RoundTripper.
func (f *following) RoundTrip(req *http.Request) (*http.Response, error) {
	t := f.Clone()
	t.TLSClientConfig.RootCAs = f.cas.CAs()
	return t.RoundTrip(req)
}

// tokenVerifier returns the check of tokens, or nil if none counts.
func (c *callers) tokenVerifier() *oidc.Verifier {
	if c.door == nil {
		return nil
	}
	return c.door.Tokens
}

// These are the indices of oidcDefs.
const (
	oidcTokens = iota
	oidcReadings
	oidcKeys
	oidcKeysAge
)

var oidcDefs = []metric.Def{
	oidcTokens: {
		Name: "cgn_router_oidc_tokens_total", Kind: metric.Counter, Labels: []string{"result"},
		Help: "Tokens of requests, by what became of them: remembered (as valid), valid, or refused, by reason: " +
			"too_long, malformed, algorithm, kind (an ID token, or no access token), issuer, audience, client, expired, " +
			"not_yet, unknown_key, signature, no_group, no_tenant, pending (the provider's keys are not known, or were " +
			"read less than 10 s ago) or busy (too many signatures were being checked). Without auth.oidc all " +
			"cgn_router_oidc metrics are absent.",
	},
	oidcReadings: {
		Name: "cgn_router_oidc_readings_total", Kind: metric.Counter, Labels: []string{"result"},
		Help: "Readings of the OIDC provider's keys: done or failed.",
	},
	oidcKeys: {
		Name: "cgn_router_oidc_keys",
		Help: "Keys of the OIDC provider, once for each algorithm that they count for.",
	},
	oidcKeysAge: {
		Name: "cgn_router_oidc_keys_age_seconds",
		Help: "Time since the OIDC provider's keys were read; more than 300 while the provider does not answer.",
	},
}

func (c *callers) readOIDC(emit func(def int, value float64, labels ...string)) {
	v := c.tokenVerifier()
	if v == nil {
		return
	}
	emit(oidcTokens, float64(v.Hits()), "remembered")
	v.Checks(func(verdict string, count uint64) { emit(oidcTokens, float64(count), verdict) })
	done, failed := v.Readings()
	emit(oidcReadings, float64(done), "done")
	emit(oidcReadings, float64(failed), "failed")
	if n, age, known := v.Keys(time.Now()); known {
		emit(oidcKeys, float64(n))
		emit(oidcKeysAge, age.Seconds())
	}
}
