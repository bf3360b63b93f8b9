package queue

import "time"

// Outcome is what became of a try.
type Outcome uint8

// The outcomes.
const (
	NoRoom  Outcome = iota // no node has room for the request
	Placed                 // the request has a node
	Refused                // the request must not wait any longer
)

// Waiter is a waiting request. The goroutine of Queue.Run calls its methods between Join and the
// end of the wait, one at a time.
type Waiter interface {
	// Try looks for a node with room and reserves it.
	Try(now time.Time) Outcome
	// Tokens returns the tokens that the request is charged once it is Placed.
	Tokens() float64
}

// Claim is what counts for a request's place in its line.
type Claim struct {
	Waiter   Waiter
	Tenant   string
	Band     int       // the priority, from 0 to Bands-1
	Deadline time.Time // zero: after all deadlines
	Lane     uint64    // equal for requests that the same nodes may take; 0: any node of the line may
	Bytes    int64     // memory that the request takes while it waits
}

// state is what a ticket is doing.
type state uint8

const (
	outside state = iota // it was never in a line, has left it, or was refused
	waiting
	trying
	charged // its tenant is charged, until Settle
)

// Ticket is the place of one request in a Line. The zero Ticket is in no line. Only the request's
// own goroutine may call its methods.
type Ticket struct {
	place   // in the group's heap
	line    *Line
	claim   Claim
	done    chan struct{} // closed when the wait is over, except by Leave
	arrival uint64
	state   state
	leaving bool // Leave waits for the end of a try
	ousted  bool // its place went to another tenant
	group   *group

	of      *tenant // charged
	charged float64 // tokens
}

// Done is closed once the waiter was Placed or Refused, or is Ousted.
func (t *Ticket) Done() <-chan struct{} { return t.done }

// Ousted says whether the request had to leave the full queue, because its tenant had the most
// requests there. Call Ousted after Done.
func (t *Ticket) Ousted() bool { return t.ousted }

// Leave gives up the place in the line. If a try is under way, Leave waits for its end. placed says
// that the request has got a node before.
func (t *Ticket) Leave() (placed bool) {
	q := t.line.q
	q.mu.Lock()
	switch t.state {
	case trying:
		t.leaving = true
		q.mu.Unlock()
		<-t.done
		q.mu.Lock()
	case waiting:
		t.line.abandon(t)
	}
	placed = t.state == charged
	q.mu.Unlock()
	q.Wake() // the next one of the lane may fit where this one did not
	return placed
}

// Settle replaces the charge by what the request has cost. Settle does nothing if the ticket is not
// charged.
func (t *Ticket) Settle(tokens float64) {
	if t.line == nil {
		return
	}
	q := t.line.q
	q.mu.Lock()
	defer q.mu.Unlock()
	if t.state != charged {
		return
	}
	t.state = outside
	t.of.tokens += (tokens - t.charged) / t.of.weight
	t.of.settled += tokens / t.of.weight
	if t.of.running--; t.of.running == 0 {
		t.of.tokens = t.of.settled // without the rounding errors
	}
	t.of.reorder()
	t.line.open--
	t.line.closed(t.of)
}

// before says whether t comes before x, of the same tenant and band.
func (t *Ticket) before(x *Ticket) bool {
	a, b := t.claim.Deadline, x.claim.Deadline
	switch {
	case a.Equal(b):
		return t.arrival < x.arrival
	case a.IsZero() || b.IsZero():
		return b.IsZero()
	}
	return a.Before(b)
}
