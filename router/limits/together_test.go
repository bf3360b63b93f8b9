package limits

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/redisserver"
	"github.com/cognitora/dataplane/router/limits/shared"
)

// TestShare checks that two routers hold a subject to its limits together, that all of a refused
// request comes back in both places, and that sharing allocates nothing.
func TestShare(t *testing.T) {
	at := redisserver.Start(t).At
	router := func(exact bool) *shared.Limiter { return limiter(t, at, exact) }
	rates := Rates{TokensPerDay: 1000, OutputPerDay: 900, RequestsPerDay: 10, Concurrent: 3, Budget: 5000}
	here, there := subject(rates), subject(rates)
	share := func(l *shared.Limiter, s Subject, u Use) (r Reservation, no Refusal, ok bool) {
		r.Add(s)
		if no, ok := r.Reserve(u, time.Now()); !ok {
			t.Fatalf("%+v", no)
		}
		for deadline := time.Now().Add(time.Minute); ; { // until Redis has started
			no, away, ok := r.Share(l, time.Now())
			if !away || time.Now().After(deadline) {
				return r, no, ok
			}
			r.Reserve(u, time.Now())
		}
	}
	a, b := router(true), router(true)
	first, no, ok := share(a, here, Use{1, 100, 500})
	if !ok {
		t.Fatalf("%+v", no)
	}
	_, no, ok = share(b, there, Use{1, 10, 450})
	if ok || no.Setting != "tokens_per_day" && no.Setting != "output_tokens_per_day" || no.Wait <= 0 || no.Asked < 450 {
		t.Errorf("%v, %+v", ok, no)
	}
	first.Settle(Use{1, 100, 50}, time.Now())
	second, no, ok := share(b, there, Use{1, 10, 450})
	for deadline := time.Now().Add(time.Minute); !ok && time.Now().Before(deadline); { // a settles in a moment
		second, no, ok = share(b, there, Use{1, 10, 450})
	}
	left, _ := second.Left(Tokens, time.Now())
	if !ok || left.Limit != 1000 || left.Remaining < 385 || left.Remaining > 395 {
		t.Errorf("%v, %+v, %+v", ok, no, left)
	}
	second.Settle(Use{}, time.Now())

	l, wide := router(false), subject(Rates{TokensPerDay: 1e12, RequestsPerMinute: 1e9, Concurrent: 1000, Budget: 1e12})
	var r Reservation
	once := func() {
		r = Reservation{}
		r.Add(wide)
		r.Reserve(Use{1, 10, 10}, time.Now())
		r.Share(l, time.Now())
		r.Settle(Use{1, 10, 5}, time.Now())
	}
	for range 3000 {
		once()
	}
	before := l.Stats()
	if n := testing.AllocsPerRun(200, once); n != 0 && l.Stats().RoundTrips == before.RoundTrips {
		t.Errorf("%v allocations", n)
	}
}

// limiter returns what shares limits in the Redis at an address.
func limiter(t *testing.T, at string, exact bool) *shared.Limiter {
	t.Helper()
	o := shared.Options{Addresses: []string{at}, Exact: exact, OnFailure: shared.Closed, Timeout: 10 * time.Second}
	l, err := shared.New(o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return l
}
