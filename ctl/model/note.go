package model

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/ctl/admin"
	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
)

// registry is what agents have registered in etcd.
type registry struct {
	nodes  map[string]cluster.Role // by id
	models map[string][]string     // the ids of the nodes that serve it
}

// registered reads the registry. It warns and returns nil if that fails.
func (m *commands) registered(ctx context.Context, client *cluster.Client) *registry {
	nodes, err := client.Nodes(ctx)
	if err != nil {
		fmt.Fprintf(m.Err, "cgn-ctl: the nodes of pools are not checked, since the registered nodes cannot be read: %v\n",
			err)
		return nil
	}
	all := &registry{map[string]cluster.Role{}, map[string][]string{}}
	for _, n := range nodes {
		all.nodes[n.ID] = ""
		if n.Health == nil {
			continue
		}
		all.nodes[n.ID] = n.Health.Role
		for _, model := range n.Health.Models {
			all.models[model] = append(all.models[model], n.ID)
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
	if len(r.Router.Nodes)+len(r.Router.Prefill)+len(s.Chain) == 0 {
		r.noteUnserved("no node serves it", s, func(alias string) bool { return answered(alias, view) })
	}
	r.noteIdle(s)
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
	r.noteIdle(s)
	base := s.Base
	if base != "" {
		base = cmp.Or(ownerOf(s.Base, in, all), s.Base)
	}
	if b := all[base]; b != nil && b.Stored != nil && b.Stored.Base != "" {
		r.Notes = append(r.Notes, "its base "+s.Base+" is an adapter itself, and does not count; name a model that is none")
	}
	for _, alias := range s.Aliases {
		if owner := ownerOf(alias, in, all); owner != r.Name {
			r.Notes = append(r.Notes, "alias "+alias+" is taken by model "+owner)
		}
	}
	if in == nil {
		return
	}
	others := func(alias string) bool {
		owner := all[ownerOf(alias, in, all)]
		return len(in.models[alias]) > 0 || owner != nil && owner != r && in.serves(owner.Name, owner.Stored)
	}
	for _, name := range s.Chain {
		owner, settings := ownerOf(name, in, all), (*cluster.Model)(nil)
		if all[owner] != nil {
			settings = all[owner].Stored
		}
		if owner != r.Name && settings != nil && len(settings.Chain) > 0 {
			r.Notes = append(r.Notes, "its cascade names "+name+", which has a cascade itself, and does not count; "+
				"name models that have none")
		} else if !in.serves(owner, settings) {
			r.Notes = append(r.Notes, "no agent has registered a node with "+name+" of its cascade")
		}
	}
	switch nodes := slices.Concat(in.models[r.Name], in.models[base]); {
	case len(nodes) > 0:
		r.notePrefillOnly(nodes, in)
	case len(s.Chain) > 0:
	case s.Base != "":
		r.noteUnserved("no agent has registered a node with its base "+s.Base, s, others)
	default:
		r.noteUnserved("no agent has registered a node that serves it", s, others)
	}
	for _, role := range roles {
		r.noteUnregistered(role, s.Pools[role], in)
	}
	r.noteRoles(s, in.nodes)
}

// noteUnregistered notes the nodes of a pool that no agent has registered.
func (r *row) noteUnregistered(role cluster.Role, pool []string, in *registry) {
	there := func(id string) bool { _, there := in.nodes[id]; return there }
	counts := "it counts once a router knows it"
	if !slices.ContainsFunc(pool, there) {
		counts = "until a router knows a node of the pool, the model has no node of this role"
	}
	for _, id := range pool {
		if !there(id) {
			r.Notes = append(r.Notes, fmt.Sprintf("no agent has registered node %s of its pool %s; %s",
				id, role, counts))
		}
	}
}

// serves says whether a node serves the model with this name and these settings, or its base. A
// nil registry knows no node.
func (in *registry) serves(name string, s *cluster.Model) bool {
	if in == nil {
		return false
	}
	return len(in.models[name]) > 0 || s != nil && s.Base != "" && len(in.models[s.Base]) > 0
}

// ownerOf returns the model that requests for an alias go to. A model's own name comes before
// aliases, a model with nodes before one without, and the first model by name before others.
func ownerOf(alias string, in *registry, all map[string]*row) (owner string) {
	if in != nil && len(in.models[alias]) > 0 || all[alias] != nil {
		return alias
	}
	owned := false // by a model with nodes
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s := all[name].Stored
		if s == nil || !slices.Contains(s.Aliases, alias) {
			continue
		}
		if served := in.serves(name, s); owner == "" || served && !owned {
			owner, owned = name, served
		}
	}
	return owner
}

// noteUnserved notes why a model has no nodes, and its aliases that nothing answers. others says
// whether another model answers an alias.
func (r *row) noteUnserved(why string, s *cluster.Model, others func(alias string) bool) {
	if silent := slices.DeleteFunc(slices.Clone(s.Aliases), others); len(silent) > 0 {
		why += ", so nothing answers its aliases " + strings.Join(silent, ",")
	}
	r.Notes = append(r.Notes, why)
}

// answered says whether a model with nodes has the name or the alias in the router's view.
func answered(alias string, view *admin.Fleet) bool {
	return slices.ContainsFunc(view.Models, func(m admin.Model) bool {
		return len(m.Nodes) > 0 && (m.Name == alias || slices.Contains(m.Aliases, alias))
	})
}

// noteIdle notes the settings of the model's policy that have no effect in its mode.
func (r *row) noteIdle(s *cluster.Model) {
	if len(s.Policy) == 0 {
		return
	}
	if p, err := policy.Parse(s.Policy); err == nil && cell.Idle(p) != "" {
		r.Notes = append(r.Notes, "in its policy, "+cell.Idle(p))
	}
}

// notePrefillOnly notes that the registered nodes of a model are prefill nodes, which get no
// requests. A router notes it as a problem.
func (r *row) notePrefillOnly(nodes []string, in *registry) {
	pools := r.Stored.Pools
	prefill, inPool := false, false
	for _, id := range nodes {
		role := cmp.Or(in.nodes[id], cluster.RoleBoth)
		switch pool, listed := poolOf(id, pools); {
		case listed:
			role, inPool = pool, true
		case len(pools[role]) > 0:
			continue // the pool has other nodes
		}
		if role != cluster.RolePrefill {
			return
		}
		prefill = true
	}
	if prefill {
		r.Notes = append(r.Notes, fleet.PrefillOnly(inPool))
	}
}

func poolOf(id string, pools map[cluster.Role][]string) (role cluster.Role, listed bool) {
	for role, ids := range pools {
		if slices.Contains(ids, id) {
			return role, true
		}
	}
	return "", false
}

// noteUnused notes the settings in etcd that the router at an address does not use.
func (r *row) noteUnused(at string) {
	unused := r.unused()
	if len(unused) == 0 {
		return
	}
	why := "it follows no etcd or another one (cgn-router --etcd)"
	if r.Router != nil && r.Router.Settings != nil {
		why = "its own [[model]] comes first, or " + why
	}
	r.Notes = append(r.Notes, fmt.Sprintf("the router at %s does not use %s of etcd: %s", at,
		strings.Join(unused, ", "), why))
}

// unused returns the names of the settings in etcd that are not in force on the router. A base or a
// cascade that the router refuses has a note of its own.
func (r *row) unused() (names []string) {
	if r.Stored == nil {
		return nil
	}
	inForce := map[string]json.RawMessage{}
	if r.Router != nil {
		inForce = members(r.Router.Settings)
	}
	refused := func(name string) bool {
		return slices.ContainsFunc(r.Notes, func(note string) bool { return strings.HasPrefix(note, "its "+name+" ") })
	}
	stored := members(r.Stored)
	for _, name := range slices.Sorted(maps.Keys(stored)) {
		if !bytes.Equal(stored[name], inForce[name]) && !refused(name) {
			names = append(names, name)
		}
	}
	return names
}

// members returns the settings as the members of their JSON.
func members(s *cluster.Model) (all map[string]json.RawMessage) {
	doc, err := json.Marshal(s)
	if err == nil {
		err = json.Unmarshal(doc, &all)
	}
	if err != nil {
		return nil // a policy in the router's answer that is no JSON
	}
	return all
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
