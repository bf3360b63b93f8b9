package fleet

import "time"

// onTrial is what a node is that was out of service and has yet to show that it is well.
const onTrial = "on trial after a failure: a few requests at a time"

// seenByChecks: what opened the breaker is something that a health check would meet too.
func (b *breaker) seenByChecks() bool {
	switch Outcome(b.blame.Load()) {
	case ConnectError, Reset, probeFailure, silent:
		return true
	}
	return false
}

func (b *breaker) takePermit(now time.Time) bool {
	for {
		n := b.permits.Load()
		if n <= 0 {
			break
		}
		if b.permits.CompareAndSwap(n, n-1) {
			return true
		}
	}
	at := b.retryAt.Load()
	return now.UnixNano() >= at && b.retryAt.CompareAndSwap(at, now.Add(trialEvery).UnixNano())
}

func (b *breaker) countTrial(o Outcome, now time.Time) {
	if o == Busy { // the trial has shown nothing, so there is another one
		if b.permits.Load() < 1<<b.wins {
			b.permits.Add(1)
		}
		return
	}
	if o != OK {
		b.fail(o, now)
		return
	}
	b.wins++
	if b.wins >= winsToClose {
		b.close(now, "trial requests were answered")
		return
	}
	b.permits.Store(1 << b.wins)
}

func (b *breaker) halfOpen(now time.Time) {
	b.wins, b.checks = 0, 0
	b.permits.Store(1)
	b.retryAt.Store(now.Add(trialEvery).UnixNano())
	b.move(HalfOpen, "answers again")
}

// trialChecked counts a passed health check of a node on trial, so that one whose failure checks would see is not kept
// there for want of requests.
func (b *breaker) trialChecked(now time.Time) {
	if !b.seenByChecks() {
		return
	}
	if b.checks++; b.checks == 1 {
		b.checkedFrom = now
	}
	if b.checks >= checksToClose && now.Sub(b.checkedFrom) >= checkedFor {
		b.close(now, "health checks are well")
	}
}

// completed takes the result of a completion check of a node set aside. A refusal of the check itself (a 4xx) is no proof
// that the engine computes, so it counts only after a while, and after longer each time.
func (b *breaker) completed(proof bool) {
	now := time.Now()
	b.mu.Lock()
	defer b.unlock()
	if State(b.state.Load()) != Aside {
		return
	}
	wait := min(asideProofFirst<<min(b.asides-1, 8), asideProofLast)
	if proof || now.Sub(b.asideAt) >= wait {
		b.halfOpen(now)
	}
}
