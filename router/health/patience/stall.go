package patience

import (
	"math"
	"time"
)

const (
	asideAt  = 1.0 / 100  // chance of health at which a node is set aside
	rescueAt = 1.0 / 1000 // chance of health at which a node's waiting attempts are moved

	certain    = 1.0 / 1000 // p of a witness beyond the longest possible time
	streamLate = 1.0 / 100  // p of a witness past the first-byte limit
	callLeast  = 1.0 / 50   // lower bound of an unstreamed attempt's p from statistics
	tellingAt  = 1.0 / 4    // a witness with a higher p does not count
	patientFor = 4.0        // multiple of the expected time
	slower     = 2.0        // slowness that a healthy node may have compared with its peers
)

type level uint8

const (
	fine level = iota
	aside
	rescue
)

// lost counts the streams given up as overdue in one silence.
type lost struct {
	old, new int           // before and after the first report of the silence
	oldest   time.Duration // dispatch
	newest   time.Duration
	expected float64 // expected seconds of the oldest
}

func (l *lost) add(start time.Duration, expected float64) {
	if l.old+l.new == 0 {
		l.oldest, l.newest, l.expected = start, start, expected
	}
	if start < l.oldest {
		l.oldest, l.expected = start, expected
	}
	l.newest = max(l.newest, start)
	l.new++
}

// evidence is the chance that the node is healthy, by the witnesses of one silence. old covers the
// witnesses of the first report, and new covers the later ones.
type evidence struct {
	reportAt time.Duration // time of the first report; never = there was none
	old, new float64
	sharp    bool          // some new witness has a p of at most tellingAt
	newest   time.Duration // dispatch of the newest of these witnesses
}

func (e *evidence) add(start time.Duration, p float64) {
	if start <= e.reportAt {
		e.old *= p
		return
	}
	e.new *= p
	if p <= tellingAt {
		e.sharp, e.newest = true, max(e.newest, start)
	}
}

func (e *evidence) level() level {
	const rounding = 1e-9
	chance := e.old * e.new
	if e.reportAt != never {
		chance = min(e.old, asideAt) * e.new
	}
	switch {
	case chance <= rescueAt+rounding:
		return rescue
	case chance <= asideAt+rounding:
		return aside
	}
	return fine
}

// judge weighs the silence of one node. judge reports the node when the evidence is new. On strong
// evidence judge moves the attempts that were sent to the node before its last report. Later
// attempts stay until the evidence grows, because the node may have recovered since the report.
func (m *Model) judge(n *Node, now time.Duration) (Stall, bool) {
	pulse := n.pulse.At()
	if pulse > n.levelAt {
		n.level, n.levelAt = fine, never
	}
	if pulse > n.overdueAt {
		n.lost = lost{}
	}
	since, open := n.silentSince(pulse)
	if n.level != fine {
		since = min(since, n.levelFor) // the same silence goes on
	}
	if !open || now-since < min(m.o.PatienceFloor, m.o.StallFloor) || len(m.nodes) < 2 {
		return Stall{}, false
	}
	count, slow := m.answers.peersSince(n, since)
	if count == 0 {
		return Stall{}, false
	}
	e := m.weigh(n, since, now, slow, float64(count))
	found := e.level()
	if found == fine {
		return Stall{}, false
	}
	news := found > n.level || e.sharp && e.newest > n.toldAt
	if news {
		if n.level == fine {
			n.levelAt, n.levelFor = now, since
			n.lost.old, n.lost.new = n.lost.old+n.lost.new, 0
		}
		n.level, n.toldAt = max(found, n.level), now
	}
	if found == rescue {
		m.askAll(&n.streams, n.toldAt, now)
		if now-n.levelAt >= m.o.StallFloor {
			m.askAll(&n.calls, n.toldAt, now)
		}
	}
	return Stall{Node: n, Rescue: found == rescue}, news
}

// silentSince returns the begin of the node's silence: the last sign of life, or the dispatch of
// the oldest unanswered attempt if that is later. open is false without such an attempt. A stream
// that has begun does not count, because a client that stops reading silences it too.
func (n *Node) silentSince(pulse time.Duration) (since time.Duration, open bool) {
	oldest := time.Duration(math.MaxInt64)
	for _, l := range []*attempts{&n.streams, &n.calls} {
		if l.head != nil {
			oldest = min(oldest, l.head.start)
		}
	}
	if n.lost.old+n.lost.new > 0 {
		oldest = min(oldest, n.lost.oldest)
	}
	return max(pulse, oldest), oldest != math.MaxInt64
}

func (m *Model) weigh(n *Node, since, now time.Duration, slow, answered float64) evidence {
	e := evidence{reportAt: n.levelAt, old: 1, new: 1}
	if (now - n.lost.oldest).Seconds() > m.factor()*slow*n.lost.expected {
		for range n.lost.old {
			e.add(never, streamLate)
		}
		for range n.lost.new {
			e.add(n.lost.newest, streamLate)
		}
	}
	lim := m.limitsOf(n)
	for a := n.streams.head; a != nil; a = a.next {
		if now-a.start >= m.limit(a, lim) && silentFor(a, since, now) {
			e.add(a.start, streamLate)
		}
	}
	if now-since < m.o.StallFloor {
		return e
	}
	slow = max(slow, n.callRatio)
	m.rewind(n)
	for a := n.calls.head; a != nil && now-a.start >= m.o.PatienceFloor; a = a.next {
		alike := float64(m.waitAsLong(a.start))
		if p := max(m.callChance(a, since, now, slow), alike/(alike+answered)); p <= tellingAt {
			e.add(a.start, p)
		}
	}
	return e
}

// rewind prepares waitAsLong for the first unstreamed attempt at n.
func (m *Model) rewind(n *Node) {
	for _, peer := range m.nodes {
		peer.cursor, peer.passed = peer.calls.head, 0
	}
	n.cursor = nil
}

// waitAsLong counts the peers' waiting unstreamed attempts that were sent no later than start.
// Calls must come in the order of start.
func (m *Model) waitAsLong(start time.Duration) (count int) {
	for _, peer := range m.nodes {
		for peer.cursor != nil && peer.cursor.start <= start {
			peer.cursor, peer.passed = peer.cursor.next, peer.passed+1
		}
		count += peer.passed
	}
	return count
}

// silentFor says whether the node has been silent for at least half of the wait.
func silentFor(a *Attempt, since, now time.Duration) bool { return 2*(now-since) >= now-a.start }

// callChance returns the chance that a healthy node would still compute the answer to this
// unstreamed attempt. The chance assumes that the node still computed it when the silence began.
func (m *Model) callChance(a *Attempt, since, now time.Duration, slow float64) float64 {
	slow *= m.kind(&a.work).scale(&a.work)
	wait, before := (now - a.start).Seconds(), max(since-a.start, 0).Seconds()
	if bound := m.longestCall(a); bound > 0 && wait-before > patientFor*slow*bound {
		return certain
	}
	seen := m.like(&a.work)
	slow *= slower * seen.longer(&a.work)
	return max(callLeast, seen.survival(wait/slow)/seen.survival(before/slow))
}

// longestCall returns the longest time that a healthy node may need, or 0 while that is unknown. A
// generation without a bound on its tokens has no longest time.
func (m *Model) longestCall(a *Attempt) float64 {
	switch {
	case a.work.MaxTokens == NoTokens:
		return m.kind(&a.work).longest()
	case a.work.MaxTokens <= 0 || m.perToken.n < known:
		return 0
	}
	bound := m.perToken.hi * float64(a.work.MaxTokens)
	if m.first.n < known { // then only complete answers show the cost of a prompt
		return max(bound, m.kind(&a.work).longest())
	}
	return bound + m.first.expect(float64(a.tokens+a.work.CachedTokens))
}

// askAll asks the owners of the attempts sent until the given time.
func (m *Model) askAll(l *attempts, until, now time.Duration) {
	for a := l.head; a != nil && a.start <= until; {
		next := a.next
		if m.ask(a, Stalled, now) && !a.work.Stream {
			m.learnGivenUp(a, now)
		}
		a = next
	}
}
