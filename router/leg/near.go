package leg

import (
	"slices"
	"time"

	"github.com/cognitora/dataplane/router/connector"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
)

// near are the two nodes of a connector that could compute the prompt at the least cost.
type near struct {
	with  connector.Connector
	nodes [2]nearNode // the cheaper one first
}

// nearNode is a node that could compute the prompt.
type nearNode struct {
	node  *fleet.Node // nil: there is none
	cost  float64     // in seconds
	first float64     // expected seconds until its first token
	stall float64     // expected loss of its other requests, in seconds
	late  bool        // the client's deadline does not leave as much time
}

// cheapest appends the nodes of a leg for P that cost least by expected times at now, two for each
// connector.
func (l *Leg) cheapest(now time.Time, all []near) []near {
	l.picks.policy, l.picks.turn = l.d.policyOf(l.model), ^uint64(0) // a turn that tries no node
	l.candidates(now)
	l.foreseeAll(now)
	s, weights, end := l.situation(), &l.picks.policy.Predicted, l.partEnd(now)
	for i := range s.Candidates {
		if !s.Candidates[i].Room() {
			continue
		}
		t := l.picks.policy.Expected(s, i)
		p := l.pool.members[l.picks.able[i]]
		at := slices.IndexFunc(all, func(n near) bool { return n.with == p.connector })
		if at < 0 {
			at, all = len(all), append(all, near{with: p.connector})
		}
		all[at].add(nearNode{
			p.node.Node, weights.First*t.First + weights.Others*t.Stalls, t.First, t.Stalls,
			l.misses(p, t.First, now, end),
		})
	}
	return all
}

// add keeps x if it is one of the two cheapest nodes. A node counts once, by its cheapest rank.
func (n *near) add(x nearNode) {
	first, second := &n.nodes[0], &n.nodes[1]
	switch {
	case first.node == nil || x.cost < first.cost:
		if first.node != x.node {
			*second = *first
		}
		*first = x
	case first.node != x.node && (second.node == nil || x.cost < second.cost):
		*second = x
	}
}

// nearest returns the node that would compute the prompt for n; without a node: none is expected
// to.
func (h *hand) nearest(n *member) (x nearNode) {
	for i := range h.near {
		if at := &h.near[i]; at.with == n.connector {
			if x = at.nodes[0]; x.node == n.node.Node {
				x = at.nodes[1]
			}
		}
	}
	return x
}

// via returns what is expected if another node computes the prompt for n.
func (h *hand) via(n *member) policy.Via {
	at := h.nearest(n)
	if at.node == nil || (at.late || h.of.way.final()) && !n.needy {
		return policy.Via{}
	}
	transfer := h.of.model.transfer.Expected(float64(h.of.prompt.Tokens()))
	return policy.Via{First: max(at.first+transfer, 1e-9), Stalls: at.stall, Always: h.of.d.o.Disagg.Always}
}
