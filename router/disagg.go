package router

import (
	"log/slog"
	"slices"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/leg"
)

// DisaggConfig sets when one node computes a prompt and another one answers.
type DisaggConfig struct {
	Enabled       string          `toml:"enabled" default:"auto" flag:"disagg" oneof:"auto|true|false" help:"whether one node may compute a request's prompt (prefill) and another one answer (decode); auto: for models with nodes that can do the one and nodes that can do the other (docs/disagg.md); true: the same, with a warning while a model lacks one of them; false: never, and a node of role prefill gets no requests"`
	ColocateBelow int             `toml:"colocate_below_tokens" default:"512" help:"prompts of fewer tokens are computed by the node that answers"`
	UncachedBelow int             `toml:"uncached_below_tokens" default:"2048" help:"the answering node computes the prompt if it has all but fewer tokens than this in its cache, and uncached_below_ratio holds too; mode predicted compares expected times in place of these two settings"`
	UncachedRatio float64         `toml:"uncached_below_ratio" default:"0.7" help:"the answering node computes the prompt if a smaller share of it than this is not in its cache, and uncached_below_tokens holds too"`
	BlockLease    config.Duration `toml:"block_lease" default:"30s" help:"how long engines with the connector nixl keep the blocks of a prompt until another engine asks for them, as in their kv_lease_duration; an answer of an engine that began after two thirds of it is dropped, and the engine computes the prompt itself"`
}

func (d *DisaggConfig) validate(bad problem) {
	if d.ColocateBelow < 0 {
		bad("router.disagg.colocate_below_tokens", "%d is too small; use 0 or more", d.ColocateBelow)
	}
	if d.UncachedBelow < 0 {
		bad("router.disagg.uncached_below_tokens", "%d is too small; use 0 or more", d.UncachedBelow)
	}
	if r := d.UncachedRatio; !(r >= 0 && r <= 1) {
		bad("router.disagg.uncached_below_ratio", "%v is not in 0..1; leave it out for 0.7", r)
	}
	if d.BlockLease <= 0 {
		bad("router.disagg.block_lease", "%v is too short; leave it out for 30s", d.BlockLease)
	}
}

// settings returns the settings for the legs.
func (d *DisaggConfig) settings() leg.Disagg {
	return leg.Disagg{
		Off: d.Enabled == "false", ColocateBelow: int64(d.ColocateBelow), UncachedBelow: int64(d.UncachedBelow),
		UncachedRatio: d.UncachedRatio, Lease: time.Duration(d.BlockLease),
	}
}

// undivided are the models that router.disagg.enabled = true cannot hold for, by what they lack.
type undivided struct {
	seen  *fleet.Snapshot
	lacks map[string]string
}

// look warns about each model that lacks nodes for one of the two parts, once until that changes.
func (u *undivided) look(now *fleet.Snapshot, log *slog.Logger) {
	if now == u.seen || now.Partial {
		return
	}
	u.seen = now
	all := map[string]string{}
	for _, m := range now.Models() {
		if why := lacking(m); why != "" {
			if all[m.Name] = why; u.lacks[m.Name] != why {
				log.Warn("router.disagg.enabled is true, but every request of the model runs on one node", "model", m.Name,
					"why", why)
			}
		}
	}
	u.lacks = all
}

// tried are the connectors that have been tested with real engines.
var tried = []string{cluster.ConnectorNIXL, cluster.ConnectorKVCached}

// untried are the experimental connectors that the log has named.
type untried struct {
	seen *fleet.Snapshot
	told map[string]bool
}

// look warns about each connector that has been tested with simulated engines only, at the first
// node with it.
func (u *untried) look(now *fleet.Snapshot, log *slog.Logger) {
	if now == u.seen {
		return
	}
	u.seen = now
	for _, m := range now.Models() {
		for _, n := range slices.Concat(m.Prefill, m.Nodes) {
			with := n.Info().Hands(m.Role(n))
			if with == "" || slices.Contains(tried, with) || u.told[with] {
				continue
			}
			if u.told == nil {
				u.told = map[string]bool{}
			}
			u.told[with] = true
			log.Warn("the connector is experimental: it follows the engine's documents, and is tested with simulated "+
				"engines only", "connector", with, "node", n.ID)
		}
	}
}

// lacking says why no request of a model can run on two nodes; "" if some can.
func lacking(m *fleet.ModelView) string {
	hands := func(n *fleet.Node) string { return n.Info().Hands(m.Role(n)) }
	var prefills, decodes []*fleet.Node
	hidden := "" // connector of a node without the address that its connector needs
	for _, n := range slices.Concat(m.Prefill, m.Nodes) {
		if hands(n) == "" {
			continue
		}
		switch role := m.Role(n); {
		case role == cluster.RoleDecode:
		case n.Info().Prefills(role) == "":
			hidden = hands(n)
		default:
			prefills = append(prefills, n)
		}
		if role := m.Role(n); role != cluster.RolePrefill {
			decodes = append(decodes, n)
		}
	}
	switch {
	case len(prefills) == 0 && hidden != "":
		return "its nodes that compute prompts have no bootstrap address, which connector " + hidden + " needs"
	case len(prefills) == 0:
		return "no node of role prefill, or of role both with a connector, serves it"
	case len(decodes) == 0:
		return "no node of role decode, or of role both with a connector, serves it"
	}
	for _, p := range prefills {
		for _, d := range decodes {
			if p != d && hands(p) == hands(d) {
				return ""
			}
		}
	}
	return "no two of its nodes have the same connector"
}
