package leg

import (
	"time"

	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
)

// Rehearsal is a streamed leg that is not sent. Choosing, counting and learning run as in Do and
// Finish. The caller gives the time, the beginning of the answer and the cached tokens. Rehearsal
// serves simulations: it never gives up, retries or checks health.
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
}

// Rehearse chooses the node for a request.
func (d *Dispatcher) Rehearse(p Piece, now time.Time) (Rehearsal, *apierror.Error) {
	r := request.New()
	r.API, r.Method, r.Received = scan.Chat, "POST", now
	r.Session, r.Scan.MaxTokens = p.Session, p.MaxTokens
	l := d.Leg(r, Question{}, nil)
	if err := l.rehearse(p.Keys, p.Known); err != nil {
		l.close()
		return Rehearsal{}, err
	}
	return Rehearsal{l}, nil
}

func (l *Leg) rehearse(keys []uint64, known func(n *fleet.Node) int32) *apierror.Error {
	if err := l.admit(); err != nil {
		return err
	}
	sent := l.Request.Received
	l.Request.Scan.Stream = true
	own := l.overrides()
	if known != nil || l.d.policyOf(l.model).UsesPrefixes(&own) {
		l.d.where.FindKeys(l.prompt, l.Request, keys, l.model.name, l.model.seed, l.pool.ranks)
	} else {
		l.prompt.MeasureBlocks(l.Request, len(keys), len(l.pool.ranks))
	}
	if known != nil {
		for i, r := range l.pool.ranks {
			l.prompt.Suppose(i, known(r.Owner()))
		}
	}
	if _, err := l.choose(sent); err != nil {
		return err
	}
	a := l.spare()
	a.sent, a.ref = sent, a.member.rank.Ref()
	l.useAdapter(a)
	l.now = a
	a.member.waits.Begin(&l.wait, sent, l.work(a))
	if l.prompt.Found() {
		l.record(a)
	}
	return nil
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
	l.permit.Release()
	l.recycle()
}

// Node returns the chosen node.
func (r Rehearsal) Node() *fleet.Node { return r.l.now.member.node.Node }

// Matched returns how many leading blocks were believed to be at the node.
func (r Rehearsal) Matched() int { return r.l.now.matched }

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
