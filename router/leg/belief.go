package leg

import "github.com/cognitora/dataplane/router/holdings"

// belief is what the router knew at the pick of a prompt's leading blocks at the node.
type belief struct {
	matched  int            // believed to be at the node or its host
	reach    holdings.Reach // what the node reaches, by what engines and caches report
	coming   int32          // that the engine had, or computed for others
	promised int            // see where.Prompt.Promised
	believed int            // predicted in the engine's own memory by the time when it begins the prompt
}

// believe stores the beliefs about the node at a place of the leg's pool.
func (a *attempt) believe(l *Leg, at int) {
	r := l.reach(at)
	a.matched, a.believed = int(max(r.Device, r.Host, r.Disk)), l.prompt.Predicted(at)
	a.reach, a.coming, a.promised = l.prompt.Reach(at), l.prompt.Coming(at), l.prompt.Promised(at)
}

// reach returns how far the prompt reaches on the node at a place of the leg's pool, as far as its
// engine uses the blocks outside of its own memory.
func (l *Leg) reach(at int) holdings.Reach {
	r := l.prompt.Reach(at)
	if !l.prompt.Reported() {
		return r
	}
	return l.pool.members[at].node.usage.Apply(r)
}
