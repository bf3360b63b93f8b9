package leg

import (
	"time"

	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
)

// Rehearsal is a streamed leg that is not sent. Choosing, counting and learning run as in Do and
// Finish. The caller gives the time, the beginning of the answer and the cached tokens. Rehearsal
// serves simulations: it never gives up, retries or checks health.
//
// If another node computes the prompt, as Prefill tells, its part comes first: HandedOver ends it,
// and only then the answering node is asked. Connectors that ask both nodes at once are rehearsed
// like the others.
type Rehearsal struct {
	l *Leg
}

// Piece describes the request of a Rehearsal.
type Piece struct {
	Keys      []uint64 // of the blocks of the prompt, which is one user turn
	MaxTokens int64    // the client's bound on the answer, in tokens; 0: none
	Session   []byte   // id of the client's session; nil: none
	// Known gives the blocks that each node of the model holds, in place of the index. If Known is
	// nil, the index gives them.
	Known func(n *fleet.Node) int32
	// Warm says how far the prompt reaches on each node, as hosts' caches would report. A Device of
	// holdings.Unknown leaves what the index gives. Nil: no cache reports.
	Warm func(n *fleet.Node) holdings.Reach
}

// Rehearse chooses the node for a request.
func (d *Dispatcher) Rehearse(p Piece, now time.Time) (Rehearsal, *apierror.Error) {
	r := request.New()
	r.API, r.Method, r.Received = scan.Chat, "POST", now
	r.Session, r.Scan.MaxTokens = p.Session, p.MaxTokens
	l := d.Leg(r, Question{}, nil)
	l.piece = &p
	if err := l.rehearse(); err != nil {
		l.close()
		return Rehearsal{}, err
	}
	return Rehearsal{l}, nil
}

func (l *Leg) rehearse() *apierror.Error {
	now := l.Request.Received
	l.Request.Scan.Stream = true
	if err := l.start(); err != nil {
		return err
	}
	if _, err := l.choose(now); err != nil {
		return err
	}
	a := l.spare()
	if l.now = a; a.split && l.choosePartner(a, now) {
		p := l.hand.prefill
		p.now = p.spare()
		p.send(p.now, now)
		return nil
	}
	l.send(a, now)
	return nil
}

// send notes that the attempt's node is asked, as try and ask do.
func (l *Leg) send(a *attempt, now time.Time) {
	a.sent, a.ref = now, a.member.rank.Ref()
	l.useAdapter(a)
	a.member.waits.Begin(&l.wait, now, l.work(a))
	if l.prompt.Found() {
		l.record(a)
	}
}

// lookAtPiece is look for a rehearsal.
func (l *Leg) lookAtPiece() {
	own, keys, known := l.overrides(), l.piece.Keys, l.piece.Known
	if known == nil && !l.d.policyOf(l.model).UsesPrefixes(&own) {
		l.prompt.MeasureBlocks(l.Request, len(keys), len(l.pool.ranks))
		return
	}
	l.d.where.FindKeys(l.prompt, l.Request, keys, l.model.name, l.model.seed, l.pool.ranks)
	if known != nil {
		for i, r := range l.pool.ranks {
			l.prompt.Suppose(i, known(r.Owner()))
		}
	}
	if warm := l.piece.Warm; warm != nil {
		for i, r := range l.pool.ranks {
			l.prompt.Tell(i, warm(r.Owner()))
		}
	}
}

// Pick chooses the node for a leg of r as Do does, and gives the node's slot back. Pick sends
// nothing. It serves measurements of the way from a request to its node.
func (d *Dispatcher) Pick(r *request.Request, q Question) (node string, err *apierror.Error) {
	l := d.Leg(r, q, nil)
	defer l.giveBack()
	l.began = r.Received
	at, err := l.first()
	if err != nil {
		return "", err
	}
	return l.pool.members[at].node.ID, nil
}

// close frees the leg.
func (l *Leg) close() {
	if l.hand != nil {
		l.hand.release()
		l.hand = nil
	}
	l.permit.Release()
	l.recycle()
}

// Node returns the chosen node, which answers.
func (r Rehearsal) Node() *fleet.Node { return r.l.now.member.node.Node }

// Prefill returns the node that computes the prompt for the answering node; nil: the answering node
// does, or the prompt has been handed over.
func (r Rehearsal) Prefill() *fleet.Node {
	if p := r.prefill(); p != nil {
		return p.now.member.node.Node
	}
	return nil
}

// prefill returns the leg of the node that computes the prompt; nil: there is none any more.
func (r Rehearsal) prefill() *Leg {
	if r.l.now.split {
		return r.l.hand.prefill
	}
	return nil
}

// HandedOver notes that the node of Prefill has computed the prompt, with its engine's report. The
// answering node is asked from now on.
func (r Rehearsal) HandedOver(report usage.Counts, now time.Time) {
	h, p := r.l.hand, Rehearsal{r.prefill()}
	h.prefill, h.stage = nil, fresh
	h.last.ended, h.last.took, h.last.usage = now, now.Sub(h.last.began), report
	p.Begun(now)
	p.Finish(report, now)
	r.l.send(r.l.now, now)
}

// Matched returns how many leading blocks were believed to be at the node that computes the prompt.
func (r Rehearsal) Matched() int {
	if p := r.prefill(); p != nil {
		return p.now.matched
	}
	return r.l.now.matched
}

// Begun notes that the first token came.
func (r Rehearsal) Begun(now time.Time) { r.l.begun(r.l.now, now) }

// Generated notes a token of the answer. tokens is the number of tokens until then.
func (r Rehearsal) Generated(tokens int, now time.Time) { r.l.grew(int64(tokens), now) }

// Expected returns the expected time to the first token; 0: unknown.
func (r Rehearsal) Expected() time.Duration {
	return time.Duration(r.l.now.forecast.ttft * float64(time.Second))
}

// Finish ends the leg with the engine's report. Do not use r afterwards.
func (r Rehearsal) Finish(report usage.Counts, now time.Time) {
	l := r.l
	l.wait.Done(now, report.Completion, true)
	l.Reading.Usage = report
	l.lengthCame(l.now, report.Completion)
	l.endCame(l.now, report.Completion, report.Completion, now)
	if l.now.recorded {
		l.learn(l.now, true, false, l.Request.Received)
	}
	l.now.cost.Close(now)
	l.drop(l.now)
	l.close()
}
