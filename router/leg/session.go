package leg

import (
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

// homeHash returns the IDHash of the session's node; 0: it has none.
func (l *Leg) homeHash(now time.Time) uint64 {
	if l.picks.session == 0 {
		return 0
	}
	node, _ := l.d.sessions.Node(l.picks.session, now)
	return node
}

// home returns 1 + the place of the session's node among the candidates, or 0 if it has none.
func (l *Leg) home(now time.Time) int {
	node := l.homeHash(now)
	if node == 0 {
		return 0
	}
	for i := range l.picks.cands {
		if l.picks.cands[i].IDHash == node {
			return i + 1
		}
	}
	return 0
}

// pick returns the candidate that the session or the policy chooses, or -1 if no candidate has
// room. A hard session stays at its node while the node has room. A soft session stays while the
// policy counts the node as equal to the best one, or as near to it in modes cost and predicted.
// pick says why in e, unless e is nil.
func (l *Leg) pick(now time.Time, e *policy.Explanation) int {
	home := l.home(now)
	stays := home > 0 && l.d.o.HardSessions && l.hasRoom(home-1)
	if stays && e == nil {
		return home - 1
	}
	s := l.situation()
	s.Home = home
	if e == nil {
		return l.picks.policy.Pick(s)
	}
	pick := l.picks.policy.Explain(s, e)
	if stays {
		e.Why = "its session is there, and router.session.affinity is hard"
		return home - 1
	}
	return pick
}

// hasRoom says whether the policy would pick the candidate if it were the only one.
func (l *Leg) hasRoom(i int) bool {
	s := l.situation()
	s.Candidates = s.Candidates[i : i+1]
	if len(s.Times) > 0 {
		s.Times = s.Times[i : i+1]
	}
	return l.picks.policy.Pick(s) == 0
}

// sessionAnswered notes that the node of an attempt has begun an answer for the session.
func (l *Leg) sessionAnswered(a *attempt, now time.Time) {
	if l.picks.session != 0 {
		l.d.sessionCounts[l.d.sessions.Answered(l.picks.session, a.member.rank.IDHash, now)].Inc()
	}
}

// sessionEnded notes the end of the node's answer for the session.
func (l *Leg) sessionEnded(a *attempt, now time.Time) {
	if l.picks.session != 0 && a.status < 300 {
		l.d.sessions.Ended(l.picks.session, a.member.rank.IDHash, now)
	}
}
