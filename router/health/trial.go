package health

import (
	"errors"
	"syscall"
	"time"
)

// OnTrial is the reason given for a node that returns to service and must prove that it is well.
const OnTrial = "on trial after a failure: a few requests at a time"

// seenByChecks says whether a health check detects the fault that opened the breaker, or has failed
// since.
func (b *breaker) seenByChecks() bool {
	switch Outcome(b.blame.Load()) {
	case ConnectError, Reset, probeFailure, silent:
		return true
	}
	return b.unwell
}

// wantsCompletion says whether only an answered completion can show that the node is well. The node
// is aside, or returning, or it fails with server errors and is due for another try.
func (b *breaker) wantsCompletion(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch State(b.state.Load()) {
	case Aside:
		return true
	case HalfOpen:
		return !b.seenByChecks()
	case Open:
		return !b.seenByChecks() && now.UnixNano() >= b.retryAt.Load()
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
			b.tried.Store(now.UnixNano())
			return true
		}
	}
	at := b.retryAt.Load()
	if now.UnixNano() < at || !b.retryAt.CompareAndSwap(at, now.Add(trialEvery).UnixNano()) {
		return false
	}
	b.tried.Store(now.UnixNano())
	return true
}

func (b *breaker) countTrial(o Outcome, now time.Time) {
	if o == Busy { // a 429 proves nothing, so another trial may go
		if b.permits.Load() < 1<<b.trial.wins {
			b.permits.Add(1)
		}
		return
	}
	if o != OK {
		b.fail(o, now)
		return
	}
	b.proven.Store(true)
	b.trial.wins++
	if b.trial.wins >= winsToClose {
		b.close(now, "trial requests were answered")
		return
	}
	b.permits.Store(1 << b.trial.wins)
}

func (b *breaker) halfOpen(now time.Time) {
	b.trial = trial{checkedFrom: now}
	b.permits.Store(1)
	b.tried.Store(0)
	b.retryAt.Store(now.Add(trialEvery).UnixNano())
	b.move(HalfOpen, "answers again")
}

// trialChecked counts a passed check of a node on trial. Enough checks over the given time end the
// trial, if these checks detect the fault. A node without requests then need not stay on trial.
func (b *breaker) trialChecked(now time.Time, over time.Duration, why string) {
	if b.trial.checks++; b.trial.checks == 1 {
		b.trial.checkedFrom = now
	}
	if b.trial.checks >= checksToClose && now.Sub(b.trial.checkedFrom) >= over {
		b.close(now, why)
	}
}

// resultOf turns the error of a check into its result. doubted says that a request's connection
// failed before the check.
func resultOf(err error, doubted bool) check {
	refused := errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ENOENT)
	switch {
	case err == nil:
		return checkWell
	case refused && doubted:
		return checkConfirmed
	case refused:
		return checkRefused
	}
	return checkFailed
}

// completion is the result of a completion check.
type completion uint8

const (
	computed   completion = iota // a token came
	declined                     // a 4xx; no proof of a computed token, so the answer counts only after a while
	incomplete                   // a 5xx, or no answer
)

// completed counts the result of a completion check sent at the given time. busy says that requests
// are in flight on the node. The outcome of a waiting trial request counts more, because a node may
// compute one token and hang on a longer answer.
func (b *breaker) completed(c completion, sent time.Time, busy bool) {
	now := time.Now()
	b.mu.Lock()
	defer b.unlock()
	switch State(b.state.Load()) {
	case Aside:
		wait := min(asideProofFirst<<min(b.aside.times-1, 8), asideProofLast)
		if c == computed || c == declined && now.Sub(b.aside.at) >= wait {
			b.halfOpen(now)
			b.completedTrial(c, sent, busy)
		}
	case Open:
		if c == computed && !b.seenByChecks() && now.UnixNano() >= b.retryAt.Load() {
			b.halfOpen(now)
			b.completedTrial(c, sent, busy)
		}
	case HalfOpen:
		if !b.seenByChecks() {
			b.completedTrial(c, sent, busy)
		}
	}
}

func (b *breaker) completedTrial(c completion, sent time.Time, busy bool) {
	switch {
	case busy && b.tried.Load() > b.moved.Load():
		b.trial.checks = 0
	case c == computed:
		b.proven.Store(true)
		b.trialChecked(time.Now(), checkedFor, "completion checks are well")
	case c == declined:
		b.trialChecked(time.Now(), asideProofLast, "completion checks are answered")
	case sent.After(b.trial.checkedFrom): // older attempts may still hang
		b.trial.checks = 0
	}
}
