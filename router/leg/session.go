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
// policy counts the node as equal to the best one, or in mode cost as near to it.
func (l *Leg) pick(p *policy.Policy, turn uint64, now time.Time) int {
	home := l.home(now)
	if home >= 0 && l.d.o.HardSessions && l.hasRoom(p, home, turn) {
		return home
	}
	s := l.situation(turn)
	s.Home = home + 1
	return p.Pick(s)
}

// hasRoom says whether the policy would pick the candidate if it were the only one.
func (l *Leg) hasRoom(p *policy.Policy, i int, turn uint64) bool {
	s := l.situation(turn)
	s.Candidates = s.Candidates[i : i+1]
	return p.Pick(s) == 0
}

// explain is pick with its reasons.
func (l *Leg) explain(p *policy.Policy, turn uint64, now time.Time, e *policy.Explanation) int {
	home := l.home(now)
	hard := home >= 0 && l.d.o.HardSessions && l.hasRoom(p, home, turn)
	s := l.situation(turn)
	s.Home = home + 1
	pick := p.Explain(s, e)
	if hard {
		e.Why = "its session is there, and router.session.affinity is hard"
		return home
	}
	return pick
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
