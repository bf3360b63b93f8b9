package health

import (
	"math/bits"
	"slices"
	"time"
)

// doubtMemory is how long doubts last that nothing is added to.
const doubtMemory = 30 * time.Second

// doubts are server errors that either the node or the request may be to blame for;
// router/leg/judge.go says when that is so. They are weighed against what else the node has
// answered since.
type doubts struct {
	window   uint32     // the last 32 answers, the newest lowest; 1: a doubt
	seen     int        // answers in window
	requests [32]uint64 // hashes of the requests doubted last
	next     int        // where the next one goes
	last     time.Time  // when a doubt was added
}

// add counts a doubt. The same request once more says nothing new of a node that has answered
// others well.
func (d *doubts) add(request uint64, now time.Time) bool {
	if now.Sub(d.last) > doubtMemory {
		*d = doubts{}
	}
	if slices.Contains(d.requests[:min(d.next, len(d.requests))], request) && bits.OnesCount32(d.window) < d.seen {
		return false
	}
	d.requests[d.next%len(d.requests)] = request
	d.next++
	d.last = now
	d.shift(1)
	return true
}

// answer counts an answer that says nothing against the node.
func (d *doubts) answer() { d.shift(0) }

func (d *doubts) shift(bit uint32) {
	d.window = d.window<<1 | bit
	d.seen = min(d.seen+1, 32)
}

// ratio is the doubtful share of the last 32 answers.
func (d *doubts) ratio(now time.Time) float64 {
	if d.seen == 0 || now.Sub(d.last) > doubtMemory {
		return 0
	}
	return float64(bits.OnesCount32(d.window)) / float64(d.seen)
}

// doubt counts a server error, to a request of the given hash, that is a doubt. It opens the
// breaker once half of the last 32 answers, of 10 at least, were such, and twice the share of the
// node's peers: what fails everywhere alike is the requests' fault. A trial request after server
// errors fails by it.
func (b *breaker) doubt(request uint64, peers float64) {
	now := time.Now()
	b.mu.Lock()
	defer b.unlock()
	if !b.doubts.add(request, now) {
		return
	}
	b.clean.Store(false)
	ratio := b.doubts.ratio(now)
	if ratio < 2*peers {
		return
	}
	switch State(b.state.Load()) {
	case Healthy:
		if b.doubts.seen >= windowMin && ratio >= .5 {
			b.fail(ServerError, now)
		}
	case HalfOpen:
		if b.triesLive() {
			b.fail(ServerError, now)
		}
	}
}

// answers tells of a node out of service that answers all the same: with server errors, or it is
// returning. One that was set aside may leave requests hanging, so it is to answer a trial request
// or a completion check first.
func (b *breaker) answers() bool {
	switch State(b.state.Load()) {
	case Open:
		return b.triesLive()
	case HalfOpen:
		return Outcome(b.blame.Load()) != Timeout || b.proven.Load()
	}
	return false
}

// ReportDoubt tells that the node answered a 5xx to a request, known by its hash, of which no other
// node has told whether it is to blame. peers is the mean Doubt of the other nodes that could have
// been.
func (n *Node) ReportDoubt(request uint64, peers float64) { n.breaker.doubt(request, peers) }

// Doubt is the share of the node's last answers that ReportDoubt was told of. ok is false for a
// node that answers nothing, which cannot be compared with.
func (n *Node) Doubt() (ratio float64, ok bool) {
	b := &n.breaker
	if State(b.state.Load()) != Healthy && !b.answers() {
		return 0, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.doubts.ratio(time.Now()), true
}

// Answers tells of a node out of service that answers all the same, if only errors.
func (n *Node) Answers() bool { return n.breaker.answers() }

// NoteTrial tells that a request goes to such a node without a permit.
func (n *Node) NoteTrial() { n.breaker.tried.Store(time.Now().UnixNano()) }
