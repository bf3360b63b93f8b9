package router

import (
	"slices"
	"sync/atomic"

	"github.com/cognitora/dataplane/router/fleet"
)

// untokenised are the nodes whose engines tell what they have in tokens that the router cannot make
// of text. One goroutine keeps it, scrapes read it.
type untokenised struct {
	models atomic.Pointer[map[string]string] // of each of them, by its id; nil: nobody has looked yet
	seen   *fleet.Snapshot                   // as of which, and of what has told
	rev    uint64
	said   map[string]string // models that were complained of, by the node's id
}

// maxSaid bounds the nodes that are remembered to have been complained of. Past it those are
// forgotten that are none of them at the time.
const maxSaid = 8192

// all is by each node's id one of its models.
func (u *untokenised) all() map[string]string {
	if models := u.models.Load(); models != nil {
		return *models
	}
	return nil
}

// fresh are the ids of those, in their order, that have not been complained of, which it takes for
// done. A node that leaves and comes back is not one of them.
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

// lookForUntokenised finds them, where the fleet or who tells is not the same as before, and
// complains of each once.
func (r *Router) lookForUntokenised(now *fleet.Snapshot) {
	u, rev := &r.untokenised, r.holdings.Rev()
	if now == u.seen && rev == u.rev {
		return
	}
	u.seen, u.rev = now, rev
	all := map[string]string{}
	for _, n := range now.Nodes {
		models := n.Info().Models
		if len(models) > 0 && r.holdings.Reports(n.ID) && !slices.ContainsFunc(models, r.config.tokenises) {
			all[n.ID] = models[0]
		}
	}
	u.models.Store(&all)
	for _, id := range u.fresh() {
		r.log.Error("an engine tells by KV events what it has cached, but the router cannot make its tokens of text, "+
			"which is predicted: add [[model]] with name and tokenizer, or tokenizer = \"none\" if prompts are given "+
			"as token ids", "node", id, "model", all[id])
	}
}
