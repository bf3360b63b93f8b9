package cluster

import (
	"fmt"
	"slices"

	"github.com/cognitora/dataplane/internal/cluster"
)

// ratios are the numbers of nodes of role prefill, of 8.
var ratios = []int{2, 4, 5, 6, 7}

// disaggContestants are the fleets that are compared.
func disaggContestants() []Contestant {
	both := func(c *Config) {}
	auto := func(c *Config) { c.Roles = slices.Repeat([]cluster.Role{cluster.RoleBoth}, c.Nodes) }
	all := []Contestant{
		{Name: "both", Change: both}, {Name: "both, automatic", Change: auto},
	}
	for _, n := range ratios {
		split := func(c *Config) {
			c.Roles = slices.Repeat([]cluster.Role{cluster.RoleDecode}, c.Nodes)
			for i := range n * c.Nodes / 8 {
				c.Roles[i] = cluster.RolePrefill
			}
		}
		always := func(c *Config) {
			split(c)
			c.Disagg.Always = true
		}
		name := fmt.Sprintf("%d:%d", n, 8-n)
		all = append(all, Contestant{Name: name + ", always", Change: always}, Contestant{Name: name + ", automatic", Change: split})
	}
	for i := range all {
		change := all[i].Change
		all[i].Mode, all[i].Change = "predicted", func(c *Config) {
			c.Gaps, c.Disagg.ColocateBelow = true, 512
			change(c)
		}
	}
	return all
}
