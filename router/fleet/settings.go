package fleet

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/policy"
)

// settings are the models' settings of both sources. The fleet's goroutine owns them.
type settings struct {
	ours   map[string]*cluster.Model // of the router's configuration
	stored map[string]*cluster.Model // of etcd
	// inForce has the settings of each model: ours, and for what ours leave out the stored ones. A
	// change makes a new map.
	inForce map[string]*cluster.Model
	// policies are the parsed policies. A model keeps its last usable policy.
	policies map[string]*policy.Policy
	told     map[string]*policy.Policy // of the models of the last snapshot, as Options.Policies got them
	changed  bool                      // a source has changed since the last merge
}

func (s *settings) init(ours map[string]*cluster.Model) {
	*s = settings{ours: ours, stored: map[string]*cluster.Model{}, policies: map[string]*policy.Policy{}, changed: true}
}

// SetModels replaces the models' settings of the router's configuration. SetModels returns nil once
// they are in force. They never come into force if SetModels returns the error of ctx. Run must be
// running.
func (f *Fleet) SetModels(ctx context.Context, ours map[string]*cluster.Model) error {
	return f.do(ctx, func(f *Fleet) { f.setModels(ours) })
}

func (f *Fleet) setModels(ours map[string]*cluster.Model) {
	f.settings.ours, f.settings.changed = ours, true
}

// noteSettings makes the next snapshot merge the settings again.
func (f *Fleet) noteSettings() { f.settings.changed, f.dirty = true, true }

// mergeSettings puts the settings of both sources in force.
func (f *Fleet) mergeSettings() {
	s := &f.settings
	all := maps.Clone(s.stored)
	for name, m := range s.ours {
		all[name] = m.Over(s.stored[name])
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f.takePolicy(name, all[name])
	}
	maps.DeleteFunc(s.policies, func(name string, _ *policy.Policy) bool {
		return all[name] == nil || len(all[name].Policy) == 0
	})
	f.solveOthers(ofModel, func(name string) bool { return all[name] != nil })
	s.inForce, s.changed = all, false
}

// takePolicy parses a model's own policy, if its document is new. A document with a mistake is
// refused, and the policy before stays in force.
func (f *Fleet) takePolicy(name string, m *cluster.Model) {
	if len(m.Policy) == 0 {
		f.solved(ofModel, name)
		return
	}
	if before := f.settings.inForce[name]; before != nil && bytes.Equal(before.Policy, m.Policy) {
		return
	}
	p, err := policy.Parse(m.Policy)
	if err != nil {
		f.problem(ofModel, name, "its policy is refused, and the one before stays in force: "+err.Error())
		return
	}
	f.solved(ofModel, name)
	f.settings.policies[name] = p
	f.o.Logger.Info("a model's own policy in force", "model", name, "mode", p.Mode.String())
	if ignored := policy.Ignored(m.Policy); len(ignored) > 0 {
		f.o.Logger.Warn("settings of a model's policy that have no effect", "model", name, "settings", ignored)
	}
	if idle := p.Idle(); len(idle) > 0 {
		f.o.Logger.Info("settings of a model's policy have no effect in its mode", "model", name, "settings", idle)
	}
}

// tellPolicies calls Options.Policies if the models' own policies differ from those of the snapshot
// before.
func (f *Fleet) tellPolicies(s *Snapshot) {
	own := map[string]*policy.Policy{}
	for _, m := range s.models {
		if m.Policy != nil {
			own[m.Name] = m.Policy
		}
	}
	if first := f.settings.told == nil; f.o.Policies != nil && (first || !maps.Equal(own, f.settings.told)) {
		f.o.Policies(own)
	}
	f.settings.told = own
}

// configure puts the settings in force on the snapshot's models. all has the nodes of each model,
// of every role.
func (s *Snapshot) configure(in *settings, all map[*ModelView][]*Node) {
	s.Settings = in.inForce
	for _, m := range s.models {
		m.Settings = in.inForce[m.Name]
	}
	from := s.findOrigins(all)
	for _, m := range s.models {
		s.findBase(m, in, from, all)
	}
	for _, m := range s.models {
		s.inherit(m, in, all)
	}
	for _, m := range s.models {
		if m.Base == nil {
			s.share(m, all[m])
		}
	}
	for _, m := range s.models {
		if m.Base != nil && !s.shareWithBase(m, all) {
			s.share(m, all[m])
		}
	}
	s.addAliases(in.inForce)
	s.checkChains()
}

// checkChains records what is wrong with the cascades. A cascade that names a model with a cascade
// of its own does not count, because a model of a chain answers by its own nodes only.
func (s *Snapshot) checkChains() {
	var nested []*ModelView
	for _, m := range s.models {
		if outer := s.checkChain(m); outer {
			nested = append(nested, m)
		}
	}
	for _, m := range nested {
		without := *m.Settings
		without.Cascade, m.Settings = cluster.Cascade{}, &without
	}
}

// checkChain records the models of m's cascade that cannot answer. nested says that one of them has
// a cascade itself.
func (s *Snapshot) checkChain(m *ModelView) (nested bool) {
	if m.Settings == nil {
		return false
	}
	for _, name := range m.Settings.Chain {
		switch other := s.names[name]; {
		case other == nil:
			m.Amiss = append(m.Amiss, "its cascade names "+name+", which no node serves and which has no settings")
		case other != m && other.Settings != nil && len(other.Settings.Chain) > 0:
			nested = true
			m.Amiss = append(m.Amiss, "its cascade names "+name+", which has a cascade itself, and does not count; "+
				"name models that have none")
		case len(other.Nodes) == 0:
			s.modelProblem(m, "its cascade names "+name+", which no node serves")
		}
	}
	for _, why := range m.Amiss {
		s.modelProblem(m, why)
	}
	return nested
}

// findBase finds the model whose adapter m is, if m is one: by the settings, or else by the engines
// that list m. A base in the settings that is an adapter itself is a problem, and does not count.
func (s *Snapshot) findBase(m *ModelView, in *settings, from origins, all map[*ModelView][]*Node) {
	if name := m.configuredBase(); name != "" {
		base := s.baseNamed(name, from)
		if base == nil || base == m || !from.adapts(base, in) {
			m.Adapter = true
			if base == nil || base == m || len(all[base]) == 0 {
				s.modelProblem(m, "its base "+name+" is no other model that is served here")
			}
			if base != m {
				m.Base = base
			}
			return
		}
		s.modelProblem(m, "its base "+name+" is an adapter itself, and does not count; name a model that is none")
		without := *m.Settings
		without.Base, m.Settings = "", &without
	}
	if name := from.listed[m]; name != "" {
		m.Adapter = true
		if base := s.baseNamed(name, from); base != m {
			m.Base = base
		}
	}
}

func (m *ModelView) configuredBase() string {
	if m.Settings == nil {
		return ""
	}
	return m.Settings.Base
}

// listedBase returns the model whose adapter the engines of the nodes say the model is; "" for
// none.
func listedBase(model string, nodes []*Node) string {
	for _, n := range nodes {
		if base := n.Info().baseOf(model); base != "" {
			return base
		}
	}
	return ""
}

// origins is what findBase looks up of all models of a snapshot.
type origins struct {
	listed  map[*ModelView]string // the bases of the models that engines list as adapters
	aliased map[string]*ModelView // the models by their aliases
}

// findOrigins looks at all models once. Of two models with the same alias, one with nodes gets it
// before one without, then the first by name.
func (s *Snapshot) findOrigins(all map[*ModelView][]*Node) origins {
	from := origins{map[*ModelView]string{}, map[string]*ModelView{}}
	for _, m := range s.models {
		if base := listedBase(m.Name, all[m]); base != "" {
			from.listed[m] = base
		}
		if m.Settings == nil {
			continue
		}
		for _, alias := range m.Settings.Aliases {
			if before := from.aliased[alias]; before == nil || len(all[before]) == 0 && len(all[m]) > 0 {
				from.aliased[alias] = m
			}
		}
	}
	return from
}

// adapts says whether m is an adapter by the settings or by its engines.
func (o origins) adapts(m *ModelView, in *settings) bool {
	own := in.inForce[m.Name]
	return own != nil && own.Base != "" || o.listed[m] != ""
}

// baseNamed finds a base by its name, or else by an alias.
func (s *Snapshot) baseNamed(name string, from origins) *ModelView {
	if m := s.names[name]; m != nil {
		return m
	}
	return from.aliased[name]
}

// modelProblem records why a setting of m is not used.
func (s *Snapshot) modelProblem(m *ModelView, reason string) {
	s.Problems = append(s.Problems, Problem{Subject: ofModel.name(m.Name), Reason: reason})
}

// inherit gives an adapter what its own settings leave out: policy, pools and loading time of its
// base. An adapter with a base in its own settings is served by all nodes of the base.
func (s *Snapshot) inherit(m *ModelView, in *settings, all map[*ModelView][]*Node) {
	m.Policy = in.policies[m.Name]
	base := m.Base
	if base == nil {
		return
	}
	m.Policy = cmp.Or(m.Policy, in.policies[base.Name])
	if own := m.Settings; own != nil && own.Base != "" {
		all[m] = union(all[m], all[base])
	}
	if under := in.inForce[base.Name]; under != nil {
		m.Settings = m.Settings.Over(&cluster.Model{Pools: under.Pools, AdapterLoadS: under.AdapterLoadS})
	}
}

func byID(a, b *Node) int { return strings.Compare(a.ID, b.ID) }

// union returns the nodes of both sorted lists. The result is base itself if that has them all.
func union(own, base []*Node) []*Node {
	found := 0
	for _, n := range base {
		for found < len(own) && own[found] == n {
			found++
		}
	}
	if found == len(own) {
		return base
	}
	all := slices.Concat(own, base)
	slices.SortFunc(all, byID)
	return slices.Compact(all)
}

// ownPools says whether the model's own settings have pools.
func (s *Snapshot) ownPools(m *ModelView) bool {
	own := s.Settings[m.Name]
	return own != nil && len(own.Pools) > 0
}

// shareWithBase gives an adapter the lists of its base, if it has the same nodes and no pools of
// its own. shareWithBase returns false otherwise.
func (s *Snapshot) shareWithBase(m *ModelView, all map[*ModelView][]*Node) bool {
	base := m.Base
	if base.Base != nil || s.ownPools(m) || !slices.Equal(all[m], all[base]) {
		return false
	}
	m.Nodes, m.Prefill, m.roles = base.Nodes, base.Prefill, base.roles
	return true
}

// share splits a model's nodes by role. A pool in the settings decides before the node's own role.
// Pools of an adapter's base may name nodes that do not serve the adapter.
func (s *Snapshot) share(m *ModelView, nodes []*Node) {
	var pools map[cluster.Role][]string
	if m.Settings != nil {
		pools = m.Settings.Pools
	}
	if len(pools) > 0 {
		m.roles = make(map[*Node]cluster.Role, len(nodes))
	}
	for _, role := range slices.Sorted(maps.Keys(pools)) {
		for _, id := range pools[role] {
			if n := s.byID[id]; n != nil && slices.Contains(nodes, n) {
				m.roles[n] = role
			}
		}
		if s.ownPools(m) { // those of an adapter's base are told of the base
			s.notePool(m, role, pools[role])
		}
	}
	for _, n := range nodes {
		role, listed := m.roles[n]
		if !listed {
			if role = n.Info().Role; len(pools[role]) > 0 {
				continue
			}
		}
		if role == cluster.RolePrefill {
			m.Prefill = append(m.Prefill, n)
		} else {
			m.Nodes = append(m.Nodes, n)
		}
	}
	if len(m.Nodes) == 0 && len(m.Prefill) > 0 {
		s.modelProblem(m, PrefillOnly(m.roles[m.Prefill[0]] != ""))
	}
}

// PrefillOnly returns the problem of a model that has only prefill nodes. inPool says that its
// settings made them prefill nodes.
func PrefillOnly(inPool bool) string {
	why := "its nodes all have role prefill"
	if inPool {
		why = "its nodes are all in its pool prefill"
	}
	return why + ", and a prefill node answers nothing; the model has no node of role both or decode"
}

// WhyPrefill says why n, a prefill node of the model, gets no requests for it.
func (m *ModelView) WhyPrefill(n *Node) string {
	if m.roles[n] == "" {
		return n.whyPrefill()
	}
	return "it is in the pool prefill of model " + m.Name + ", whose requests are answered by roles both and decode"
}

// notePool records the nodes of a pool that do not serve the model.
func (s *Snapshot) notePool(m *ModelView, role cluster.Role, pool []string) {
	serves := func(id string) bool { return m.roles[s.byID[id]] == role }
	alone := ""
	if !slices.ContainsFunc(pool, serves) {
		alone = "; until a node of the pool does, the model has no node of this role"
	}
	for _, id := range pool {
		if !serves(id) {
			s.modelProblem(m, "its pool "+string(role)+" names node "+id+", which does not serve it now"+alone)
		}
	}
}

// answers says whether the node answers requests for some model.
func (s *Snapshot) answers(n *Node) bool {
	return slices.ContainsFunc(s.models, func(m *ModelView) bool { return slices.Contains(m.Nodes, n) })
}

// Role returns the role in which n serves the model.
func (m *ModelView) Role(n *Node) cluster.Role {
	if role, listed := m.roles[n]; listed {
		return role
	}
	return n.Info().Role
}

// SameRoles says whether the settings of both models give the same roles to the same nodes.
func (m *ModelView) SameRoles(other *ModelView) bool { return maps.Equal(m.roles, other.roles) }
