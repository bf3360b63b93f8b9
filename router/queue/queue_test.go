package queue

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// node is a place with slots, where requests run until done.
type node struct {
	free int
	ran  []*asked // in the order of their dispatch
}

// asked is a request of a test.
type asked struct {
	Ticket
	at      *node
	tokens  float64
	name    string
	outcome Outcome // in place of a try; NoRoom: try
}

func (a *asked) Tokens() float64 { return a.tokens }

func (a *asked) Try(time.Time) Outcome {
	if a.outcome != NoRoom {
		return a.outcome
	}
	if a.at.free == 0 {
		return NoRoom
	}
	a.at.free--
	a.at.ran = append(a.at.ran, a)
	return Placed
}

// join lets a request wait.
func join(t *testing.T, l *Line, at *node, name string, c Claim, tokens float64) *asked {
	t.Helper()
	a := &asked{at: at, tokens: tokens, name: name}
	c.Waiter = a
	if c.Bytes == 0 {
		c.Bytes = 1
	}
	if err := l.Join(&a.Ticket, c); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return a
}

// names returns the names of the requests in the order of their dispatch.
func (n *node) names() (all []string) {
	for _, a := range n.ran {
		all = append(all, a.name)
	}
	return all
}

func (q *Queue) wait() int {
	depth, _ := q.Depth()
	n := 0
	for _, of := range depth {
		n += of
	}
	return n
}

// empty checks that nothing is left of all requests.
func (q *Queue) empty(t *testing.T) {
	t.Helper()
	if depth, bytes := q.Depth(); q.wait() != 0 || bytes != 0 || q.waiting.Load() != 0 {
		t.Errorf("%v requests with %d bytes wait in an empty queue", depth, bytes)
	}
	if len(q.holders)+len(q.shares)+len(q.busy) != 0 {
		t.Errorf("%d holders, %d shares and %d lines are left", len(q.holders), len(q.shares), len(q.busy))
	}
	for name, l := range q.lines {
		if l.open != 0 || l.waiting != 0 || len(l.lanes) != 0 {
			t.Errorf("line %s: %d open, %d wait, %d lanes", name, l.open, l.waiting, len(l.lanes))
		}
		if !q.Drop(name) {
			t.Errorf("line %s cannot be dropped", name)
		}
	}
}

var plenty = Options{MaxRequests: 1 << 20, MaxBytes: 1 << 40}

// TestOrder checks the order of waiting requests, one rule after another.
func TestOrder(t *testing.T) {
	q, at, now := New(plenty), &node{}, time.Now()
	l := q.Line("m")
	in := func(seconds int) time.Time { return now.Add(time.Duration(seconds) * time.Second) }
	for _, c := range []struct {
		name string
		Claim
	}{
		{"a1", Claim{Tenant: "a"}}, {"a2", Claim{Tenant: "a"}},
		{"a late", Claim{Tenant: "a", Deadline: in(9)}}, {"a soon", Claim{Tenant: "a", Deadline: in(5)}},
		{"b1", Claim{Tenant: "b"}}, {"b2", Claim{Tenant: "b", Band: 1}}, {"b3", Claim{Tenant: "b"}},
		{"c urgent", Claim{Tenant: "c", Band: 9}},
	} {
		join(t, l, at, c.name, c.Claim, 10)
	}
	q.serve()
	if len(at.ran) != 0 {
		t.Fatalf("%v ran without a slot", at.names())
	}
	for range 10 {
		at.free = 1
		q.serve()
	}
	// After its two urgent requests each of b and c has 10 tokens, and a has none.
	want := []string{"c urgent", "b2", "a soon", "b1", "a late", "b3", "a1", "a2"}
	if got := at.names(); !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
	for _, a := range at.ran {
		a.Settle(10)
	}
	q.empty(t)
}

// TestRefused checks that a request that must not wait makes way for the next one.
func TestRefused(t *testing.T) {
	q, at := New(plenty), &node{free: 1}
	l := q.Line("m")
	first := join(t, l, at, "1", Claim{}, 1)
	first.outcome = Refused
	join(t, l, at, "2", Claim{}, 1)
	q.serve()
	<-first.Done()
	if got := at.names(); !slices.Equal(got, []string{"2"}) || first.Leave() || first.Ousted() {
		t.Errorf("%v ran", got)
	}
	if first.Settle(5); at.ran[0].of.tokens != 1 {
		t.Error("a refused request is charged")
	}
}

// fleet serves requests of tenants that offer more than it can do. Each slot takes as long for a
// request as it has tokens.
type fleet struct {
	q     *Queue
	l     *Line
	at    *node
	ends  []ending
	now   float64
	given map[string]float64 // tokens by tenant
}

type ending struct {
	at float64
	of *asked
}

func newFleet(slots int, weights map[string]float64) *fleet {
	o := plenty
	o.Weights = weights
	q := New(o)
	return &fleet{q: q, l: q.Line("m"), at: &node{free: slots}, given: map[string]float64{}}
}

// step lets time pass until the next request ends.
func (f *fleet) step(tenantOf func(*asked) string, cost func(*asked) float64) {
	f.q.serve()
	for _, a := range f.at.ran {
		f.ends = append(f.ends, ending{f.now + cost(a), a})
	}
	f.at.ran = f.at.ran[:0]
	if len(f.ends) == 0 {
		return
	}
	next := 0
	for i := range f.ends {
		if f.ends[i].at < f.ends[next].at {
			next = i
		}
	}
	e := f.ends[next]
	f.ends = slices.Delete(f.ends, next, next+1)
	f.now = e.at
	f.given[tenantOf(e.of)] += cost(e.of)
	e.of.Settle(cost(e.of))
	f.at.free++
}

// TestShares checks that tenants get tokens by their weights while one of them offers 50 times as
// much. Their requests differ in size, and only the prompt is known in advance.
func TestShares(t *testing.T) {
	for _, c := range []struct {
		slots        int
		big, small   float64 // weights
		bigs, smalls float64 // mean tokens of an answer
	}{
		{1, 1, 1, 200, 200}, {16, 1, 1, 200, 200}, {16, 1, 3, 200, 200}, {16, 3, 1, 200, 200},
		{64, 1, 3, 900, 50}, {64, 1, 1, 50, 900},
	} {
		f := newFleet(c.slots, map[string]float64{"big": c.big, "small": c.small})
		random := rand.New(rand.NewPCG(1, 2))
		sizes := map[*asked]float64{}
		offer := func(tenant string, mean float64) {
			prompt := 10 + 40*random.Float64()
			a := join(t, f.l, f.at, tenant, Claim{Tenant: tenant}, prompt)
			sizes[a] = prompt + random.ExpFloat64()*mean
		}
		of := func(a *asked) string { return a.name }
		cost := func(a *asked) float64 { return sizes[a] }
		for range 2000 {
			offer("big", c.bigs)
		}
		for range 40 {
			offer("small", c.smalls)
		}
		for range 20000 { // each end is followed by new requests, 50 of big for each of small
			f.step(of, cost)
			if depth := f.q.wait(); depth < 2040 {
				offer("big", c.bigs)
			}
			for f.l.tenants["small"] == nil || f.l.tenants["small"].waiting < 40 {
				offer("small", c.smalls)
			}
		}
		got, want := f.given["small"]/(f.given["small"]+f.given["big"]), c.small/(c.small+c.big)
		t.Logf("%+v: small got %.4f of the tokens, by weight %.4f", c, got, want)
		if math.Abs(got/want-1) > 0.05 {
			t.Error("more than 5 % away")
		}
	}
}

// TestSingle checks that a single request waits for one dispatch at most, however many another
// tenant has.
func TestSingle(t *testing.T) {
	f := newFleet(1, nil)
	for i := range 10000 {
		join(t, f.l, f.at, fmt.Sprint(i), Claim{Tenant: "many"}, 100)
	}
	of := func(a *asked) string { return a.claim.Tenant }
	cost := func(a *asked) float64 { return 500 }
	for round := range 50 {
		f.step(of, cost)
		f.q.serve() // the slot is taken again
		join(t, f.l, f.at, "single", Claim{Tenant: "one"}, 100)
		f.step(of, cost) // the running request ends
		f.q.serve()
		if got := f.at.names(); !slices.Equal(got, []string{"single"}) {
			t.Fatalf("round %d: %v ran, not the single request", round, got)
		}
		f.step(of, cost)
	}
}

// TestNothingIsSavedUp checks that a tenant that was away gets no more than its share.
func TestNothingIsSavedUp(t *testing.T) {
	f := newFleet(1, nil)
	of := func(a *asked) string { return a.claim.Tenant }
	cost := func(a *asked) float64 { return 10 }
	var passed Ticket
	for range 1000 { // without competition
		f.l.Pass(&passed, "a", 10)
		passed.Settle(10)
	}
	for range 100 {
		join(t, f.l, f.at, "a", Claim{Tenant: "a"}, 10)
	}
	for range 50 {
		f.step(of, cost)
	}
	for range 100 {
		join(t, f.l, f.at, "b", Claim{Tenant: "b"}, 10)
	}
	clear(f.given)
	for range 40 {
		f.step(of, cost)
	}
	if a, b := f.given["a"], f.given["b"]; math.Abs(a-b) > 20 {
		t.Errorf("a got %v, b got %v", a, b)
	}
}

// TestTenantsAreBounded checks that tenants without requests are forgotten.
func TestTenantsAreBounded(t *testing.T) {
	q := New(plenty)
	l := q.Line("m")
	for i := range 5 * idleMost {
		var p Ticket
		l.Pass(&p, fmt.Sprint("t", i), 10)
		p.Settle(float64(10 + 5*i)) // each has a debt
	}
	if n := len(l.tenants); n > 3*idleMost || q.Forgotten() == 0 {
		t.Errorf("%d tenants are remembered, %d were forgotten", n, q.Forgotten())
	}
}

func TestExpect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, at := New(Options{MaxRequests: 1000, MaxBytes: 1000, Weights: map[string]float64{"b": 2}}), &node{}
		l := q.Line("m")
		expect := func(c Claim, want time.Duration) {
			t.Helper()
			if got, known := l.Expect(&c, time.Now()); !known || got != want {
				t.Errorf("%+v: %v (%v), want %v", c, got, known, want)
			}
		}
		if _, known := l.Expect(&Claim{}, time.Now()); known {
			t.Error("a pace is known of an idle line")
		}
		now := time.Now()
		for i := range 30 {
			join(t, l, at, "a", Claim{Tenant: "a", Deadline: now.Add(time.Duration(100+i) * time.Hour)}, 1)
		}
		for range 20 {
			time.Sleep(time.Second)
			at.free = 1
			q.serve()
		}
		expect(Claim{Tenant: "a"}, 11*time.Second)
		expect(Claim{Tenant: "b"}, time.Second)
		expect(Claim{Tenant: "a", Band: 1}, time.Second)
		expect(Claim{Tenant: "a", Deadline: now.Add(123*time.Hour + time.Minute)}, 5*time.Second)
		join(t, l, at, "b", Claim{Tenant: "b"}, 1)
		join(t, l, at, "b", Claim{Tenant: "b"}, 1)
		expect(Claim{Tenant: "a"}, 13*time.Second)
		expect(Claim{Tenant: "b"}, 4*time.Second) // 2 of its own, 1 of a
		expect(Claim{Tenant: "c", Band: 1}, time.Second)
		time.Sleep(400 * time.Millisecond)
		expect(Claim{Tenant: "a"}, 12600*time.Millisecond)
	})
}

// TestRun checks that Run serves after a Wake, after a Leave, and after a change that wakes nobody.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, at := New(plenty), &slots{}
		l := q.Line("m")
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { q.Run(ctx) })
		ask := func() *caller {
			c := &caller{at: at}
			if err := l.Join(&c.Ticket, Claim{Waiter: c, Bytes: 1}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return c
		}
		first, second, third := ask(), ask(), ask()
		began := time.Now()
		at.add(1)
		q.Wake()
		<-first.Done()
		if took := time.Since(began); took != 0 {
			t.Errorf("served %v after the wake", took)
		}
		if first.Settle(1); second.Leave() {
			t.Error("the second has got a node")
		}
		synctest.Wait()
		began = time.Now()
		at.add(1)
		<-third.Done()
		if took := time.Since(began); took == 0 || took > lookEvery {
			t.Errorf("served %v after a change", took)
		}
		if !third.Leave() {
			t.Error("the third has got no node")
		}
		third.Settle(0)
		stop()
		running.Wait()
		q.empty(t)
	})
}

// slots are those of a node that several goroutines use.
type slots struct {
	mu   sync.Mutex
	free int
}

func (s *slots) add(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free += n
}

func (s *slots) take() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.free == 0 {
		return false
	}
	s.free--
	return true
}

// caller is a request with a goroutine.
type caller struct {
	Ticket
	at    *slots
	delay time.Duration // of a try
}

func (c *caller) Tokens() float64 { return 7 }

func (c *caller) Try(time.Time) Outcome {
	time.Sleep(c.delay)
	if c.at.take() {
		return Placed
	}
	return NoRoom
}

// TestLeaveDuringTry checks that a request that leaves while it is tried knows whether it has a
// node.
func TestLeaveDuringTry(t *testing.T) {
	for free, want := range map[int]bool{0: false, 1: true} {
		synctest.Test(t, func(t *testing.T) {
			q, at := New(plenty), &slots{free: free}
			ctx, stop := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { q.Run(ctx) })
			c := &caller{at: at, delay: time.Second}
			if err := q.Line("m").Join(&c.Ticket, Claim{Waiter: c, Bytes: 1}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got := c.Leave(); got != want {
				t.Errorf("with %d slots: placed is %v", free, got)
			}
			c.Settle(0)
			stop()
			running.Wait()
			q.empty(t)
		})
	}
}

// TestManyAtOnce lets requests come, leave and end at once, and checks that nothing is left.
func TestManyAtOnce(t *testing.T) {
	const callers, rounds, capacity = 64, 60, 4
	q, at := New(Options{MaxRequests: 40, MaxBytes: 1 << 20}), &slots{free: capacity}
	ctx, stop := context.WithCancel(t.Context())
	var running, asking sync.WaitGroup
	running.Go(func() { q.Run(ctx) })
	for i := range callers {
		asking.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for range rounds {
				l := q.Line(fmt.Sprint("m", random.IntN(3)))
				c := &caller{at: at}
				if l.Free() && at.take() {
					l.Pass(&c.Ticket, fmt.Sprint(i%7), 7)
				} else {
					err := l.Join(&c.Ticket, Claim{
						Waiter: c, Tenant: fmt.Sprint(i % 7), Band: random.IntN(Bands), Lane: uint64(random.IntN(4)),
						Bytes: 3, Deadline: time.Now().Add(time.Duration(random.IntN(100)) * time.Millisecond),
					})
					if err != nil {
						continue
					}
					if random.IntN(3) == 0 {
						time.Sleep(time.Duration(random.IntN(300)) * time.Microsecond)
						if !c.Leave() {
							continue
						}
					} else if <-c.Done(); c.Ousted() {
						continue
					}
				}
				time.Sleep(time.Duration(random.IntN(200)) * time.Microsecond)
				at.add(1)
				c.Settle(float64(random.IntN(50)))
				q.Wake()
			}
		})
	}
	asking.Wait()
	stop()
	running.Wait()
	if at.free != capacity {
		t.Errorf("%d of %d slots are free", at.free, capacity)
	}
	q.empty(t)
}

func TestNilQueue(t *testing.T) {
	var q *Queue
	q.Wake()
	if depth, bytes := q.Depth(); depth != [Bands]int{} || bytes != 0 {
		t.Errorf("%v requests wait in no queue", depth)
	}
}
