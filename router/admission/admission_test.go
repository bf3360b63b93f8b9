package admission

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

func admit(t *testing.T, h *Handle, want error) Permit {
	t.Helper()
	p, err := h.Admit()
	if err != want {
		t.Fatalf("got %v, want %v", err, want)
	}
	return p
}

func TestModelCapIsPerModelAndRole(t *testing.T) {
	g := New(Options{MaxQueue: 2})
	a, b := g.Handle("a", "both"), g.Handle("a", "decode")
	first := admit(t, a, nil)
	admit(t, a, nil)
	admit(t, a, ErrModelFull)
	admit(t, b, nil)
	first.Release()
	admit(t, a, nil)
	admit(t, a, ErrModelFull)
	if g.InFlight() != 3 || a.InFlight() != 2 || b.InFlight() != 1 {
		t.Errorf("in flight %d, %d, %d", g.InFlight(), a.InFlight(), b.InFlight())
	}
	if g.Handle("a", "both") != a {
		t.Error("the handle changed")
	}
}

func TestGlobalCap(t *testing.T) {
	g := New(Options{Global: 2})
	a, b := g.Handle("a", ""), g.Handle("b", "")
	p := admit(t, a, nil)
	admit(t, b, nil)
	refused := admit(t, a, ErrGlobalFull)
	refused.Release()
	if g.InFlight() != 2 || a.InFlight() != 1 {
		t.Errorf("a refused request is counted: %d, %d", g.InFlight(), a.InFlight())
	}
	p.Release()
	admit(t, b, nil)
}

func TestReleaseTwiceCountsOnce(t *testing.T) {
	g := New(Options{})
	h := g.Handle("a", "")
	p := admit(t, h, nil)
	admit(t, h, nil)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(p.Release)
	}
	wg.Wait()
	if g.InFlight() != 1 || h.InFlight() != 1 {
		t.Errorf("in flight %d and %d, want 1", g.InFlight(), h.InFlight())
	}
	(&Permit{}).Release()
}

func TestCapsChangeLive(t *testing.T) {
	g := New(Options{MaxQueue: 1})
	h := g.Handle("a", "")
	admit(t, h, nil)
	admit(t, h, ErrModelFull)
	g.SetMaxQueue(2)
	admit(t, h, nil)
	admit(t, h, ErrModelFull)
	h.SetMax(3)
	admit(t, h, nil)
	admit(t, h, ErrModelFull)
	h.SetMax(0)
	g.SetMaxQueue(0)
	last := admit(t, h, nil)
	g.global.limit.Store(4)
	admit(t, h, ErrGlobalFull)
	last.Release()
	g.SetMaxQueue(1) // the admitted requests stay
	if h.InFlight() != 3 {
		t.Errorf("in flight %d", h.InFlight())
	}
}

func TestHandlesAreBounded(t *testing.T) {
	g := New(Options{MaxQueue: 1, MaxHandles: 2})
	a, b := g.Handle("a", ""), g.Handle("b", "")
	c, d := g.Handle("c", ""), g.Handle("d", "")
	if a == b || c != d || c == a || g.Handle("a", "") != a {
		t.Fatal("want two handles and one shared by the rest")
	}
	admit(t, c, nil)
	admit(t, d, ErrModelFull)
	if len(g.handles) != 2 {
		t.Errorf("%d handles kept", len(g.handles))
	}
}

// The gate refuses only when a cap is reached and never admits more than the cap.
func TestCapsHoldUnderConcurrency(t *testing.T) {
	g := New(Options{MaxQueue: 5, Global: 8})
	var inModel [2]atomic.Int64
	var wg sync.WaitGroup
	for w := range 8 {
		h := g.Handle(fmt.Sprint(w%2), "")
		wg.Go(func() {
			for range 2000 {
				p, err := h.Admit()
				if err != nil {
					continue
				}
				if n := inModel[w%2].Add(1); n > 5 {
					t.Errorf("%d in flight, cap 5", n)
				}
				inModel[w%2].Add(-1)
				p.Release()
			}
		})
	}
	wg.Wait()
	if g.InFlight() != 0 {
		t.Errorf("%d left", g.InFlight())
	}
}

func TestAdmitAllocatesNothing(t *testing.T) {
	h := New(Options{MaxQueue: 5, Global: 5}).Handle("a", "")
	b := NewBudget(20, 64, nil)
	if n := testing.AllocsPerRun(1000, func() {
		p, _ := h.Admit()
		b.Request()
		b.Allow()
		p.Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAdmitRelease(b *testing.B) {
	h := New(Options{MaxQueue: 1 << 20, Global: 1 << 20}).Handle("a", "")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			p, _ := h.Admit()
			p.Release()
		}
	})
}

func TestAPermitMovesToAnotherRole(t *testing.T) {
	g := New(Options{MaxQueue: 1, Global: 2})
	both, decode := g.Handle("a", "both"), g.Handle("a", "decode")
	p, other := admit(t, both, nil), admit(t, decode, nil)
	if err := p.Move(decode); err != ErrModelFull || !p.On(both) || !both.Full() || !g.Full() {
		t.Fatalf("moved into a full pool: %v", err)
	}
	other.Release()
	if err := p.Move(decode); err != nil || !p.On(decode) || p.On(both) {
		t.Fatal(err)
	}
	if both.InFlight() != 0 || decode.InFlight() != 1 || g.InFlight() != 1 {
		t.Errorf("in flight %d, %d, %d", both.InFlight(), decode.InFlight(), g.InFlight())
	}
	p.Release()
	if p.Out() || decode.InFlight() != 0 || g.InFlight() != 0 {
		t.Errorf("after the release %d, %d", decode.InFlight(), g.InFlight())
	}
}

func TestAModelIsDroppedWhenNothingIsInFlight(t *testing.T) {
	g := New(Options{MaxQueue: 3})
	h := g.Handle("a", "both")
	g.Handle("b", "both")
	p := admit(t, h, nil)
	if g.Drop("a") || g.Handle("a", "both") != h {
		t.Fatal("a counter in use was dropped")
	}
	p.Release()
	if !g.Drop("a") || g.Handle("a", "both") == h {
		t.Fatal("not dropped")
	}
	seen := map[string]int64{}
	g.Each(func(model, role string, inFlight, limit int64) { seen[model+" "+role] = limit })
	if len(seen) != 2 || seen["a both"] != 3 || seen["b both"] != 3 {
		t.Errorf("%v", seen)
	}
}
