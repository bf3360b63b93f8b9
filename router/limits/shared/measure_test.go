package shared

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"
	"time"
)

// targetExact is how much longer than a bare EVALSHA a request in exact mode may take, at the 99th
// percentile.
const targetExact = 1.5

// TestExactAgainstBare compares exact mode with a script that does nothing with the same arguments.
// The measurements are interleaved, with the same client library and server. The test prints the
// median over rounds, and fails only if the ratio of most rounds is beyond the target.
func TestExactAgainstBare(t *testing.T) {
	if os.Getenv("CGN_BENCH") == "" {
		t.Skip("set CGN_BENCH=1: wants a quiet machine")
	}
	s := startServer(t)
	l, _ := limiter(t, Options{Addresses: []string{s.at}, Exact: true})
	bare := newScript("return {1}")
	if err := l.db.ScriptLoad(t.Context(), bare.source).Err(); err != nil {
		t.Fatal(err)
	}
	k := subject(l, "acme", "key")
	limits := []Limit{k.of(rpm, 1e9, 1), k.of(tpm, 1e12, 500), k.of(flight, 10000, 1)}
	used := []int64{1, 200, 1}
	ask := func() {
		c := l.scripts.newReserve("cgn:{bare}", markLife)
		for i := range limits {
			c.reserve(&limits[i], limits[i].Units, 0, false)
		}
		c.script = bare
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if _, err := l.scripts.run(ctx, l.db, c); err != nil {
			t.Error(err)
		}
	}
	reserve := func() func() {
		r := new(Reservation)
		if no, v := l.Reserve(r, limits); v != Admitted || r.by != byRedis {
			t.Errorf("verdict %d, %+v", v, no)
		}
		return func() { r.Settle(used) }
	}
	const rounds, requests = 15, 1000
	for _, clients := range []int{1, 16} {
		var ratios, ours, theirs []float64
		for range rounds {
			b := p99(clients, requests, func() func() { ask(); return func() {} })
			o := p99(clients, requests, reserve)
			settled(t, l)
			ratios, ours, theirs = append(ratios, o/b), append(ours, o), append(theirs, b)
		}
		for _, all := range [][]float64{ratios, ours, theirs} {
			slices.Sort(all)
		}
		t.Logf("%d clients: p99 %.0f us, bare %.0f us, ratio %.2f (%.2f to %.2f)", clients, ours[rounds/2],
			theirs[rounds/2], ratios[rounds/2], ratios[rounds/4], ratios[rounds*3/4])
		if ratios[rounds/4] > targetExact {
			t.Errorf("a ratio of %.2f, at most %.2f", ratios[rounds/2], targetExact)
		}
	}
	t.Logf("%d round trips for %d requests, settlements included", l.Stats().RoundTrips, 2*rounds*requests)
}

// p99 returns the 99th percentile of how long f takes, in us. What f returns is not measured.
func p99(clients, n int, f func() func()) float64 {
	var all sync.WaitGroup
	took := make([]time.Duration, clients*(n/clients))
	for c := range clients {
		all.Go(func() {
			for i := range n / clients {
				began := time.Now()
				after := f()
				took[c*(n/clients)+i] = time.Since(began)
				after()
				time.Sleep(time.Millisecond) // of a router that is not at its end
			}
		})
	}
	all.Wait()
	slices.Sort(took)
	return float64(took[len(took)*99/100].Nanoseconds()) / 1e3
}
