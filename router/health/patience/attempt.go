package patience

import (
	"math/bits"
	"time"
)

// NoTokens is the MaxTokens of a request that generates nothing: embeddings, rerank, tokenize.
const NoTokens = -1

// Work describes the cost of one attempt.
type Work struct {
	Stream         bool
	UncachedTokens int64         // prompt tokens that the node probably has to compute
	CachedTokens   int64         // prompt tokens that the node probably holds in its cache
	MaxTokens      int64         // bound on completion tokens; 0 = unknown, NoTokens = none are generated
	Expected       time.Duration // until an unstreamed answer's first token; 0: unknown
	Owner          Owner         // may give the attempt up and is told of the prefill; nil: only evidence
}

// class returns the index of the work's response times in Model.calls.
func (w *Work) class() int {
	switch {
	case w.MaxTokens == NoTokens:
		return 0
	case w.MaxTokens <= 0:
		return unbounded
	}
	return min(bits.Len64(uint64(w.MaxTokens)), unbounded-1)
}

// prompt returns the tokens of the prompt.
func (w *Work) prompt() float64 { return float64(w.UncachedTokens + w.CachedTokens) }

// Attempt is one request at one node, from dispatch to its end. The caller owns the memory. The
// zero value is ready for Begin, and Begin may be called again after Done. Do not run Begin
// concurrently with the other methods.
type Attempt struct {
	node   *Node
	work   Work
	start  time.Duration
	tokens int64 // u+q: uncached tokens to compute before the first byte, the attempt's own included

	// The model's mutex guards these fields.
	queued     int64 // the attempt's share of node.queued
	firstAt    time.Duration
	askAgainAt time.Duration // after a refusal
	prefilled  bool          // not a stream: the prompt should have been computed by now
	state      state
	in         *attempts
	prev, next *Attempt
}

type state uint8

const (
	idle state = iota
	waiting
	begun
	abandoned // given up; the owner has not called Done yet
)

// Begin notes at now that w is sent to n. The attempt must be new or done.
func (n *Node) Begin(a *Attempt, now time.Time, w Work) {
	w.UncachedTokens, w.CachedTokens = max(w.UncachedTokens, 0), max(w.CachedTokens, 0)
	m := n.model
	m.mu.Lock()
	defer m.mu.Unlock()
	*a = Attempt{node: n, work: w, start: now.Sub(epoch), state: waiting, askAgainAt: never}
	a.tokens = w.UncachedTokens + n.queued
	a.queued = w.UncachedTokens
	n.queued += a.queued
	if w.Stream {
		n.streams.push(a)
	} else {
		n.calls.push(a)
	}
	m.count(n, 1)
}

// Progress notes bytes from the node. Call Progress for every chunk of a body and for an
// unsuccessful answer. Progress is one atomic store.
func (a *Attempt) Progress(now time.Time) {
	if a.node != nil {
		a.node.pulse.beat(now)
	}
}

// FirstByte notes the first body event of a stream, or the head of a successful answer that is
// not streamed. Later calls only count as Progress.
func (a *Attempt) FirstByte(now time.Time) {
	if a.node == nil {
		return
	}
	a.node.pulse.beat(now)
	m := a.node.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.state != waiting {
		return
	}
	m.leave(a, begun)
	a.firstAt = now.Sub(epoch)
	if a.work.Stream {
		m.learnFirst(a)
	}
}

// Done ends the attempt. ok says that a complete, successful answer came. completionTokens is the
// length of the answer, or 0 if unknown. Done does nothing on an idle attempt.
func (a *Attempt) Done(now time.Time, completionTokens int64, ok bool) {
	if a.node == nil {
		return
	}
	if ok {
		a.node.pulse.beat(now)
	}
	m := a.node.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if ok && (a.state == begun || a.state == waiting && !a.work.Stream) {
		m.learnAnswer(a, now.Sub(epoch), completionTokens)
	}
	if a.state == waiting {
		m.leave(a, idle)
	}
	a.state = idle
}

// leave takes a waiting attempt out of its node's queue.
func (m *Model) leave(a *Attempt, next state) {
	a.in.remove(a)
	a.releaseTokens()
	m.count(a.node, -1)
	a.state = next
}

func (m *Model) count(n *Node, delta int) {
	if !n.gone {
		m.open += delta
	}
}

func (a *Attempt) releaseTokens() {
	a.node.queued -= a.queued
	a.queued = 0
}

// attempts is a list in order of dispatch, linked through its members.
type attempts struct {
	head, tail *Attempt
	n          int
}

func (l *attempts) push(a *Attempt) {
	a.in, a.prev = l, l.tail
	if l.tail == nil {
		l.head = a
	} else {
		l.tail.next = a
	}
	l.tail = a
	l.n++
}

func (l *attempts) remove(a *Attempt) {
	if a.prev == nil {
		l.head = a.next
	} else {
		a.prev.next = a.next
	}
	if a.next == nil {
		l.tail = a.prev
	} else {
		a.next.prev = a.prev
	}
	a.in, a.prev, a.next = nil, nil, nil
	l.n--
}
