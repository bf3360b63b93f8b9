package leg

import (
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/queue"
	"github.com/cognitora/dataplane/router/trust"
)

// Waiting says how legs wait for a node with room. The zero value lets none wait.
type Waiting struct {
	Queue *queue.Queue  // nil: a leg that finds no room is refused at once
	Most  time.Duration // longest wait
	// Active are thresholds of prompt tokens above which a node counts as full for a leg that may
	// wait.
	Active busy.Thresholds
}

// turn is a leg's place in the queue, and what came of it.
type turn struct {
	ticket queue.Ticket
	at     int             // place of the picked node in the pool
	err    *apierror.Error // the leg was refused
	looked time.Time       // when the prompt was looked up
	began  time.Time       // when the wait began; zero: the leg has not waited
	waited time.Duration
}

// lookAgain is how long a prompt waits before it is looked up once more: engines then have other
// blocks.
const lookAgain = 10 * time.Second

// queues says whether the leg may wait for room: the first one of a request, before it has asked a
// node. A later leg continues a request that has waited already.
func (l *Leg) queues() bool {
	return l.d.waiting.Queue != nil && l.Work == Answer && !l.Further && l.Attempts == 0 && l.Bond != Stored &&
		l.piece == nil
}

// pickInTurn picks the first node for a leg while the router has a queue.
func (l *Leg) pickInTurn() (at int, err *apierror.Error) {
	if !l.queues() {
		if at, err = l.choose(l.began); err == nil {
			l.model.line.Pass(&l.turn.ticket, trust.TenantOf(l.Request.Who), l.Tokens())
		}
		return at, err
	}
	l.turn.looked = l.began
	if l.model.line.Free() {
		at, err = l.choose(l.began)
		switch {
		case err == nil:
			l.model.line.Pass(&l.turn.ticket, trust.TenantOf(l.Request.Who), l.Tokens())
			return at, nil
		case !l.lacksRoom(err):
			return 0, err
		}
	}
	return l.queueUp()
}

// lacksRoom says whether a pick has failed with err because the nodes that may take the leg have no
// room now.
func (l *Leg) lacksRoom(err *apierror.Error) bool {
	if err == errGlobalFull || isLate(err) {
		return false
	}
	p := &l.picks
	return p.found.has(poolFull) || p.found.has(overBusy) || p.found.has(overTokens) ||
		len(p.cands) > 0 && (p.policy.Mode != policy.Direct || l.Bond != Free)
}

// queueUp waits for a node in the queue.
func (l *Leg) queueUp() (at int, err *apierror.Error) {
	now, line, set := time.Now(), l.model.line, &l.d.waiting
	l.picks.policy = l.d.policyOf(l.model)
	c := l.inQueue()
	count := &l.d.metrics.Queue.Bands[c.Band]
	if err := l.refuseTurn(&c, now); err != nil {
		count.Refuse(err.Code)
		return 0, err
	}
	l.Request.Life.Start() // from now on the client's departure ends the wait
	l.lend()
	if full := line.Join(&l.turn.ticket, c); full != nil {
		err := l.overflow(full, &c, now)
		count.Refuse(err.Code)
		return 0, err
	}
	end := now.Add(set.Most)
	if own := l.deadline(); !own.IsZero() && own.Before(end) {
		end = own
	}
	l.turn.began = now
	in := l.Request.Life.AwaitUntil(l.turn.ticket.Done(), end)
	placed := l.turn.ticket.Leave()
	l.turn.waited = time.Since(now)
	if who := l.Request.Who; placed && who != nil && who.Revoked() { // auth.revoked may let running requests finish
		l.Request.Life.Revoke()
		l.drop(l.spare())
		count.Refuse(errRevoked.Code)
		return 0, errRevoked
	}
	if placed { // if the client has left meanwhile, run notices it
		count.Seconds.Observe(l.turn.waited.Seconds())
		return l.turn.at, nil
	}
	switch {
	case !in:
		return 0, Ended(l.Request)
	case l.turn.err != nil:
		err = l.turn.err
	case l.turn.ticket.Ousted():
		err = l.overflow(queue.ErrFull, &c, time.Now())
	case l.expired():
		err = ErrDeadline
	default:
		err = l.waitedTooLong(&c)
	}
	count.Refuse(err.Code)
	return 0, err
}

// inQueue returns what counts for the leg's place in its line.
func (l *Leg) inQueue() queue.Claim {
	return queue.Claim{
		Waiter: l, Tenant: trust.TenantOf(l.Request.Who), Band: min(l.Request.Priority()+1, queue.Bands-1),
		Deadline: l.deadline(), Lane: l.lane(), Bytes: l.bytes(),
	}
}

// lane returns a hash of what restricts the leg to some of the model's nodes; 0: nothing does. A
// leg with a time for its first token may have to wait for one of the faster nodes.
func (l *Leg) lane() uint64 {
	rules, timed := l.rules(), byte(0)
	if end, _ := l.due(); !end.IsZero() {
		timed = 1
	}
	if rules == 0 && timed == 0 && !l.model.view.Adapter {
		return 0
	}
	var h xxhash.Digest
	h.Reset()
	text := func(s string) {
		h.WriteString(s)
		h.Write([]byte{0})
	}
	if h.Write([]byte{byte(rules), byte(rules >> 8), timed}); l.model.view.Adapter {
		text(l.model.name)
	}
	if l.Bond != Free {
		text(l.Node)
	}
	if l.Rank.Given {
		h.Write([]byte{byte(l.Rank.Value), byte(l.Rank.Value >> 8)})
	}
	h.Write([]byte{byte(l.picks.api), byte(l.picks.api >> 8)})
	for _, all := range [][]string{l.Allowed, l.Constraints.Required, l.Constraints.Experts} {
		for _, name := range all {
			text(name)
		}
		h.Write([]byte{1})
	}
	return max(h.Sum64(), 1)
}

const (
	// waiterBytes is the memory of a waiting request besides its body and what goes with the prompt
	// and the nodes: connection, goroutine, head and leg. 28 KiB were measured without TLS.
	waiterBytes = 48 << 10
	// blockBytes and rankBytes are what a leg keeps for each block of its prompt and for each rank.
	blockBytes, rankBytes = 32, 32
)

// bytes returns about how much memory the leg's request takes while it waits.
func (l *Leg) bytes() int64 {
	return waiterBytes + int64(len(l.Request.Body())+cap(l.Request.Scan.Text)) +
		blockBytes*int64(l.prompt.Blocks) + rankBytes*int64(len(l.pool.ranks))
}

// Try picks a node for a waiting leg. Try implements queue.Waiter.
func (l *Leg) Try(now time.Time) (o queue.Outcome) {
	defer func() {
		if p := recover(); p != nil {
			l.d.metrics.Bug(l.d.log, "a pick for a waiting request", p)
			l.turn.err, o = errQueueBug, queue.Refused
		}
	}()
	if err := l.refresh(now); err != nil {
		l.turn.err = err
		return queue.Refused
	}
	l.picks.borrow()
	at, err := l.choose(now)
	switch {
	case err == nil:
		l.turn.at = at
		return queue.Placed
	case err == errGlobalFull || l.lacksRoom(err):
		l.lend()
		return queue.NoRoom
	}
	l.turn.err = err
	return queue.Refused
}

// refresh brings a waiting leg up to date with the fleet. The leg keeps its prompt's blocks while
// the nodes are the same, up to lookAgain.
func (l *Leg) refresh(now time.Time) *apierror.Error {
	was := l.pool.lineup
	if err := l.resolve(); err != nil {
		return err
	}
	if l.pool.lineup == was && now.Sub(l.turn.looked) < lookAgain {
		return nil
	}
	if l.hand != nil {
		l.hand.release()
		l.hand = nil
	}
	l.turn.looked, l.way = now, Undecided
	l.prompt.Reset()
	l.look()
	l.identify()
	return l.considers()
}

// Tokens returns the tokens of the prompt and of the expected answer. Tokens implements
// queue.Waiter.
func (l *Leg) Tokens() float64 { return float64(l.prompt.Tokens()) + l.picks.output }

// maxSpent bounds each count of tokens that is settled, because an engine may report any.
const maxSpent = 1 << 40

// settleTurn replaces the leg's charge in the queue by the tokens that it has cost.
func (l *Leg) settleTurn() {
	if l.d.waiting.Queue != nil {
		l.turn.ticket.Settle(l.turnCost())
	}
}

// turnCost returns the tokens that count for the order of the queue.
func (l *Leg) turnCost() float64 {
	if !l.Delivered() || l.now.status >= 300 {
		return 0
	}
	prompt, completion := l.Spent()
	return float64(min(max(prompt, 0), maxSpent) + min(max(completion, 0), maxSpent))
}

// wakeOfTokens wakes the queue after the end of a prompt's computation, if that can make room.
func (l *Leg) wakeOfTokens() {
	if w := &l.d.waiting; w.Queue != nil && (!w.Active.IsZero() || l.thresholds() != nil) {
		w.Queue.Wake()
	}
}

// Queued returns how long the leg has waited in the queue.
func (l *Leg) Queued() time.Duration { return l.turn.waited }

// workspace is the scratch memory of a pick, which grows with the fleet. Waiting legs have none.
type workspace struct {
	cands   []policy.Candidate
	able    []int32
	out     []filter
	times   []policy.Timing
	scratch policy.Scratch
}

var workspaces = sync.Pool{New: func() any { return new(workspace) }}

// lend frees what only a pick needs: the scratch memory, and the leg that would compute the prompt.
// The next pick makes another one, for the fleet as it is then.
func (l *Leg) lend() {
	if l.picks.lend(); l.hand != nil {
		l.hand.drop()
	}
}

// lend gives the scratch memory to other legs until borrow.
func (p *picks) lend() {
	w := workspaces.Get().(*workspace)
	if cap(w.cands) == 0 {
		*w = workspace{emptied(p.cands), p.able[:0], p.out[:0], emptied(p.times), p.asked.Scratch[:0]}
	}
	workspaces.Put(w)
	p.cands, p.able, p.out, p.times, p.asked = nil, nil, nil, nil, policy.Situation{}
}

// borrow gets scratch memory for a pick.
func (p *picks) borrow() {
	w := workspaces.Get().(*workspace)
	p.cands, p.able, p.out, p.times, p.asked.Scratch = w.cands, w.able, w.out, w.times, w.scratch
	*w = workspace{}
	workspaces.Put(w)
}
