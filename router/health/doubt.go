package health

import (
	"math/bits"
	"slices"
	"time"
)

// doubtMemory is the time without a new doubt after which all doubts are forgotten.
const doubtMemory = 30 * time.Second

// doubts are server errors whose cause may be the node or the request. router/leg/judge.go decides
// which errors are doubts. A doubt is weighed against the node's other answers since then.
type doubts struct {
	window   uint32     // the last 32 answers, newest in the lowest bit; 1: a doubt
	seen     int        // number of answers in window
	requests [32]uint64 // hashes of the last doubted requests
	next     int        // index for the next hash
	last     time.Time  // time of the last doubt
}

// add counts a doubt. add returns false for a repeated request to a node that has answered other
// requests well, because the repetition is no new evidence.
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

// ratio returns the share of doubts in the last 32 answers.
func (d *doubts) ratio(now time.Time) float64 {
	if d.seen == 0 || now.Sub(d.last) > doubtMemory {
		return 0
	}
	return float64(bits.OnesCount32(d.window)) / float64(d.seen)
}

// doubt counts a server error as a doubt, for the request with the given hash. doubt opens the
// breaker when doubts are half of the last 32 answers (of at least 10) and twice the share of the
// node's peers. An error that is as frequent at the peers is the requests' fault. A doubt also
// fails a trial request after server errors.
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

// answers says whether a node out of service still answers: with server errors, or because it is
// returning. A node that was set aside must first answer a trial request or a completion check,
// because it may leave requests hanging.
func (b *breaker) answers() bool {
	switch State(b.state.Load()) {
	case Open:
		return b.triesLive()
	case HalfOpen:
		return Outcome(b.blame.Load()) != Timeout || b.proven.Load()
	}
	return false
}

// ReportDoubt counts a 5xx whose cause no other node has shown. request is the hash of the request.
// peers is the mean Doubt of the other candidates for the request.
func (n *Node) ReportDoubt(request uint64, peers float64) { n.breaker.doubt(request, peers) }

// Doubt returns the share of ReportDoubt's errors in the node's last answers. ok is false for a
// node without answers; do not compare the ratio of such a node.
func (n *Node) Doubt() (ratio float64, ok bool) {
	b := &n.breaker
	if State(b.state.Load()) != Healthy && !b.answers() {
		return 0, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.doubts.ratio(time.Now()), true
}

// Answers says whether a node out of service still answers, if only with errors.
func (n *Node) Answers() bool { return n.breaker.answers() }

// NoteTrial notes a request that was sent without a permit to a node with Answers.
func (n *Node) NoteTrial() { n.breaker.tried.Store(time.Now().UnixNano()) }
