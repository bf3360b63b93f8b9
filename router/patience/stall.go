package patience

import (
	"math"
	"time"
)

const (
	asideAt  = 1.0 / 100  // chance of being healthy at which a node is set aside
	rescueAt = 1.0 / 1000 // and at which its waiting attempts are moved

	certain     = 1.0 / 1000 // witness beyond what it can possibly need
	streamLate  = 1.0 / 100  // witness past its first-byte limit
	callLeast   = 1.0 / 50   // no single unstreamed attempt says more by statistics alone
	begunSilent = 1.0 / 10   // stream that has begun and gets nothing
	begunMost   = 4
	patientFor  = 4.0 // times what was expected
)

type level uint8

const (
	fine level = iota
	aside
	rescue
)

// evidence is what the witnesses of one silence say together.
type evidence struct {
	chance float64 // that the node is healthy
	sharp  bool    // some witness waits longer than three answers in four
}

func (e *evidence) add(p float64) {
	e.chance *= p
	e.sharp = e.sharp || p <= 0.25
}

func (e *evidence) level() level {
	const rounding = 1e-9
	switch {
	case e.chance <= rescueAt+rounding:
		return rescue
	case e.chance <= asideAt+rounding:
		return aside
	}
	return fine
}

// judge weighs the silence of one node, moves its attempts when sure enough, and reports it
// when there is something new to say.
func (m *Model) judge(n *Node, now time.Duration) (Stall, bool) {
	pulse := n.pulse.at()
	if pulse > n.levelAt {
		n.level = fine
	}
	if pulse > n.overdueAt {
		n.overdue = 0
	}
	since, open := n.silentSince(pulse)
	if !open || now-since < min(m.o.FirstByteFloor, m.o.StallFloor) || len(m.nodes) < 2 {
		return Stall{}, false
	}
	count, slow := m.answers.peersSince(n, since)
	if count == 0 {
		return Stall{}, false
	}
	victims := n.level != fine && n.lastDispatch() > n.levelAt
	e := m.weigh(n, since, now, slow)
	if victims {
		e.chance *= asideAt
	}
	found := e.level()
	if found == fine || !e.sharp {
		return Stall{}, false
	}
	s := Stall{Node: n, Silent: now - since, Waiting: n.streams.n + n.calls.n, Rescue: found == rescue}
	if found == rescue {
		m.askAll(&n.streams, now)
		m.askAll(&n.calls, now)
	}
	if found <= n.level && !victims {
		return Stall{}, false
	}
	n.level, n.levelAt = max(found, n.level), now
	return s, true
}

// silentSince is the later of the last sign of life and the dispatch of the oldest attempt
// that got nothing; open is false when nothing is owed by the node.
func (n *Node) silentSince(pulse time.Duration) (since time.Duration, open bool) {
	if n.begun > 0 {
		return pulse, true
	}
	oldest := time.Duration(math.MaxInt64)
	for _, l := range []*attempts{&n.streams, &n.calls} {
		if l.head != nil {
			oldest = min(oldest, l.head.start)
		}
	}
	if n.overdue > 0 {
		oldest = min(oldest, n.lostAt)
	}
	return max(pulse, oldest), oldest != math.MaxInt64
}

// lastDispatch is when the newest attempt that got nothing was sent.
func (n *Node) lastDispatch() time.Duration {
	last := never
	for _, l := range []*attempts{&n.streams, &n.calls} {
		if l.tail != nil {
			last = max(last, l.tail.start)
		}
	}
	if n.overdue > 0 {
		last = max(last, n.lostLast)
	}
	return last
}

func (m *Model) weigh(n *Node, since, now time.Duration, slow float64) evidence {
	e := evidence{chance: 1}
	for range n.overdue {
		e.add(streamLate)
	}
	lim := m.limitsOf(n)
	for a := n.streams.head; a != nil; a = a.next {
		if now-a.start >= m.limit(a, lim) && silentFor(a, since, now) {
			e.add(streamLate)
		}
	}
	if now-since < m.o.StallFloor {
		return e
	}
	for a := n.calls.head; a != nil; a = a.next {
		e.add(m.callChance(a, since, now, slow))
	}
	if 2*(now-since) >= 5*m.o.StallFloor {
		for range min(n.begun, begunMost) {
			e.add(begunSilent)
		}
	}
	return e
}

// silentFor is whether the node has said nothing for at least half of the wait.
func silentFor(a *Attempt, since, now time.Duration) bool { return 2*(now-since) >= now-a.start }

// callChance is the chance that a healthy node answers this unstreamed attempt later than now,
// given that it had not when the silence began.
func (m *Model) callChance(a *Attempt, since, now time.Duration, slow float64) float64 {
	seen := &m.calls[a.work.kind()]
	slow *= seen.scale(a.work.UncachedTokens + a.work.CachedTokens)
	wait, before := (now - a.start).Seconds(), max(since-a.start, 0).Seconds()
	if bound := m.longestCall(a, seen); bound > 0 && wait-before > patientFor*slow*bound {
		return certain
	}
	return max(callLeast, seen.survival(wait/slow)/seen.survival(before/slow))
}

// longestCall is the longest time that a healthy node may need, 0 while that is unknown.
func (m *Model) longestCall(a *Attempt, seen *spread) float64 {
	if a.work.MaxTokens <= 0 {
		return seen.longest()
	}
	if m.perToken.n < known || seen.n < known {
		return 0
	}
	bound := m.perToken.hi * float64(a.work.MaxTokens)
	if m.first.n < known { // what prompts cost is then only known from whole answers
		return max(bound, seen.longest())
	}
	return bound + m.first.expect(float64(a.tokens+a.work.CachedTokens))
}

func (m *Model) askAll(l *attempts, now time.Duration) {
	for a := l.head; a != nil; {
		next := a.next
		m.ask(a, Stalled, now)
		a = next
	}
}
