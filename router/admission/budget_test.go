package admission

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"
)

type clock struct{ at atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(1_700_000_000, c.at.Load()) }
func (c *clock) advance(d time.Duration) { c.at.Add(int64(d)) }

// spend spends at most limit retries, until the budget refuses one.
func spend(b *Budget, limit int) (n int) {
	for n < limit && b.Allow() {
		n++
	}
	return n
}

// Left returns how many retries the budget holds now.
func (b *Budget) Left() int64 {
	s := b.second()
	return max(b.floor, b.requests.sum(s)*b.percent/100) - b.retries.sum(s)
}

func TestBudgetFloor(t *testing.T) {
	var c clock
	b := NewBudget(20, 64, c.now)
	if n := spend(b, 1000); n != 64 {
		t.Fatalf("%d retries of an idle router, want 64", n)
	}
	c.advance(9 * time.Second)
	if n := spend(b, 1000); n != 0 {
		t.Errorf("%d more within 10 s", n)
	}
	c.advance(time.Second)
	if n := spend(b, 1000); n != 64 {
		t.Errorf("%d after 10 s, want 64", n)
	}
	c.advance(time.Hour)
	if n := spend(b, 1000); n != 64 {
		t.Errorf("%d after an hour, want 64", n)
	}
}

func TestBudgetPercent(t *testing.T) {
	var c clock
	b := NewBudget(20, 64, c.now)
	for range 10 {
		for range 100 {
			b.Request()
		}
		c.advance(time.Second)
	}
	c.advance(-time.Second)
	if left := b.Left(); left != 200 {
		t.Errorf("left %d", left)
	}
	if n := spend(b, 1000); n != 200 {
		t.Fatalf("%d retries for 1000 requests, want 200", n)
	}
	c.advance(2 * time.Second) // 200 requests leave the window, the retries stay
	if n := spend(b, 1000); n != 0 || b.Left() != -40 {
		t.Errorf("%d more, left %d", n, b.Left())
	}
}

func TestBudgetOfNothing(t *testing.T) {
	b := NewBudget(0, 0, nil)
	b.Request()
	if b.Allow() {
		t.Error("allowed")
	}
}

// TestBudgetAgainstModel compares the budget with a plain list of the last 10 seconds' events.
func TestBudgetAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c clock
		percent, floor := rapid.IntRange(0, 100).Draw(t, "percent"), rapid.IntRange(0, 5).Draw(t, "floor")
		b := NewBudget(percent, floor, c.now)
		var requests, retries []int64 // seconds
		recent := func(times []int64) (n int) {
			for _, s := range times {
				if s > c.at.Load()/1e9-budgetWindowSeconds {
					n++
				}
			}
			return n
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				c.advance(time.Duration(rapid.IntRange(1, 25_000).Draw(t, "ms")) * time.Millisecond)
			case 1, 2:
				b.Request()
				requests = append(requests, c.at.Load()/1e9)
			case 3:
				want := recent(retries) < max(floor, recent(requests)*percent/100)
				if got := b.Allow(); got != want {
					t.Fatalf("allowed %v, want %v", got, want)
				}
				if want {
					retries = append(retries, c.at.Load()/1e9)
				}
			}
		}
	})
}

func TestBudgetHoldsUnderConcurrency(t *testing.T) {
	var c clock
	b := NewBudget(20, 64, c.now)
	var allowed atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				b.Request()
				if b.Allow() {
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := allowed.Load(); n > 800 || n < 64 {
		t.Errorf("%d retries for 4000 requests", n)
	}
}

func BenchmarkBudgetRequest(b *testing.B) {
	budget := NewBudget(20, 64, nil)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			budget.Request()
		}
	})
}
