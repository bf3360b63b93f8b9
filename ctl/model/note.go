package model

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/ctl/admin"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/policy"
)

// registry is what agents have registered in etcd.
type registry struct {
	nodes  map[string]cluster.Role // by id
	models map[string]bool         // served by a node
}

// registered reads the registry. It warns and returns nil if that fails.
func (m *commands) registered(ctx context.Context, client *cluster.Client) *registry {
	nodes, err := client.Nodes(ctx)
	if err != nil {
		fmt.Fprintf(m.Err, "cgn-ctl: the nodes of pools are not checked, since the registered nodes cannot be read: %v\n",
			err)
		return nil
	}
	all := &registry{map[string]cluster.Role{}, map[string]bool{}}
	for _, n := range nodes {
		all.nodes[n.ID] = ""
		if n.Health == nil {
			continue
		}
		all.nodes[n.ID] = n.Health.Role
		for _, model := range n.Health.Models {
			all.models[model] = true
		}
	}
	return all
}

// noteRouter adds the problems that the router has with the settings in force there.
func (r *row) noteRouter(view *admin.Fleet) {
	if r.Router.TokenizerError != "" {
		r.Notes = append(r.Notes, r.Router.TokenizerError)
	}
	for _, p := range view.Problems {
		if p.Subject == "model "+r.Name || p.Subject == "models/"+r.Name && r.Error == "" {
			r.Notes = append(r.Notes, p.Reason)
		}
	}
	s := r.Router.Settings
	if s == nil {
		return
	}
	r.noteAliases(s, len(r.Router.Nodes)+len(r.Router.Prefill) > 0)
	roles := map[string]cluster.Role{}
	for i := range view.Nodes {
		roles[view.Nodes[i].ID] = cluster.Role(view.Nodes[i].Role)
	}
	r.noteRoles(s, roles)
}

// noteStored adds the problems of settings in etcd that no router is known to use. in is nil if the
// registry is unknown. all are the rows by name.
func (r *row) noteStored(in *registry, all map[string]*row) {
	s := r.Stored
	if len(s.Policy) > 0 {
		if _, err := policy.Parse(s.Policy); err != nil {
			r.Notes = append(r.Notes, "its policy is not valid: "+err.Error())
		}
	}
	for _, alias := range s.Aliases {
		if owner := ownerOf(alias, in, all); owner != r.Name {
			r.Notes = append(r.Notes, "alias "+alias+" is taken by model "+owner)
		}
	}
	if in == nil {
		return
	}
	served := in.models[r.Name]
	if s.Base != "" {
		if served = served || in.models[s.Base]; !served {
			r.Notes = append(r.Notes, fmt.Sprintf("no agent has registered a node with its base %s", s.Base))
		}
	}
	r.noteAliases(s, served)
	for _, role := range roles {
		for _, id := range s.Pools[role] {
			if _, there := in.nodes[id]; !there {
				r.Notes = append(r.Notes, fmt.Sprintf("no agent has registered node %s of its pool %s", id, role))
			}
		}
	}
	r.noteRoles(s, in.nodes)
}

// ownerOf returns the model that requests for an alias go to. A model's own name comes before
// aliases, and the first model by name before others.
func ownerOf(alias string, in *registry, all map[string]*row) (owner string) {
	if in != nil && in.models[alias] || all[alias] != nil {
		return alias
	}
	for name, r := range all {
		if r.Stored != nil && slices.Contains(r.Stored.Aliases, alias) && (owner == "" || name < owner) {
			owner = name
		}
	}
	return owner
}

// noteAliases notes the aliases of a model that no node serves.
func (r *row) noteAliases(s *cluster.Model, served bool) {
	if len(s.Aliases) > 0 && !served {
		r.Notes = append(r.Notes, fmt.Sprintf("no node serves it, so nothing answers its aliases %s",
			strings.Join(s.Aliases, ",")))
	}
}

// noteRoles notes the nodes of a pool whose own role is for the other kind of work. The pool counts
// all the same.
func (r *row) noteRoles(s *cluster.Model, own map[string]cluster.Role) {
	for _, pool := range roles {
		for _, id := range s.Pools[pool] {
			role := own[id] // empty: both, or the node is unknown
			if role == "" || role == cluster.RoleBoth {
				continue
			}
			if (role == cluster.RolePrefill) != (pool == cluster.RolePrefill) {
				r.Notes = append(r.Notes, fmt.Sprintf("node %s of its pool %s has role %s itself; the pool counts",
					id, pool, role))
			}
		}
	}
}

// note says which settings are not used, and why.
func (r *row) note() string {
	notes := r.Notes
	if r.Error != "" {
		notes = slices.Concat([]string{r.Error}, notes)
	}
	return strings.Join(notes, "; ")
}
