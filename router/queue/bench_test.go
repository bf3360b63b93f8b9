package queue

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkTurn is a request that joins 10,000 others of 100 tenants, a dispatch and its
// settlement.
func BenchmarkTurn(b *testing.B) {
	q, at := New(plenty), &node{}
	l := q.Line("m")
	tenants := make([]string, 100)
	for i := range tenants {
		tenants[i] = fmt.Sprint("tenant-", i)
	}
	all := make([]asked, 10001)
	free := make([]*asked, 0, len(all))
	for i := range all {
		all[i].at, all[i].tokens = at, 100
		free = append(free, &all[i])
	}
	now, n := time.Now(), 0
	add := func() {
		a := free[len(free)-1]
		free = free[:len(free)-1]
		n++
		soon := time.Duration(n*7919%100000) * time.Millisecond
		err := l.Join(&a.Ticket, Claim{Waiter: a, Tenant: tenants[n%len(tenants)], Deadline: now.Add(soon)})
		if err != nil {
			b.Fatal(err)
		}
	}
	for range 10000 {
		add()
	}
	b.ReportAllocs()
	for b.Loop() {
		add()
		at.free, at.ran = 1, at.ran[:0]
		q.serve()
		done := at.ran[0]
		done.Settle(250)
		free = append(free, done)
	}
}

// BenchmarkPass is a request that need not wait.
func BenchmarkPass(b *testing.B) {
	l := New(plenty).Line("m")
	var t Ticket
	b.ReportAllocs()
	for b.Loop() {
		if l.Free() {
			l.Pass(&t, "tenant", 100)
			t.Settle(250)
		}
	}
}

// BenchmarkExpect is what a refused request asks, with one waiting request of each of 4,096 tenants
// in the line.
func BenchmarkExpect(b *testing.B) {
	for _, bands := range []int{1, Bands} {
		b.Run(fmt.Sprintf("bands=%d", bands), func(b *testing.B) {
			l := New(plenty).Line("m")
			for i := range 4096 {
				a := &asked{at: &node{}, tokens: 100}
				c := Claim{Waiter: a, Tenant: fmt.Sprint("tenant-", i), Band: i % bands}
				if err := l.Join(&a.Ticket, c); err != nil {
					b.Fatal(err)
				}
			}
			l.every = time.Millisecond
			now := time.Now()
			for what, c := range map[string]Claim{"new": {Tenant: "new"}, "known": {Tenant: "tenant-0"}} {
				b.Run(what, func(b *testing.B) {
					b.ReportAllocs()
					for b.Loop() {
						l.Expect(&c, now)
					}
				})
			}
		})
	}
}
