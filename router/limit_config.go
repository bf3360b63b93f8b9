package router

import (
	"fmt"
	"strings"

	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/trust"
)

// LimitTable limits a tenant, a model, or a tenant's use of a model.
type LimitTable struct {
	Tenant string       `toml:"tenant" help:"the tenant whose requests count, of all its keys together; *: each tenant that no table names, by itself; empty: all tenants together. Clients without a key have the tenant default"`
	Model  string       `toml:"model" help:"name of the model whose requests count, not an alias; empty: all models together. For an adapter or a cascade its own name"`
	Rates  limits.Rates `toml:",inline"`
}

func (c *Config) validateLimits(bad problem) {
	if n := c.Limits.Output; n < 1 {
		bad("limits.output_tokens", "%d is too small; use 1 or more, or leave it out for 4096", n)
	}
	aliases, seen := map[string]string{}, map[[2]string]bool{}
	for i, m := range c.Models {
		if m.MaxOutput < 0 {
			bad(fmt.Sprintf("model[%d].max_output", i), "%d is negative; leave it out for no cap", m.MaxOutput)
		}
		for _, alias := range m.Aliases {
			aliases[alias] = m.Name
		}
	}
	for _, m := range c.Models { // a name comes before an alias
		delete(aliases, m.Name)
	}
	for i := range c.LimitTables {
		t := &c.LimitTables[i]
		field := func(name string) string { return fmt.Sprintf("limit[%d].%s", i, name) }
		if t.Tenant == "" && t.Model == "" {
			bad(field("tenant"), "empty, as model is; name a tenant, a model or both")
		} else if err := trust.CheckTenant(t.Tenant); err != nil && t.Tenant != "" && t.Tenant != limits.EachTenant {
			bad(field("tenant"), "%v", err)
		}
		if strings.Contains(t.Model, "*") {
			bad(field("model"), "%q holds '*', which no name of a model does; name one model, or leave it out for all", t.Model)
		}
		if name := aliases[t.Model]; name != "" {
			bad(field("model"), "%q is an alias of %s; name the model itself", t.Model, name)
		}
		if of := [2]string{t.Tenant, t.Model}; seen[of] {
			bad(field("tenant"), "another table is for the same tenant and model; make one of both")
		} else {
			seen[of] = true
		}
		if t.Rates == (limits.Rates{}) {
			bad(field("requests_per_minute"), "0, as all limits of the table; set one, or leave the table out")
		} else if err := t.Rates.Check(); err != nil {
			bad(fmt.Sprintf("limit[%d]", i), "%v", err)
		}
	}
}

// limitSettings returns what requests are held to.
func (c *Config) limitSettings() limits.Settings {
	s := limits.Settings{Output: int64(c.Limits.Output), Caps: map[string]int64{}}
	for _, t := range c.LimitTables {
		s.Tables = append(s.Tables, limits.Table{Tenant: t.Tenant, Model: t.Model, Rates: t.Rates})
	}
	for _, m := range c.Models {
		if m.MaxOutput > 0 {
			s.Caps[m.Name] = int64(m.MaxOutput)
		}
	}
	return s
}

// limitDefs are the metrics of the configuration's limits.
var limitDefs = []metric.Def{
	{
		Name: "cgn_router_limit_accounts",
		Help: "Tenants and models whose use is counted for [[limit]]; at most 65,536, and further tenants of * share one.",
	},
	{
		Name: "cgn_router_limit_used_ratio", Labels: []string{"tenant", "model", "limit"},
		Help: "Used share of each limit of a [[limit]] table, reserved tokens included, by the table's tenant and model " +
			"(empty: all together); above 1 after requests that used more than they had reserved. Not of tenant *.",
	},
}

func (c *callers) readLimits(emit func(def int, value float64, labels ...string)) {
	emit(0, float64(c.book.Accounts()))
	c.book.Each(func(tenant, model, limit string, used float64) { emit(1, used, tenant, model, limit) })
}
