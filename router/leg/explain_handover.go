package leg

import (
	"fmt"
	"time"

	"github.com/cognitora/dataplane/router/prefix"
)

// ExplainedPrefill says how the prompt of an explained request would be computed.
type ExplainedPrefill struct {
	Result string `json:"result"` // as in cgn_router_handovers_total
	Why    string `json:"why"`
	// Pick is the pick of the node that would compute the prompt; absent unless Result is split or
	// sooner.
	Pick *Explanation `json:"pick,omitempty"`
}

// explainPrefill says how the prompt would be computed if the request went to the candidate pick.
func (l *Leg) explainPrefill(pick int, now time.Time) *ExplainedPrefill {
	if l.way != Undecided {
		return &ExplainedPrefill{Result: l.way.String(), Why: l.whyWay(l.way) + l.despite()}
	}
	h, a := l.hand, l.spare()
	if h == nil || pick < 0 {
		return nil
	}
	at := int(l.picks.able[pick])
	a.member = l.pool.members[at]
	a.believe(l, at)
	a.forecast.via = l.foresees() && l.picks.policy.Expected(l.situation(), pick).Via > 0
	h.with = a.member.connector
	w := l.wayOf(a)
	e := &ExplainedPrefill{Result: w.String(), Why: l.whyWay(w)}
	if w == Single || w == Unpaired {
		e.Why += l.despite()
	}
	if w == Split || w == Sooner {
		e.Pick = &Explanation{API: l.Request.API.String()}
		h.prefill.picks.scope = scopeExplain
		if h.prefill.explainTo(e.Pick, now) < 0 {
			e.Result, e.Why = NoNode.String(), l.whyWay(NoNode)
		}
	}
	return e
}

// despite says that the node that the client names does not compute the prompt; "" if the client
// names none.
func (l *Leg) despite() string {
	if named := l.namedPrefill(); named.ID != "" {
		return "; " + named.By + " has no effect"
	}
	return ""
}

// whyUnpaired says why no other node pairs with the attempt's node.
func (l *Leg) whyUnpaired(a *attempt) string {
	switch with := l.hand.with; {
	case with == nil:
		return "the answering node has no connector"
	case !l.paired(a):
		return "no other node that computes prompts hands blocks over by the answering node's connector, " + with.Name()
	}
	return "the other node would be of role both as the answering node is, and tokens do not tell whether that pays"
}

// whyWay returns the reason for a way as a sentence.
func (l *Leg) whyWay(w Way) string {
	set, tokens := &l.d.o.Disagg, l.prompt.Tokens()
	switch w {
	case Short:
		return fmt.Sprintf("the prompt has %d tokens, fewer than router.disagg.colocate_below_tokens, %d", tokens,
			set.ColocateBelow)
	case Single:
		switch why, _ := l.obstacle(); why {
		case "api":
			return "requests of this API are computed by one node"
		case "":
			return "the request asks for several answers, which needs the prompts' computation on the answering node"
		default:
			return "the request has " + why + ", which needs the prompt's computation on the answering node"
		}
	case Cached:
		return fmt.Sprintf("%d of %d tokens of the prompt are not cached at the answering node, fewer than "+
			"router.disagg.uncached_below_tokens, %d, and uncached_below_ratio, %g, of the prompt",
			tokens-int64(l.spare().matched)*prefix.BlockTokens, tokens, set.UncachedBelow, set.UncachedRatio)
	case Sooner:
		return "another node would cost more, by expected times"
	case Late:
		return fmt.Sprintf("the node that would compute the prompt is expected to take longer than half of the %d ms that "+
			"are left of the client's deadline", time.Until(l.Request.Deadline).Milliseconds())
	case Unpaired:
		return l.whyUnpaired(l.spare())
	case NoNode:
		return "no node with the connector of the answering node can compute the prompt now"
	case Split:
		if l.spare().member.needy {
			return "the answering node cannot compute prompts"
		}
		if l.foresees() {
			return "another node costs less, by expected times"
		}
		return fmt.Sprintf("the prompt has %d tokens, and the answering node has few of them cached", tokens)
	}
	return ""
}
