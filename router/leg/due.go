package leg

import (
	"fmt"
	"math"
	"time"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/queue"
)

// These are the codes of the errors of requests that would come too late.
const (
	codeLate = "deadline_too_near"
	codeSLO  = "ttft_over_slo"
)

// proveEvery is the time after which an idle node whose speed no answer has shown gets a request
// although it is expected too late. Otherwise a wrong expectation might refuse all requests for
// good.
const proveEvery = 10 * time.Second

// due returns the time by which the first token of the leg is wanted, so that the request is worth
// sending; zero: at any time. code is that of the error of a request that would come later.
func (l *Leg) due() (end time.Time, code string) {
	if l.Request.Deadline.IsZero() && !l.d.o.RefuseOverSLO {
		return end, ""
	}
	if l.Work != Answer || l.Further || l.Attempts > 0 || l.piece != nil || !l.foresees() {
		return end, ""
	}
	end, code = l.Request.Deadline, codeLate
	if !l.d.o.RefuseOverSLO || !l.showsFirst() {
		return end, code
	}
	target := l.picks.policy.TTFTSloMs / 1000
	if own := l.overrides().Targets.First; own > 0 {
		target = own
	}
	if target > 0 {
		if slo := l.Request.Received.Add(seconds(target)); end.IsZero() || slo.Before(end) {
			return slo, codeSLO
		}
	}
	return end, code
}

// inTime returns the candidate to ask, given the policy's pick: that one if its first token is
// expected in time, or else the candidate with room that has the earliest one. If that is too late
// as well, inTime returns an error: errAllBusy for a leg that may wait for a full candidate whose
// first token is expected in time, or else an error with the expected time.
func (l *Leg) inTime(pick int, now time.Time) (int, *apierror.Error) {
	end, code := l.due()
	if end.IsZero() {
		return pick, nil
	}
	s, p := l.situation(), l.picks.policy
	first := p.Expected(s, pick).First
	if !l.misses(l.candidate(pick), first, now, end) {
		return pick, nil
	}
	faster := false
	if stays := l.d.o.HardSessions && l.home(now) == pick+1; !stays {
		for i := range s.Candidates {
			t := p.Expected(s, i).First
			if !s.Candidates[i].Room() {
				faster = faster || !l.misses(l.candidate(i), t, now, end)
			} else if t < first {
				pick, first = i, t
			}
		}
	}
	n, c := l.candidate(pick), &s.Candidates[pick]
	if !l.misses(n, first, now, end) {
		return pick, nil
	}
	if last, ok := n.engine.LastCompared(); c.InFlight == 0 && c.Others == 0 && (!ok || now.Sub(last.At) > proveEvery) {
		return pick, nil
	}
	if faster && l.queues() {
		return -1, errAllBusy
	}
	return -1, errLate(code, seconds(first))
}

// candidate returns the member that is the candidate at an index.
func (l *Leg) candidate(i int) *member { return l.pool.members[l.picks.able[i]] }

// soonest returns the earliest expected first token of the nodes that may take the leg, full ones
// included, in seconds; 0: unknown.
func (l *Leg) soonest(now time.Time) float64 {
	if l.picks.policy = l.d.policyOf(l.model); !l.foresees() {
		return 0
	}
	l.candidates(now)
	l.foreseeAll(now)
	s, first := l.situation(), math.Inf(1)
	for i := range s.Candidates {
		if !l.knows(l.candidate(i)) {
			return 0
		}
		first = min(first, l.picks.policy.Expected(s, i).First)
	}
	if math.IsInf(first, 1) {
		return 0
	}
	return first
}

// refuseTurn returns an error if the leg's first token would come too late after the wait in the
// queue that its claim means. An unknown wait counts as none.
func (l *Leg) refuseTurn(c *queue.Claim, now time.Time) *apierror.Error {
	end, code := l.due()
	if end.IsZero() {
		return nil
	}
	wait, _ := l.model.line.Expect(c, now)
	if wait += seconds(l.soonest(now)); now.Add(wait).After(end) {
		return errLate(code, wait)
	}
	return nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// errLate returns the error of a request whose first token is expected after a time, too late.
func errLate(code string, wait time.Duration) *apierror.Error {
	e := unavailable(code, fmt.Sprintf("the first token is expected in %.3g s, after the request's deadline "+
		"(x-cgn-deadline-ms)", wait.Seconds()))
	if e.RetryAfterSeconds = retryAfter(wait); code == codeSLO {
		e.Message = fmt.Sprintf("the first token is expected in %.3g s, later than ttft_slo_ms of the policy, or the "+
			"request's ttft_target, allows", wait.Seconds())
	}
	return e
}

func isLate(err *apierror.Error) bool { return err.Code == codeLate || err.Code == codeSLO }

// retryAfter returns a wait for the header Retry-After.
func retryAfter(wait time.Duration) int {
	const most = 3600
	return int(min(max(math.Ceil(wait.Seconds()), 1), most))
}

// errQueueBug is the error of a waiting request that a bug has ended.
var errQueueBug = &apierror.Error{
	Status: 500, Code: "router_bug", Message: "the router failed to find a node for this request; its log says more",
}

// overflow returns the error of a request that the full queue does not take, or not any longer.
func (l *Leg) overflow(why error, c *queue.Claim, now time.Time) *apierror.Error {
	e := unavailable("waiting_full", "too many requests wait for a node; router.queue.max_requests bounds them")
	if why == queue.ErrMemory {
		e.Code, e.Message = "waiting_memory", "the waiting requests take too much memory; router.queue.max_bytes bounds it"
	}
	e.RetryAfterSeconds = l.retryAfterQueue(c, now)
	return e
}

// waitedTooLong returns the error of a request that no node has taken for router.queue.max_wait.
func (l *Leg) waitedTooLong(c *queue.Claim) *apierror.Error {
	e := unavailable("waited_too_long", fmt.Sprintf("no node had room for %v; router.queue.max_wait bounds the wait",
		l.d.waiting.Most))
	e.RetryAfterSeconds = l.retryAfterQueue(c, time.Now())
	return e
}

// retryAfterQueue returns in how many seconds a request with this claim would have its turn.
func (l *Leg) retryAfterQueue(c *queue.Claim, now time.Time) int {
	wait, _ := l.model.line.Expect(c, now)
	return retryAfter(wait)
}
