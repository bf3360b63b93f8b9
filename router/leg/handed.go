package leg

import (
	"bytes"
	"errors"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/request"
)

// handed ends the hand-over of an attempt whose exchange ended in v with err. If the hand-over
// failed, the node computes the prompt itself, or a needy node gets another partner. The same holds
// if the node does not know stream_options, because the parameters may be used up. again says to
// ask the node once more. Otherwise the attempt ends in the returned verdict.
func (l *Leg) handed(a *attempt, v verdict, err error) (end verdict, again bool) {
	if l.mayReadLate(a, v) {
		l.resalt(a.member.node)
	}
	h, status := l.hand, a.status
	if a.ex != nil {
		status = a.ex.Status()
	}
	h.ended(v, status)
	if v == broken && errors.Is(err, relay.ErrStale) {
		v = lost // the parameters may be used up, but the node is probably well
	}
	if v != answered && h.callOff() && (v == lost || v == failed500) {
		v = unpaired // the node's failure follows from that of P
	}
	w := Unread
	switch v {
	case answered:
		if a.status < 400 {
			l.d.ways[Split].Inc()
		}
		return v, false
	case unpaired:
		w = h.way
	case lost, failed500:
	case noOptions: // once for a node, so the retry budget does not pay
		a.member.node.noStreamOptions()
	default:
		return v, false
	}
	if l.Request.Expired() {
		if v == noOptions {
			v = late
		}
		return v, false
	}
	if a.member.needy && v != noOptions && !h.mayTryAgain(w) {
		l.unsplit(a, w, time.Now())
		return v, false
	}
	l.traceFailed(a, v)
	if a.ex != nil {
		a.ex.Close()
		a.ex = nil
	}
	h.repay()
	if l.unsplit(a, w, time.Now()); a.member.needy {
		if v == unpaired {
			h.tried = append(h.tried, h.partner)
		}
		if !l.pairAnew(a) {
			return l.bereft(), false
		}
	}
	if !l.anew(a) {
		return abandoned, false
	}
	h.prefillBeside()
	return v, true
}

// unsplit makes the attempt's node compute the prompt, because the hand-over has failed in way w or
// would come too late. A needy node just loses its partner.
func (l *Leg) unsplit(a *attempt, w Way, now time.Time) {
	h := l.hand
	if l.way = w; l.Request.Life.Ended() == request.None && !l.Request.Expired() {
		if l.d.ways[w].Inc(); w.failed() {
			l.complainOfHandover(a, w)
		}
	}
	h.spoil()
	if h.near = h.near[:0]; h.factKey != "" {
		l.d.facts.forget(h.factKey)
	}
	if a.member.needy {
		a.split = false
		return
	}
	l.mu.Lock() // Prefilled may use the cost
	defer l.mu.Unlock()
	a.cost.Close(now)
	if h.pick < len(l.picks.times) {
		l.picks.times[h.pick].Via = policy.Via{}
	}
	l.charge(a, h.pick, now)
	if a.recorded && a.shares {
		a.cost.Count(l.prompt.Keys(), &l.d.sharing)
	}
}

// anew begins the attempt again at the same node. anew returns false if the request has ended.
func (l *Leg) anew(a *attempt) bool {
	l.disarm()
	l.Request.Life.Leave(&a.abort)
	a.abort.Reset()
	l.wait.Done(time.Now(), 0, false)
	a.sent = time.Now()
	a.member.waits.Begin(&l.wait, a.sent, l.work(a))
	if !l.arm(a) {
		return false
	}
	l.traceBegin(a)
	return true
}

// complainOfHandover logs a failed hand-over of the attempt.
func (l *Leg) complainOfHandover(a *attempt, w Way) {
	if count, ok := l.model.handovers.due(time.Now()); ok {
		l.d.log.Warn("hand-over of a prompt failed", "reason", w.String(),
			"prefill_node", l.hand.last.node, "node", a.member.node.ID, "model", l.model.name,
			"failures_since_last_line", count)
	}
}

// unreadable says whether the beginning of D's answer in ex means that D cannot read the blocks. A
// refusal of D may be about the hand-over. If it is not, D refuses the request without one too. A
// needy D gets no request without one, so its refusal is its answer.
func (a *attempt) unreadable(ex *relay.Exchange) bool {
	if ex.Status() >= 400 && !a.member.needy {
		return true
	}
	events := ex.Held()
	if rest := behindRole(events); rest != nil {
		events = rest
	}
	return ex.IsSSE() && bytes.HasPrefix(events, errorEvent)
}

// behindRole returns what follows the first event of a chat's stream if that event only names the
// role; otherwise nil. vLLM sends this event even if it has no answer.
func behindRole(stream []byte) []byte {
	first, rest, ended := bytes.Cut(stream, eventEnd)
	if !ended || !bytes.Contains(first, roleMember) {
		return nil
	}
	return rest
}

var (
	// errorEvent is the beginning of an event that reports an error.
	errorEvent = []byte(`data: {"error"`)
	roleMember = []byte(`"delta":{"role":`)
	eventEnd   = []byte("\n\n")
)
