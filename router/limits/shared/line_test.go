package shared

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// requests returns requests that differ in the units of their first limit.
func requests(l *Limiter, limits []Limit, units ...int64) (all []*request) {
	for _, n := range units {
		x := &request{id: l.next(), limits: append([]Limit(nil), limits...), turn: make(chan []*request, 1)}
		x.limits[0].Units = n
		all = append(all, x)
	}
	return all
}

// TestLine checks which requests ask at once, which wait, and who asks for them.
func TestLine(t *testing.T) {
	l := &Limiter{id: "x"}
	k := subject(l, "acme", "key")
	limits := []Limit{k.of(tpm, 1000, 1)}
	join := func(x *request, asks int) *line {
		t.Helper()
		of, all := k.join(x)
		if len(all) != asks || asks > 0 && all[len(all)-1] != x {
			t.Fatalf("a request asks for %d, not %d", len(all), asks)
		}
		return of
	}
	all := requests(l, limits, make([]int64, maxUnderway+2*maxTogether)...)
	var of *line
	for _, x := range all[:maxUnderway] {
		of = join(x, 1)
	}
	join(requests(l, []Limit{k.of(tpm, 2000, 1)}, 1)[0], 1) // another limit
	join(requests(l, []Limit{k.of(rpm, 1000, 1)}, 1)[0], 1)
	rest := all[maxUnderway:]
	for _, x := range rest[:maxTogether-1] {
		join(x, 0)
	}
	join(rest[maxTogether-1], maxTogether)
	rest = rest[maxTogether:]
	for _, x := range rest[:3] {
		join(x, 0)
	}
	k.done(of)
	if asks := <-rest[0].turn; len(asks) != 3 || asks[0] != rest[0] {
		t.Errorf("the first that waits asks for %d", len(asks))
	}
	if k.leave(of, rest[1]) != nil {
		t.Error("a request asks for itself although another does")
	}
	join(rest[3], 0)
	join(rest[4], 0)
	if asks := k.leave(of, rest[4]); len(asks) != 2 {
		t.Errorf("a request that has waited asks for %d", len(asks))
	}
	for of.underway > 0 {
		k.done(of)
	}
	if len(k.lines) != 2 {
		t.Errorf("%d lines are left", len(k.lines))
	}
}

// TestExactOneCall: of requests in one call each gets all its limits or nothing, in their order,
// and has a mark of its own.
func TestExactOneCall(t *testing.T) {
	s := startServer(t)
	l, _ := limiter(t, Options{Addresses: []string{s.At}, Exact: true})
	k := subject(l, "acme", "key")
	limits := []Limit{k.of(budget, 1000, 0), k.of(flight, 3, 1)}
	all := requests(l, limits, 400, 700, 300, 301, 299, 1)
	early := &Reservation{l: l, id: all[4].id, n: 2}
	copy(early.limits[:], all[4].limits)
	l.settle(early, nil)
	settled(t, l)
	before := s.evalshas()
	l.askFor(all)
	if n := s.evalshas() - before; n != 1 {
		t.Errorf("%d scripts for %d requests", n, len(all))
	}
	for i, want := range [][]int64{{1, 701, 0, 3, 0}, {0, 0, 400, 100}, {1, 701, 0, 3, 0}, {0, 0, 700, 1}, {0, 0, 0, 0},
		{1, 701, 0, 3, 0}} {
		if x := all[i]; x.err != nil || !slices.Equal(x.reply, want) {
			t.Errorf("request %d: %v %v, not %v", i, x.reply, x.err, want)
		}
	}
	more := requests(l, limits, 1)
	l.askFor(more)
	if no := refusal(more[0].limits, more[0].reply, now()); no.Limit != 1 || no.Used != 3 {
		t.Errorf("%+v", no)
	}
	if held, _ := counted(t, s, k.Bucket(budget)); held != 701 {
		t.Errorf("%d tokens are held", held)
	}
	r := &Reservation{l: l, by: byRedis, id: all[0].id, n: 2}
	copy(r.limits[:], all[0].limits)
	k.flying.Add(1)
	r.Settle([]int64{30, 0})
	settled(t, l)
	if held, used := counted(t, s, k.Bucket(budget)); held != 301 || used != 30 {
		t.Errorf("%d tokens are held, %d used", held, used)
	}
}

// TestExactAway: requests that wait while Redis goes away end with the calls before them, and Redis
// never hears of them.
func TestExactAway(t *testing.T) {
	s := startServer(t)
	p := startProxy(t, s.At)
	o := Options{Addresses: []string{p.at}, Exact: true, OnFailure: Closed, Timeout: 300 * time.Millisecond}
	l, _ := limiter(t, o)
	k := subject(l, "acme", "key")
	limit := k.of(tpd, 1e6, 1)
	r, _ := reserve(t, l, Admitted, limit)
	r.Settle(nil)
	settled(t, l)
	p.loses.Store(true)
	var all sync.WaitGroup
	for range 10 * maxTogether {
		all.Go(func() { reserve(t, l, Unavailable, limit) })
	}
	all.Wait()
	if n := len(k.lines); n > 0 || !l.away.Load() {
		t.Errorf("%d lines are left; away: %v", n, l.away.Load())
	}
	x := requests(l, []Limit{limit}, 1)
	if l.askFor(x); x[0].id != "" || !errors.Is(x[0].err, errAway) {
		t.Errorf("%+v", x[0])
	}
	p.loses.Store(false)
	settled(t, l)
	if held, used := counted(t, s, k.Bucket(tpd)); held != 0 || used != 0 {
		t.Errorf("%d tokens are held, %d used", held, used)
	}
}

// TestPanicInLine: no request waits for ever for one that panics while it asks.
func TestPanicInLine(t *testing.T) {
	l := &Limiter{id: "x"} // asks without scripts
	k := subject(l, "acme", "key")
	all := requests(l, []Limit{k.of(tpm, 1000, 1)}, make([]int64, maxUnderway+maxTogether+3)...)
	var of *line
	for _, x := range all[:maxUnderway] {
		of, _ = k.join(x)
	}
	var rest sync.WaitGroup
	var panics atomic.Int64
	for _, x := range all[maxUnderway:] {
		rest.Go(func() {
			defer func() {
				if recover() != nil {
					panics.Add(1)
				}
			}()
			l.ask(x)
		})
	}
	rest.Wait()
	for _, x := range all[maxUnderway:] {
		if x.err != errAway {
			t.Errorf("%v after a panic", x.err)
		}
	}
	if of.underway != maxUnderway || panics.Load() == 0 {
		t.Errorf("%d calls are underway after %d panics", of.underway, panics.Load())
	}
}

// TestReplyShape: a reply that is not reserve.lua's is an error of all requests.
func TestReplyShape(t *testing.T) {
	s := startServer(t)
	for _, source := range []string{
		"return {1}", "return {}", "return {0}", "return {0, 0, 0, 0}", "return {1, 1, 0}", "return {1, 1, 0, 0, 0}",
	} {
		l, end := limiter(t, Options{Addresses: []string{s.At}, Exact: true})
		l.scripts.reserve = newScript(source)
		all := requests(l, []Limit{subject(l, "acme", "key").of(tpm, 1000, 1)}, 1, 1)
		l.askFor(all)
		for _, x := range all {
			if x.err != errShape || x.id == "" {
				t.Errorf("%s: %v, id %q", source, x.err, x.id)
			}
		}
		end()
	}
}
