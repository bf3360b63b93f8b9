package router

import (
	"slices"
	"sync/atomic"

	"github.com/cognitora/dataplane/router/fleet"
)

// untokenised holds the nodes whose engines report blocks of tokens that the router cannot compute
// from text. One goroutine updates untokenised, and scrapes read it.
type untokenised struct {
	models atomic.Pointer[map[string]string] // model of each node of this kind, by the node's id; nil: not computed yet
	seen   *fleet.Snapshot                   // snapshot of the fleet at the last update
	rev    uint64
	said   map[string]string // logged models, by node id
}

// maxSaid bounds the remembered log lines. Beyond maxSaid the nodes that are no longer untokenised
// are forgotten.
const maxSaid = 8192

// all returns one model for each node id.
func (u *untokenised) all() map[string]string {
	if models := u.models.Load(); models != nil {
		return *models
	}
	return nil
}

// fresh returns the sorted ids of the nodes that were not logged yet, and marks them as logged. A
// node that leaves and comes back is not logged again.
func (u *untokenised) fresh() (ids []string) {
	now := u.all()
	for id, model := range now {
		if u.said[id] != model {
			ids = append(ids, id)
		}
	}
	if len(u.said)+len(ids) > maxSaid {
		for id := range u.said {
			if _, is := now[id]; !is {
				delete(u.said, id)
			}
		}
	}
	if u.said == nil {
		u.said = map[string]string{}
	}
	for _, id := range ids {
		u.said[id] = now[id]
	}
	slices.Sort(ids)
	return ids
}

// lookForUntokenised updates the nodes after a change of the fleet or of the reporting engines.
// lookForUntokenised logs each node once.
func (r *Router) lookForUntokenised(now *fleet.Snapshot) {
	u, rev := &r.untokenised, r.holdings.Rev()
	if now == u.seen && rev == u.rev {
		return
	}
	u.seen, u.rev = now, rev
	all := map[string]string{}
	known := func(model string) bool { return tokenises(now, model) }
	for _, n := range now.Nodes {
		models := n.Info().Models
		if len(models) > 0 && r.reports(n) && !slices.ContainsFunc(models, known) {
			all[n.ID] = models[0]
		}
	}
	u.models.Store(&all)
	for _, id := range u.fresh() {
		r.log.Error("an engine tells by KV events what it has cached, but the router cannot make its tokens of text, "+
			"which is predicted: add [[model]] with name and tokenizer (or cgn-ctl model set), tokenizer \"learn\", or "+
			"tokenizer \"none\" if prompts are given as token ids", "node", id, "model", all[id])
	}
}

// reports says whether the node's engine reports its blocks, at one of its ranks at least.
func (r *Router) reports(n *fleet.Node) bool {
	return slices.ContainsFunc(n.Ranks(), func(rank *fleet.Rank) bool { return r.holdings.Reports(rank.Name) })
}
