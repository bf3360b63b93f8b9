package leg

import (
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/policy"
)

// sessionCounts counts answers by their effect on their sessions.
type sessionCounts [affinity.Moved + 1]prometheus.Counter

func newSessionCounts(m *metrics.Router) (c sessionCounts) {
	for change, name := range map[affinity.Change]string{
		affinity.Begun: "new", affinity.Kept: "kept", affinity.Moved: "moved",
	} {
		c[change] = m.SessionAnswers.WithLabelValues(name)
	}
	return c
}

// identify finds the session of a leg whose prompt stays in the cache of the answering node.
func (l *Leg) identify() {
	if s := l.d.sessions; s != nil && len(l.Request.Session) > 0 && l.Work == Answer && l.Request.Predicts() {
		l.picks.session = s.Key(l.model.name, l.Request.Session)
	}
}

// home returns the place among the candidates of the node at which the leg's session is, or -1.
func (l *Leg) home(now time.Time) int {
	if l.picks.session == 0 {
		return -1
	}
	node, ok := l.d.sessions.Node(l.picks.session, now)
	if !ok {
		return -1
	}
	for i := range l.picks.cands {
		if l.picks.cands[i].IDHash == node {
			return i
		}
	}
	return -1
}

// pick returns the candidate that the session or the policy chooses, or -1 if no candidate has
// room. A hard session stays at its node while the node has room. A soft session stays while the
// policy counts the node as equal to the best one.
func (l *Leg) pick(p *policy.Policy, turn uint64, now time.Time) int {
	home := l.home(now)
	if home >= 0 && l.d.o.HardSessions && l.hasRoom(p, home, turn) {
		return home
	}
	pick := p.Pick(l.picks.cands, l.prompt.Blocks, l.prompt, turn)
	if home >= 0 && home != pick && pick >= 0 && l.equalsBest(p, home, turn) {
		return home
	}
	return pick
}

// hasRoom says whether the policy would pick the candidate if it were the only one.
func (l *Leg) hasRoom(p *policy.Policy, i int, turn uint64) bool {
	return p.Pick(l.picks.cands[i:i+1], l.prompt.Blocks, l.prompt, turn) == 0
}

// equalsBest says whether the policy counts the candidate as equal to the best one. Only mode score
// counts nodes as equal. equalsBest allocates, but is called only for a session whose node the
// policy has not picked.
func (l *Leg) equalsBest(p *policy.Policy, i int, turn uint64) bool {
	if p.Mode != policy.Score {
		return false
	}
	terms := make([]policy.Terms, len(l.picks.cands))
	p.Explain(l.picks.cands, l.prompt.Blocks, l.prompt, turn, terms)
	best := math.Inf(-1)
	for at := range terms {
		if terms[at].Eligible {
			best = max(best, terms[at].Total)
		}
	}
	return terms[i].Eligible && terms[i].Total >= best-p.Epsilon
}

// explain is the policy's Explain, but for the session's part in the choice.
func (l *Leg) explain(p *policy.Policy, turn uint64, now time.Time, terms []policy.Terms) (pick int, why string) {
	pick, why = p.Explain(l.picks.cands, l.prompt.Blocks, l.prompt, turn, terms[:len(l.picks.cands)])
	at := l.pick(p, turn, now)
	switch {
	case at == pick:
		return pick, why
	case l.d.o.HardSessions:
		return at, "its session is there, and router.session.affinity is hard"
	}
	return at, fmt.Sprintf("its session is there, and its score is within %g of the best", p.Epsilon)
}

// sessionAnswered notes that the node of an attempt has begun an answer for the session.
func (l *Leg) sessionAnswered(a *attempt, now time.Time) {
	if l.picks.session != 0 {
		l.d.sessionCounts[l.d.sessions.Answered(l.picks.session, a.node.IDHash, now)].Inc()
	}
}

// sessionEnded notes the end of the node's answer for the session.
func (l *Leg) sessionEnded(a *attempt, now time.Time) {
	if l.picks.session != 0 && a.status < 300 {
		l.d.sessions.Ended(l.picks.session, a.node.IDHash, now)
	}
}
