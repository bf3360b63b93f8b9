package patience

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

func TestSingleNodeWaitsForTheHardBound(t *testing.T) {
	s := newSim(t, 1)
	s.warm(20, true)
	s.nodes[0].hung = true
	r := s.send(0, true, 500, 64, 20)
	if got := r.a.Limit(s.now); got != 300*time.Second {
		t.Errorf("limit %v", got)
	}
	s.run(10 * time.Second)
	if r.verdict != 0 || len(s.stalls) != 0 {
		t.Errorf("verdict %d, stalls %v", r.verdict, s.stalls)
	}
}

func TestRefusalIsAskedAgainLater(t *testing.T) {
	s := newSim(t, 4)
	s.warm(20, true)
	s.nodes[0].hung = true
	r := s.send(0, true, 500, 64, 20)
	r.refuse = true
	s.spreadOver(3, true, 500, 64, 20)
	s.run(3 * time.Second)
	if r.verdict != 0 || !r.open {
		t.Fatal("a refused attempt was ended")
	}
	r.refuse = false
	s.run(3 * time.Second)
	if r.verdict == 0 {
		t.Fatal("not asked again")
	}
}

func TestProgressOnAnotherModelIsProgress(t *testing.T) {
	s := newSim(t, 4)
	s.warm(10, false)
	other := NewModel(Options{})
	twin := other.Join(s.nodes[0].n.pulse, s.now)
	s.nodes[0].hung = true
	reqs := []*simRequest{s.send(0, false, 500, 0, 20), s.send(0, false, 500, 0, 20), s.send(0, false, 500, 0, 20)}
	for range 40 {
		var a Attempt
		twin.Begin(&a, s.now, Work{Stream: true})
		s.spreadTo(1, 4)
		s.run(100 * time.Millisecond)
		a.FirstByte(s.now)
		a.Done(s.now, 1, true)
	}
	if n := s.givenUp(reqs); n != 0 || len(s.stalls) != 0 {
		t.Fatalf("%d given up, stalls %+v", n, s.stalls)
	}
}

func TestLeaveForgetsTheNode(t *testing.T) {
	s := newSim(t, 3)
	s.warm(10, true)
	r := s.send(2, true, 500, 64, 20)
	s.m.Leave(s.nodes[2].n)
	s.m.Leave(s.nodes[2].n)
	if s.m.open != 0 || len(s.m.nodes) != 2 || len(s.m.scratch) != 2 {
		t.Fatalf("open %d, nodes %d", s.m.open, len(s.m.nodes))
	}
	for _, a := range s.m.answers.at {
		if a.node == s.nodes[2].n {
			t.Fatal("its answers are kept")
		}
	}
	s.run(2 * time.Second)
	if r.open || r.verdict != 0 || s.m.open != 0 {
		t.Fatalf("open %v verdict %d, model open %d", r.open, r.verdict, s.m.open)
	}
	var late Attempt
	s.nodes[2].n.Begin(&late, s.now, Work{Stream: true, Owner: r})
	s.run(time.Second)
	late.Done(s.now, 0, false)
	late.Done(s.now, 0, false)
	if s.m.open != 0 {
		t.Fatalf("model open %d", s.m.open)
	}
}

func TestAttemptsInParallel(t *testing.T) {
	m := NewModel(Options{})
	now := time.Now()
	nodes := []*Node{m.Join(nil, now), m.Join(nil, now)}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			var a Attempt
			for i := range 500 {
				at := now.Add(time.Duration(i) * time.Millisecond)
				nodes[(w+i)%2].Begin(&a, at, Work{Stream: i%3 > 0, UncachedTokens: int64(i)})
				a.Progress(at)
				a.Limit(at)
				if i%4 > 0 {
					a.FirstByte(at.Add(time.Millisecond))
				}
				a.Done(at.Add(2*time.Millisecond), 10, i%5 > 0)
				if i%16 == 0 {
					m.Check(at, nil)
				}
			}
		})
	}
	wg.Wait()
	if m.open != 0 || nodes[0].queued != 0 || nodes[1].queued != 0 || nodes[0].streams.head != nil ||
		nodes[1].calls.head != nil {
		t.Fatalf("open %d, queued %d and %d", m.open, nodes[0].queued, nodes[1].queued)
	}
}

// TestQueuedIsWhatWaits compares Node.queued with a plain sum, for random attempts. An attempt must
// subtract its share exactly once, however it ends.
func TestQueuedIsWhatWaits(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	type open struct {
		a      *Attempt
		tokens int64
	}
	now, model := epoch.Add(time.Hour), NewModel(Options{})
	node := model.Join(NewPulse(epoch), now)
	var flights []open
	for range 3000 {
		i := 0
		if len(flights) > 0 {
			i = rng.IntN(len(flights))
		}
		switch p := rng.IntN(4); {
		case p == 0 || len(flights) == 0:
			f := open{new(Attempt), rng.Int64N(5000)}
			node.Begin(f.a, now, Work{Stream: true, UncachedTokens: f.tokens, CachedTokens: 7})
			flights = append(flights, f)
		case p == 1:
			flights[i].a.FirstByte(now)
			flights[i].tokens = 0
		case p == 2:
			flights[i].a.Done(now, 1, rng.IntN(2) == 0)
			flights = append(flights[:i], flights[i+1:]...)
		default:
			model.Check(now, nil)
		}
		want := int64(0)
		for _, f := range flights {
			want += f.tokens
		}
		if node.queued != want {
			t.Fatalf("%d tokens queued, want %d", node.queued, want)
		}
	}
}

// TestACallCountsUntilItsPromptShouldBeComputed checks that the owner is told once, and not after
// the end of the call.
func TestACallCountsUntilItsPromptShouldBeComputed(t *testing.T) {
	s := newSim(t, 2)
	s.warm(20, true)
	n := s.nodes[0]
	n.hung = true
	call, stream := s.send(0, false, 500, 0, 20), s.send(0, true, 300, 0, 20)
	if got := n.n.queued; got != 800 || call.computed != 0 {
		t.Fatalf("%d tokens queued, told %d times", got, call.computed)
	}
	stream.refuse, call.refuse = true, true
	s.run(2 * time.Second)
	if got := n.n.queued; got != 300 || call.computed != 1 || stream.computed != 0 {
		t.Errorf("%d tokens queued, the call was told %d times, the stream %d", got, call.computed, stream.computed)
	}
	call.a.Done(s.now, 0, false)
	foretold := s.send(0, false, 500, 0, 20)
	foretold.a.work.Expected, foretold.refuse = 5*time.Second, true
	if s.run(4 * time.Second); foretold.computed != 0 {
		t.Error("a call was told before its expected time")
	}
	if s.run(2 * time.Second); foretold.computed != 1 {
		t.Errorf("a call was told %d times once its expected time had passed", foretold.computed)
	}
	short := s.send(0, false, 500, 0, 0)
	short.a.Done(s.now, 0, true)
	s.run(2 * time.Second)
	if short.computed != 0 {
		t.Error("an attempt that has ended was told")
	}
}

func TestNothingIsAllocated(t *testing.T) {
	s := newSim(t, 8)
	s.warm(20, true)
	var a Attempt
	out := make([]Stall, 0, 8)
	if n := testing.AllocsPerRun(100, func() {
		s.nodes[0].n.Begin(&a, s.now, Work{Stream: true, UncachedTokens: 100})
		a.Progress(s.now)
		out = s.m.Check(s.now, out[:0])
		a.FirstByte(s.now)
		a.Done(s.now, 10, true)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAttempt(b *testing.B) {
	m, now := NewModel(Options{}), time.Now()
	n := m.Join(nil, now)
	m.Join(nil, now)
	var a Attempt
	for b.Loop() {
		n.Begin(&a, now, Work{Stream: true, UncachedTokens: 100})
		a.FirstByte(now)
		a.Done(now, 10, true)
	}
}

func BenchmarkCheck1000Waiting(b *testing.B) {
	m, now := NewModel(Options{}), time.Now()
	attempts := make([]Attempt, 1000)
	var nodes []*Node
	for range 16 {
		nodes = append(nodes, m.Join(nil, now))
	}
	for i := range attempts {
		nodes[i%16].Begin(&attempts[i], now, Work{Stream: true, UncachedTokens: 100})
	}
	for b.Loop() {
		m.Check(now.Add(time.Second), nil)
	}
}

// Limit returns how long the attempt may wait for its first byte. Limit returns 0 for an attempt
// that is not a waiting stream. The peers' present slowness changes the limit.
func (a *Attempt) Limit(now time.Time) time.Duration {
	if a.node == nil {
		return 0
	}
	m := a.node.model
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.state != waiting || !a.work.Stream || a.node.gone {
		return 0
	}
	m.survey(now.Sub(epoch))
	return m.limit(a, m.limitsOf(a.node))
}
