package health

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// newBreaker returns a breaker that has been healthy for long.
func newBreaker(s State) *breaker {
	b := &breaker{}
	b.init(s, nil)
	return b
}

func (b *breaker) is(t *testing.T, want State) {
	t.Helper()
	if got := State(b.state.Load()); got != want {
		t.Fatalf("breaker is %v, want %v", got, want)
	}
}

func (b *breaker) reports(o Outcome, times int) {
	for range times {
		b.report(o)
	}
}

// inBubble runs f with virtual time.
func inBubble(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

func TestWhatOpensABreaker(t *testing.T) {
	for name, c := range map[string]struct {
		reports []Outcome
		want    State
	}{
		"one refusal":             {[]Outcome{ConnectError}, Healthy},
		"two refusals":            {[]Outcome{ConnectError, ConnectError}, Open},
		"two resets":              {[]Outcome{Reset, Reset}, Healthy},
		"three in a row":          {[]Outcome{Reset, ServerError, Reset}, Open},
		"three, one OK between":   {[]Outcome{Reset, Reset, OK, Reset}, Healthy},
		"three timeouts":          {[]Outcome{Timeout, Timeout, Timeout}, Aside},
		"half of ten":             {[]Outcome{OK, Reset, OK, Reset, OK, Reset, OK, Reset, OK, Reset, OK, Reset}, Open},
		"a third of many":         {slices.Repeat([]Outcome{OK, OK, Reset}, 5), Healthy},
		"sixty answers below 500": {make([]Outcome, 60), Healthy},
	} {
		b := newBreaker(Healthy)
		for _, o := range c.reports {
			b.report(o)
		}
		if got := State(b.state.Load()); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestServerErrorsAreTriedAgainAfterABackoff(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(Healthy)
		b.reports(ServerError, 3)
		b.is(t, Open)
		if b.admit() {
			t.Fatal("admitted before the backoff was over")
		}
		if ok, reason := b.eligible(time.Now()); ok || reason != "breaker open: server errors" {
			t.Fatal(ok, reason)
		}
		for _, backoff := range []time.Duration{250, 500, 1000, 1000, 1000} {
			time.Sleep(backoff*time.Millisecond - time.Microsecond)
			if ok, _ := b.eligible(time.Now()); ok {
				t.Fatalf("eligible before %v ms", backoff)
			}
			time.Sleep(time.Microsecond)
			if ok, _ := b.eligible(time.Now()); !ok || !b.admit() {
				t.Fatalf("not admitted after %v ms", backoff)
			}
			if b.admit() {
				t.Fatal("a second trial at the same time")
			}
			b.report(ServerError)
			b.is(t, Open)
		}
	})
}

func TestAFlappingNodeWaits(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(Healthy)
		trials := 0
		for until := time.Now().Add(20 * time.Second); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
			b.checked(checkWell, time.Now()) // the node's health check always passes
			for b.admit() {
				trials++
				b.report(Reset)
			}
		}
		if trials > 30 {
			t.Fatalf("%d requests were tried on a flapping node in 20 s", trials)
		}
	})
}

func TestAReturningNodeIsBackWithinTwoSeconds(t *testing.T) {
	checks := map[Outcome]check{
		ConnectError: checkRefused, Reset: checkFailed, ServerError: checkWell, probeFailure: checkFailed,
	}
	for o := range checks {
		inBubble(t, func(t *testing.T) {
			b := newBreaker(Healthy)
			b.mu.Lock()
			b.fail(o, time.Now())
			b.mu.Unlock()
			for range 40 { // 20 s of failures
				time.Sleep(500 * time.Millisecond)
				b.checked(checks[o], time.Now())
				if b.admit() {
					b.report(o)
				}
			}
			b.is(t, Open)
			back := time.Now()
			for i := 1; State(b.state.Load()) != Healthy; i++ {
				time.Sleep(100 * time.Millisecond) // one request every 100 ms, answered at once
				if i%5 == 0 {
					b.checked(checkWell, time.Now())
				}
				if b.admit() {
					b.report(OK)
				}
			}
			if took := time.Since(back); took > 2*time.Second {
				t.Errorf("after %v: back after %v", o, took)
			}
		})
	}
}

func TestSetAsideUntilThereIsProgress(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(Healthy)
		b.setAside("its peers move on")
		b.is(t, Aside)
		b.checked(checkWell, time.Now()) // a server that accepts connections is no news
		time.Sleep(time.Minute)
		if ok, reason := b.eligible(time.Now()); ok || b.admit() || reason != "set aside: it makes no progress" {
			t.Fatal(ok, reason)
		}
		b.progressed()
		b.is(t, HalfOpen)

		b.setAside("again")
		b.completed(computed, time.Now(), false)
		b.is(t, HalfOpen)

		b.setAside("and again")
		b.completed(declined, time.Now(), false) // an answer that proves nothing
		b.is(t, Aside)
		time.Sleep(4 * time.Second)
		b.completed(declined, time.Now(), false)
		b.is(t, HalfOpen)

		b.setAside("a late answer")
		b.report(OK)
		b.is(t, HalfOpen)
	})
}

func TestHealthChecks(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(Unproven)
		if ok, reason := b.eligible(time.Now()); ok || b.admit() {
			t.Fatal(reason)
		}
		b.checked(checkRefused, time.Now())
		b.is(t, Unproven)
		b.checked(checkWell, time.Now())
		b.is(t, Healthy)

		time.Sleep(time.Minute)
		last := time.Now()
		time.Sleep(time.Second)
		b.report(OK)
		for range 5 {
			b.checked(checkFailed, last) // the check is late, but the node has just answered a request
		}
		b.is(t, Healthy)
		last = time.Now().Add(1)
		b.checked(checkFailed, last)
		b.is(t, Healthy)
		b.checked(checkFailed, last)
		b.is(t, Open)
		if _, reason := b.eligible(time.Now()); reason != "breaker open: health check fails" {
			t.Fatal(reason)
		}
	})
}

// TestBusyAnswers checks that a 429 neither helps nor harms a node. A trial request that gets a 429
// returns its permit.
func TestBusyAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		b := newBreaker(Healthy)
		b.reports(Reset, 2)
		b.reports(Busy, 5)
		b.is(t, Healthy)
		b.report(Reset)
		b.is(t, Open)
		b.report(Busy)
		b.is(t, Open)
		time.Sleep(backoffFirst)
		b.checked(checkWell, time.Now())
		b.is(t, HalfOpen)
		for range 3 {
			if !b.admit() || b.admit() {
				t.Fatal("not one trial at a time")
			}
			b.report(Busy)
		}
		b.reports(Busy, 5)
		if !b.admit() || b.admit() {
			t.Error("busy answers add trials")
		}
		b.is(t, HalfOpen)
	})
}

// TestChangesAreToldWithoutTheLock checks that the callback of a change of state runs without the
// lock. A slow callback then holds up nobody.
func TestChangesAreToldWithoutTheLock(t *testing.T) {
	var b breaker
	var told []State
	b.init(Healthy, func(_, to State, _ string) {
		if !b.mu.TryLock() {
			t.Fatal("told with the lock held")
		}
		b.mu.Unlock()
		told = append(told, to)
	})
	b.reports(Reset, 3)
	b.checked(checkWell, time.Now())
	b.setAside("stuck")
	b.progressed()
	if want := []State{Open, HalfOpen, Aside, HalfOpen}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}
