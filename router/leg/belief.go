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

// look finds out where the prompt's blocks are, unless the policy gives prefixes no worth. The leg
// keeps to that if another policy comes into force: a prompt that was not looked up is held by no
// node, and is recorded for none.
func (l *Leg) look() {
	if l.piece != nil {
		l.lookAtPiece()
		return
	}
	own := l.overrides()
	if l.d.policyOf(l.model).UsesPrefixes(&own) {
		l.d.where.Find(l.prompt, l.Request, l.model.name, l.model.seed, l.pool.ranks)
	} else {
		l.prompt.Measure(l.Request, len(l.pool.ranks))
	}
}
