package trust

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cognitora/dataplane/internal/redisserver"
	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/limits/shared"
)

// TestReadCounts checks that what a router's limits count in Redis is read as held while a request
// runs, and as used afterwards.
func TestReadCounts(t *testing.T) {
	at := redisserver.Start(t).At
	l, err := shared.New(shared.Options{Addresses: []string{at}, Exact: true, OnFailure: shared.Closed,
		Timeout: patience}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = l.Run(ctx) }()
	defer func() { stop(); <-ended }()
	db := redis.NewClient(&redis.Options{Addr: at})
	defer db.Close()
	of := func(scope limits.Scope, tenant, name string) limits.Subject {
		return limits.Subject{Of: scope, Tenant: tenant, Name: name, Account: new(limits.Account),
			Limit: limits.NewLimit(limits.Rates{Budget: 1000, TokensPerMinute: 1000})}
	}
	var r limits.Reservation
	r.Add(of(limits.OfTenant, "acme", ""))
	r.Add(of(limits.OfModel, "", "large"))
	if _, ok := r.Reserve(limits.Use{Requests: 1, Input: 20, Output: 30}, time.Now()); !ok {
		t.Fatal("there is no room")
	}
	if no, away, ok := r.Share(l, time.Now()); !ok {
		t.Fatalf("%+v, away %v", no, away)
	}
	check := func(wantUsed, wantHeld int64) {
		t.Helper()
		used, held, err := readCounts(db, slices.Values([]string{"acme", "model large", "nobody"}))
		for _, name := range []string{"acme", "model large"} {
			if used[name] != wantUsed || held[name] != wantHeld {
				t.Errorf("%s: used %d, held %d, want %d, %d; %v", name, used[name], held[name], wantUsed, wantHeld, err)
			}
		}
	}
	check(0, 50)
	r.Settle(limits.Use{Requests: 1, Input: 20, Output: 10}, time.Now())
	for deadline := time.Now().Add(patience); l.Stats().Unsettled > 0 && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	check(30, 0)
}

// TestStalls checks that only a stall near the routers' timeout excuses them, and only around it.
func TestStalls(t *testing.T) {
	var s stalls
	from := time.Now()
	s.enter(from, excuse-1)
	if s.longest() != excuse-1 || s.within(from, from.Add(excuse)) {
		t.Error("a short stall excuses")
	}
	s.enter(from, excuse)
	if !s.within(from.Add(time.Second), from.Add(2*time.Second)) || s.within(from.Add(-time.Second), from) ||
		s.within(from.Add(excuse+redisTimeout), from.Add(time.Minute)) {
		t.Error("a long stall excuses at the wrong times")
	}
}
