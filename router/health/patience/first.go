package patience

import (
	"math"
	"slices"
	"time"
)

const (
	ratioLifetime = 10 * time.Second // age up to which a node's moving mean counts as its present slowness
	doubtsMax     = 3
)

// factor returns L of the package documentation.
func (m *Model) factor() float64 { return min(inTime+4*m.first.excess, 16) }

// survey computes every node's present slowness and sorts the values into scratch.
func (m *Model) survey(now time.Duration) {
	for i, n := range m.nodes {
		n.slow = 1
		if n.ratio > 0 && now-n.ratioAt < ratioLifetime {
			n.slow = max(1, n.ratio)
		}
		for a := n.streams.head; a != nil; a = a.next {
			n.slow = max(n.slow, (now-a.start).Seconds()/m.expectFirst(a.tokens))
		}
		m.scratch[i] = n.slow
		n.calls.prefilled(m, now)
	}
	slices.Sort(m.scratch)
}

// prefilled takes an unstreamed attempt out of the queue once its prompt should have been computed.
// prefilled tells the owner. No byte of the answer shows that moment.
func (l *attempts) prefilled(m *Model, now time.Duration) {
	for a := l.head; a != nil; a = a.next {
		expected := a.work.Expected.Seconds()
		if expected == 0 {
			expected = m.expectFirst(a.tokens)
		}
		if a.prefilled || (now-a.start).Seconds() <= expected {
			continue
		}
		a.prefilled = true
		a.releaseTokens()
		if a.work.Owner != nil {
			a.work.Owner.Prefilled()
		}
	}
}

// peers returns the lower median of the other nodes' slowness. Call survey first.
func (m *Model) peers(n *Node) float64 {
	k := (len(m.nodes) - 2) / 2
	if n.slow <= m.scratch[k] {
		k++ // n itself is among the first k+1
	}
	return m.scratch[k]
}

// doubts counts the nodes where a stream was given up since the last first byte that came in time.
func (m *Model) doubts() int {
	count := 0
	for _, n := range m.nodes {
		if n.overdueAt > m.promptAt {
			count++
		}
	}
	return min(count, doubtsMax)
}

// limits hold the factor common to all attempts at one node.
type limits struct{ times float64 }

func (m *Model) limitsOf(n *Node) limits {
	if len(m.nodes) < 2 {
		return limits{math.Inf(1)}
	}
	slow := max(1, n.ratio, m.peers(n))
	return limits{m.factor() * slow * math.Pow(4, float64(m.doubts()))}
}

// limit returns the wait at which a is overdue.
func (m *Model) limit(a *Attempt, l limits) time.Duration {
	tokens, all := a.tokens, a.tokens+a.work.CachedTokens
	if m.first.n < known {
		tokens = all
	}
	miss := m.first.expect(float64(all)) - m.first.expect(float64(tokens))
	seconds := l.times*m.expectFirst(tokens) + 2*max(0, miss)
	if seconds >= m.o.FirstByte.Seconds() {
		return m.o.FirstByte
	}
	return max(time.Duration(seconds*float64(time.Second)), m.o.PatienceFloor)
}

func (m *Model) giveUpOverdue(n *Node, now time.Duration) {
	if n.streams.head == nil {
		return
	}
	l := m.limitsOf(n)
	for a := n.streams.head; a != nil; {
		next := a.next
		if now-a.start >= m.limit(a, l) && m.ask(a, Overdue, now) {
			m.noteOverdue(n, a, now)
			l = m.limitsOf(n) // one more doubt: the next attempt waits until a node answers in time
		}
		a = next
	}
}

func (m *Model) noteOverdue(n *Node, a *Attempt, now time.Duration) {
	expected := m.expectFirst(a.tokens)
	if m.first.n >= known {
		m.first.observeExcess((now - a.start).Seconds() / expected)
	}
	if silentFor(a, max(a.start, n.pulse.At()), now) {
		n.lost.add(a.start, expected)
	}
	n.overdueAt = now
}

// ask asks the owner to give the attempt up. ask does not ask again soon after a refusal.
func (m *Model) ask(a *Attempt, v Verdict, now time.Duration) bool {
	if a.work.Owner == nil || now < a.askAgainAt {
		return false
	}
	if !a.work.Owner.GiveUp(v) {
		a.askAgainAt = now + (now-a.start)/2
		return false
	}
	m.leave(a, abandoned)
	return true
}
