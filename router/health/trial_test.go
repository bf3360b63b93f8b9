package health

import (
	"testing"
	"time"
)

func TestTrickleGrowsWithSuccess(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(Healthy)
		b.reports(ConnectError, 2)
		time.Sleep(time.Minute)
		if b.admit() {
			t.Fatal("a refused node is tried with a request; its health check can tell")
		}
		b.checked(checkWell, time.Now())
		b.is(t, HalfOpen)
		for _, permits := range []int{1, 2, 4} {
			for i := range permits {
				if !b.admit() {
					t.Fatalf("trial %d of %d refused", i+1, permits)
				}
			}
			if ok, reason := b.eligible(time.Now()); ok || b.admit() {
				t.Fatalf("more than %d trials: %s", permits, reason)
			}
			b.report(OK)
		}
		b.is(t, Healthy)
	})
}

// TestChecksEndATrialWithoutRequests checks that health checks end a trial if they detect the fault
// that opened the breaker.
func TestChecksEndATrialWithoutRequests(t *testing.T) {
	for o, want := range map[Outcome]State{ConnectError: Healthy, Reset: Healthy, probeFailure: Healthy,
		ServerError: HalfOpen, Timeout: HalfOpen} {
		inBubble(t, func(t *testing.T) {
			b := newBreaker(Healthy)
			b.mu.Lock()
			b.fail(o, time.Now())
			b.mu.Unlock()
			time.Sleep(backoffLast)
			switch o {
			case Timeout:
				b.progressed()
			case ServerError:
				if !b.admit() {
					t.Fatal("no trial")
				}
			default:
				b.checked(checkWell, time.Now())
			}
			b.is(t, HalfOpen)
			ends := func(c check) {
				time.Sleep(500 * time.Millisecond)
				b.checked(c, time.Now())
			}
			for range 4 {
				ends(checkWell)
			}
			b.is(t, HalfOpen) // 1.5 s since the first of four checks
			ends(checkFailed)
			for range 4 {
				ends(checkWell)
			}
			b.is(t, HalfOpen) // checks in a row
			ends(checkWell)
			if got := State(b.state.Load()); got != want {
				t.Errorf("after %v: %v, want %v", o, got, want)
			}
		})
	}
}

// TestCompletionsEndATrialWithoutRequests checks that completions end a trial if health checks do
// not detect the fault.
func TestCompletionsEndATrialWithoutRequests(t *testing.T) {
	for _, o := range []Outcome{ServerError, Timeout} {
		inBubble(t, func(t *testing.T) {
			b := newBreaker(Healthy)
			b.mu.Lock()
			b.fail(o, time.Now())
			b.mu.Unlock()
			if o == ServerError && b.wantsCompletion(time.Now()) {
				t.Fatal("checked before its backoff is over")
			}
			time.Sleep(backoffLast)
			check := func(c completion, busy bool) {
				time.Sleep(time.Second)
				if !b.wantsCompletion(time.Now()) {
					t.Fatalf("%v: no completion check is wanted while it is %v", o, State(b.state.Load()))
				}
				b.completed(c, time.Now(), busy)
			}
			check(incomplete, false)
			if State(b.state.Load()) == HalfOpen {
				t.Fatal("on trial although it does not compute")
			}
			check(computed, false)
			b.is(t, HalfOpen)
			check(computed, false)
			check(incomplete, false)
			check(computed, false)
			if !b.admit() { // a trial request that waits for its answer
				t.Fatal("no trial request")
			}
			for range 5 {
				check(computed, true)
			}
			b.is(t, HalfOpen)
			check(computed, false) // the trial's client has left
			check(computed, false)
			b.is(t, HalfOpen)
			check(computed, false)
			b.is(t, Healthy)
			if b.wantsCompletion(time.Now()) {
				t.Error("a healthy node is asked for completions")
			}
		})
	}
}

// TestRefusedCompletionsEndATrialLate checks that an engine without completions returns to service
// after a while.
func TestRefusedCompletionsEndATrialLate(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(Healthy)
		b.setAside("hangs")
		back := time.Now()
		for State(b.state.Load()) != Healthy {
			time.Sleep(time.Second)
			b.completed(declined, time.Now(), false)
		}
		if took := time.Since(back); took < asideProofLast || took > 2*asideProofLast {
			t.Errorf("after %v", took)
		}
	})
}

// TestHealthChecksThatFailedTooEndATrial checks that health checks can end a trial if a health
// check has failed as well. Health checks then detect the fault, whatever the fault is.
func TestHealthChecksThatFailedTooEndATrial(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(Healthy)
		b.reports(ServerError, 3)
		b.checked(checkFailed, time.Now())
		time.Sleep(backoffLast)
		for range 6 {
			b.checked(checkWell, time.Now())
			time.Sleep(500 * time.Millisecond)
		}
		b.is(t, Healthy)
		b.reports(ServerError, 3) // this time only requests fail
		time.Sleep(backoffLast)
		for range 6 {
			b.checked(checkWell, time.Now())
			time.Sleep(500 * time.Millisecond)
		}
		b.is(t, Open)
	})
}

// TestFewSlowChecksDoNotEndATrial checks that time without enough checks does not end a trial.
func TestFewSlowChecksDoNotEndATrial(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(Healthy)
		b.reports(Reset, 3)
		for range checksToClose { // the first check makes the breaker half-open
			b.checked(checkWell, time.Now())
			b.is(t, HalfOpen)
			time.Sleep(5 * time.Second)
		}
		b.checked(checkWell, time.Now())
		b.is(t, Healthy)
	})
}

func TestALostTrialDoesNotBlockTheReturn(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(Healthy)
		b.reports(ConnectError, 2)
		time.Sleep(time.Second)
		b.checked(checkWell, time.Now())
		if !b.admit() || b.admit() {
			t.Fatal("want exactly one trial")
		}
		time.Sleep(trialEvery) // the client left, so no outcome is reported
		if !b.admit() || b.admit() {
			t.Fatal("want exactly one more trial")
		}
	})
}
