package leg

import (
	"fmt"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/scan"
)

// A node whose engine has data-parallel ranks is one candidate for each rank. The ranks share the
// node's health, labels and slots. Each rank has its own load, book, beliefs and busy latch. The
// attempt names the chosen rank to the engine.

// part makes a candidate for one of count ranks of a node out of one with the memory and the slots
// of the whole node. The ranks share them evenly, and the node's limit too, so that load is a share
// of what the rank can take.
func part(c *policy.Candidate, count, limit int32) {
	c.VRAM /= float32(count)
	share, slots := (limit+count-1)/count, (c.EngineSlots+count-1)/count
	if c.EngineSlots = slots; share > 0 && (slots <= 0 || share < slots) {
		c.EngineSlots = share
	}
}

// limit returns how many requests the rank may have at once; 0: no limit, below 0: none. The ranks
// of a node share its limit. node and rank are the numbers of requests of others there.
func (n *member) limit(node, rank int32) int32 {
	limit := n.node.MaxConcurrent()
	if n.rank.Count == 1 || limit == 0 {
		return limit
	}
	if limit -= n.rank.Beside(node, rank); limit > 0 {
		return limit
	}
	return -1
}

// most says whether is holds for more than half of the candidates' nodes. is is equal for all ranks
// of a node.
func (l *Leg) most(is func(at int32) bool) bool {
	nodes, those := 0, 0
	var last *nodeState
	for _, at := range l.picks.able {
		n := l.pool.members[at].node
		if n == last {
			continue
		}
		if nodes++; is(at) {
			those++
		}
		last = n
	}
	return 2*those > nodes
}

// refuseRank returns the error of a request whose rank no node that may answer has, or nil.
func (l *Leg) refuseRank() *apierror.Error {
	if !l.Rank.Given {
		return nil
	}
	most := 0
	for _, n := range l.pool.members {
		if (l.Bond == Free || n.node.ID == l.Node) && !l.disallows(n) {
			most = max(most, n.rank.Count)
		}
	}
	return errRank(l.Rank.Value, l.RankBy, "no node that may answer", most)
}

// refusePrefillRank returns the error of a request whose prefill rank no node that may compute its
// prompt has, or nil. pool has the nodes that compute prompts, and at is the place of the named
// one; -1: none is named.
func (l *Leg) refusePrefillRank(pool *pool, at int) *apierror.Error {
	x := l.Request.Nvext
	if x == nil || !x.Prefill.Rank.Given {
		return nil
	}
	most := 0
	for i, m := range pool.members {
		if at < 0 || i == at {
			most = max(most, m.rank.Count)
		}
	}
	return errRank(x.Prefill.Rank.Value, x.Prefill.RankBy, "no node that may compute the prompt", most)
}

// errRank returns the error of a request for a rank that none of its nodes has, or nil. by is the
// field or header that names the rank, and nobody says who has it not. most is the largest number
// of ranks of these nodes; 0: there is no node.
func errRank(rank uint32, by, nobody string, most int) *apierror.Error {
	if most == 0 || rank < uint32(most) {
		return nil
	}
	ranks := "has data-parallel ranks; leave it out"
	if most > 1 {
		ranks = fmt.Sprintf("has more than %d data-parallel ranks; send a number from 0 to %d", most, most-1)
	}
	return &apierror.Error{
		Status: 400, Code: scan.CodeValue, Param: by,
		Message: fmt.Sprintf("`%s` is %d, but %s %s", by, rank, nobody, ranks),
	}
}
