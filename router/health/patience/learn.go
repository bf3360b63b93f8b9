package patience

import (
	"math"
	"slices"
	"time"
)

const (
	known     = 8     // observations that an estimate needs
	few       = 3     // first bytes from which the slowest one stands in for an estimate
	wide      = 4.0   // multiple of the slowest first byte until then
	memory    = 64.0  // observations that a moving estimate remembers
	clip      = 4.0   // an observation counts as at most this multiple of the expectation
	inTime    = 4.0   // a first byte within this multiple of E is in time
	ratioMax  = 16.0  // bound on a node's own slowness
	hiDecay   = 0.995 // decay of the maxima per observation
	hiTokens  = 64.0  // smallest u+q beyond which E is extrapolated
	spreadMax = 1024  // observations after which a histogram forgets half
	unbounded = 18    // class of the calls without a bound on their tokens; the others have one per octave
)

// line is a least-squares fit y = a + b·x over recent observations, x in tokens, y in seconds.
type line struct {
	n                   int
	s, sx, sy, sxx, sxy float64
	a, b                float64
	hi                  float64 // decaying maximum of x
	slowest             float64 // largest y while n < known
	excess              float64 // moving mean of max(0, y/E - 1)
}

func (l *line) observe(x, y, expected float64) {
	if l.n >= known {
		l.observeExcess(y / expected)
		y = min(y, clip*expected)
	} else {
		l.slowest = max(l.slowest, y)
	}
	l.n++
	const keep = 1 - 1/memory
	l.s = l.s*keep + 1
	l.sx = l.sx*keep + x
	l.sy = l.sy*keep + y
	l.sxx = l.sxx*keep + x*x
	l.sxy = l.sxy*keep + x*y
	l.hi = max(x, l.hi*hiDecay)
	l.fit()
}

func (l *line) observeExcess(ratio float64) {
	l.excess += (min(max(0, ratio-1), clip-1) - l.excess) / (memory / 2)
}

// fit solves for a and b. When x hardly varies the slope is noise, and fit uses 0.
func (l *line) fit() {
	x, y := l.sx/l.s, l.sy/l.s
	variance := l.sxx/l.s - x*x
	l.b = 0
	if variance > 0.01*x*x {
		l.b = max(0, (l.sxy/l.s-x*y)/variance)
	}
	l.a = y - l.b*x
	if l.a < 0 {
		l.a, l.b = 0, y/x
	}
}

// expect returns the expected seconds for x tokens, or 0 while nothing is known.
func (l *line) expect(x float64) float64 {
	if l.n < known {
		return 0
	}
	hi := max(l.hi, hiTokens)
	if x <= hi {
		return l.a + l.b*x
	}
	return (l.a + l.b*hi) * x / hi
}

// guess stands in for expect while few observations exist. guess returns the slowest observation so
// far, and more in proportion beyond the largest x. guess adds no margin.
func (l *line) guess(x float64) float64 {
	return l.slowest * max(1, x/max(l.hi, hiTokens))
}

// pace is seconds per completion token.
type pace struct {
	n        int
	mean, hi float64
}

func (p *pace) observe(v float64) {
	if p.n >= known {
		v = min(v, clip*p.mean)
	}
	p.n++
	p.mean += (v - p.mean) / min(float64(p.n), memory/4)
	p.hi = max(v, p.hi*hiDecay)
}

// spread is a histogram of durations in quarter octaves from 1 ms to 70 min.
type spread struct {
	count [88]uint16
	n     uint16
	hi    float64 // decaying maximum of the prompt tokens
	least int64   // least MaxTokens since the histogram last forgot
}

func bucket(seconds float64) int {
	if seconds <= 1e-3 {
		return 0
	}
	return min(int(4*math.Log2(seconds*1e3)), len(spread{}.count)-1)
}

// edge returns the upper end of a bucket in seconds.
func edge(i int) float64 { return math.Exp2(float64(i+1)/4) / 1e3 }

func (s *spread) observe(seconds float64, w *Work) {
	s.hi = max(w.prompt(), s.hi*hiDecay)
	if s.n == 0 || w.MaxTokens < s.least {
		s.least = w.MaxTokens
	}
	s.count[bucket(seconds)]++
	if s.n++; s.n < spreadMax {
		return
	}
	s.n, s.least = 0, w.MaxTokens
	for i := range s.count {
		s.count[i] /= 2
		s.n += s.count[i]
	}
}

// spreads are the histograms of several classes, seen as one.
type spreads []spread

// kind returns the response times of all generations, or of all other requests.
func (m *Model) kind(w *Work) spreads {
	if w.MaxTokens == NoTokens {
		return m.calls[:1]
	}
	return m.calls[1:]
}

// like returns the response times of the requests that may generate as many tokens as w, or more.
// Only requests without a bound are like one without a bound.
func (m *Model) like(w *Work) spreads {
	class := w.class()
	if class == 0 || class == unbounded {
		return m.calls[class : class+1]
	}
	return m.calls[class:unbounded]
}

func (l spreads) observed() (n int) {
	for i := range l {
		n += int(l[i].n)
	}
	return n
}

// survival returns the chance that an answer takes longer than seconds. Observations in the bucket
// of seconds count as longer. Add-one smoothing keeps the chance above 0.
func (l spreads) survival(seconds float64) float64 {
	longer, from := 1, bucket(seconds)
	for i := range l {
		if l[i].n == 0 {
			continue
		}
		for _, c := range l[i].count[from:] {
			longer += int(c)
		}
	}
	return float64(longer) / float64(l.observed()+1)
}

// scale returns the factor by which w gets more time because its prompt is larger than any seen.
func (l spreads) scale(w *Work) float64 {
	hi := hiTokens
	for i := range l {
		hi = max(hi, l[i].hi)
	}
	return max(1, w.prompt()/hi)
}

// longer returns how many times as many tokens as the shortest request of its class w may generate.
func (l spreads) longer(w *Work) float64 {
	if least := l[0].least; w.MaxTokens > least && least > 0 {
		return float64(w.MaxTokens) / float64(least)
	}
	return 1
}

// longest returns the upper bound of the largest observation, or 0 while too little is known.
func (l spreads) longest() float64 {
	if l.observed() < known {
		return 0
	}
	top := 0
	for i := range l {
		for b := len(l[i].count) - 1; l[i].n > 0 && b > top; b-- {
			if l[i].count[b] > 0 {
				top = b
			}
		}
	}
	return edge(top)
}

// median returns an upper bound of the median, or 0 while there is no observation.
func (l spreads) median() float64 {
	var count [len(spread{}.count)]int
	all, seen := 0, 0
	for i := range l {
		if l[i].n == 0 {
			continue
		}
		for b, c := range l[i].count {
			count[b] += int(c)
			all += int(c)
		}
	}
	for b, c := range count {
		if seen += c; seen > 0 && 2*seen >= all {
			return edge(b)
		}
	}
	return 0
}

// answer is one answer of a node: the times of the request and the answer, and its slowness.
type answer struct {
	node  *Node
	start time.Duration
	ratio float64
}

// ring holds the latest answers of a model.
type ring struct {
	at   [128]answer
	next int
}

func (r *ring) push(a answer) {
	r.at[r.next] = a
	r.next = (r.next + 1) % len(r.at)
}

func (r *ring) forget(n *Node) {
	for i := range r.at {
		if r.at[i].node == n {
			r.at[i] = answer{}
		}
	}
}

// peersSince looks at the other nodes' answers to requests sent at since or later. peersSince
// returns their number and their median slowness, at least 1.
func (r *ring) peersSince(n *Node, since time.Duration) (count int, slow float64) {
	var ratios [len(ring{}.at)]float64
	for i := range r.at {
		if a := &r.at[i]; a.node != nil && a.node != n && a.start >= since {
			ratios[count] = a.ratio
			count++
		}
	}
	if count == 0 {
		return 0, 1
	}
	slices.Sort(ratios[:count])
	return count, max(1, ratios[count/2])
}

// expectFirst is E in seconds, with its lower bound.
func (m *Model) expectFirst(tokens int64) float64 {
	least, cold := m.o.PatienceFloor.Seconds()/4, m.o.FirstByteCold.Seconds()/4
	switch {
	case m.first.n < few:
		return cold
	case m.first.n < known:
		return min(cold, wide*max(m.first.guess(float64(tokens)), least))
	}
	return max(m.first.expect(float64(tokens)), least)
}

func (m *Model) learnFirst(a *Attempt) {
	n, expected := a.node, m.expectFirst(a.tokens)
	wait := (a.firstAt - a.start).Seconds()
	ratio := min(wait/expected, ratioMax)
	if ratio <= inTime {
		m.promptAt = a.firstAt
	}
	if m.first.n >= known {
		if n.ratio == 0 {
			n.ratio = ratio
		}
		n.ratio += (ratio - n.ratio) / 4
		n.ratioAt = a.firstAt
	}
	m.first.observe(float64(a.tokens), wait, expected)
	m.answers.push(answer{n, a.start, ratio})
}

func (m *Model) learnAnswer(a *Attempt, now time.Duration, completionTokens int64) {
	took := (now - a.start).Seconds()
	if !a.work.Stream {
		m.answers.push(answer{a.node, a.start, m.callRatio(a, took, completionTokens)})
		m.learnOwn(a, took, completionTokens)
	}
	m.calls[a.work.class()].observe(took, &a.work)
	generating := took - m.first.expect(float64(a.tokens))
	if a.work.Stream {
		generating = (now - a.firstAt).Seconds()
	}
	if completionTokens >= known && generating > 0 {
		m.perToken.observe(generating / float64(completionTokens))
	}
}

// callRatio returns how much slower than expected an unstreamed answer was, or 1 while that is
// unknown. A general rise in the length of answers counts as slowness too, because waiting answers
// may be longer as well.
func (m *Model) callRatio(a *Attempt, took float64, completionTokens int64) float64 {
	seen := m.like(&a.work)
	if seen.observed() < known {
		return 1
	}
	expected := seen.median()
	if generating := m.expectAnswer(a, completionTokens); generating > 0 {
		expected = min(expected, generating)
	}
	return took / max(expected, m.o.PatienceFloor.Seconds()/4)
}

// expectAnswer returns the expected seconds of an unstreamed answer of this length, or 0 while they
// are unknown. Only first bytes tell the cost of a prompt from that of the tokens.
func (m *Model) expectAnswer(a *Attempt, completionTokens int64) float64 {
	if completionTokens <= 0 || m.first.n < known || m.perToken.n < known {
		return 0
	}
	return m.first.expect(float64(a.tokens)) + m.perToken.mean*float64(completionTokens)
}

// learnOwn learns the slowness of a node from one of its unstreamed answers.
func (m *Model) learnOwn(a *Attempt, took float64, completionTokens int64) {
	expected := m.expectAnswer(a, completionTokens)
	if seen := m.like(&a.work); expected == 0 && seen.observed() >= known {
		expected = seen.median()
	}
	if expected == 0 {
		return
	}
	n := a.node
	ratio := min(max(1, took/max(expected, m.o.PatienceFloor.Seconds()/4)), ratioMax)
	if n.callRatio == 0 {
		n.callRatio = ratio
	}
	n.callRatio += (ratio - n.callRatio) / 4
}

// learnGivenUp learns that an answer of the node would have taken longer than a has waited. The
// next call there may wait about twice as long, so that giving up never confirms itself.
func (m *Model) learnGivenUp(a *Attempt, now time.Duration) {
	expected := m.like(&a.work).median()
	if expected == 0 {
		expected = m.longestCall(a)
	}
	if expected > 0 {
		a.node.callRatio = max(a.node.callRatio, (now-a.start).Seconds()/expected)
	}
}
