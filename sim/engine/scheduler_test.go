package engine

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// stepper is a scheduler that the test steps, without time.
func stepper(cfg Config) *scheduler {
	return newScheduler(cfg.withDefaults(), newMeters(), nil)
}

// step runs one step and returns its simulated duration, or -1 when idle.
func (s *scheduler) step() time.Duration {
	s.receive()
	d := s.plan()
	if d >= 0 {
		s.now += d
		s.commit()
	}
	return d
}

func sequenceOf(s *scheduler, prompt, answer int, salt uint32) *sequence {
	tokens := make([]uint32, prompt)
	for i := range tokens {
		tokens[i] = uint32(i) + salt<<16
	}
	return newSequence(tokens, output{limit: answer, cut: answer * tokenBytes}, s.cfg.BlockTokens, "",
		make(chan struct{}, 1))
}

func TestStepTimes(t *testing.T) {
	s := stepper(Config{PrefillTokensPerSecond: 1000, DecodeStep: 10 * time.Millisecond,
		DecodePerSequence: time.Millisecond, MaxBatchTokens: 100})
	a, b := sequenceOf(s, 150, 3, 1), sequenceOf(s, 20, 2, 2)
	s.submit([]*sequence{a, b})
	for i, want := range []struct {
		d    time.Duration
		a, b int64 // produced tokens
	}{
		{100 * time.Millisecond, 0, 0}, // 100 tokens of a
		{70 * time.Millisecond, 1, 1},  // 50 tokens of a, 20 of b
		{12 * time.Millisecond, 2, 2},  // a and b decode
		{11 * time.Millisecond, 3, 2},  // a alone decodes
		{-1, 3, 2},
	} {
		if d := s.step(); d != want.d || a.produced.Load() != want.a || b.produced.Load() != want.b {
			t.Errorf("step %d took %v: %d and %d tokens, want %+v", i, d, a.produced.Load(), b.produced.Load(), want)
		}
	}
	if !a.over.Load() || !b.over.Load() || s.cache.used() != 0 {
		t.Error("sequences were not freed")
	}
}

// TestContextCosts: a prompt token costs more after others, and a decode step more for each block
// that it reads.
func TestContextCosts(t *testing.T) {
	s := stepper(Config{PrefillTokensPerSecond: 1000, PrefillDoublesAt: 100, MaxBatchTokens: 100,
		DecodeStep: 10 * time.Millisecond, DecodePerBlock: time.Millisecond})
	q := sequenceOf(s, 200, 3, 1)
	s.submit([]*sequence{q})
	for i, want := range []time.Duration{
		149500 * time.Microsecond,    // 100 tokens after 0 to 99
		249500 * time.Microsecond,    // 100 tokens after 100 to 199
		(10 + 13) * time.Millisecond, // 201 tokens in blocks of 16
		(10 + 13) * time.Millisecond,
		-1,
	} {
		if d := s.step(); d != want {
			t.Errorf("step %d took %v, want %v", i, d, want)
		}
	}
}

func TestBatchIsBounded(t *testing.T) {
	s := stepper(Config{MaxSeqs: 2})
	for i := range 5 {
		s.submit([]*sequence{sequenceOf(s, 10, 3, uint32(i))})
	}
	s.step()
	if len(s.running) != 2 || len(s.waiting) != 3 {
		t.Errorf("%d running, %d waiting", len(s.running), len(s.waiting))
	}
	for s.step() >= 0 {
	}
	if n := s.meters.maxRunning.Load(); n != 2 || s.meters.generated.Load() != 15 {
		t.Errorf("%d at once, %d tokens", n, s.meters.generated.Load())
	}
}

func TestPreemptionKeepsTheAnswerWhole(t *testing.T) {
	s := stepper(Config{CacheBlocks: 4, BlockTokens: 4, MaxModelTokens: 16})
	a, b := sequenceOf(s, 4, 10, 1), sequenceOf(s, 4, 10, 2)
	s.submit([]*sequence{a, b})
	for range 100 {
		if s.step() < 0 {
			break
		}
	}
	if s.meters.preemptions.Load() == 0 {
		t.Error("no preemption: the test is too small")
	}
	if a.produced.Load() != 10 || b.produced.Load() != 10 || s.cache.used() != 0 {
		t.Errorf("%d and %d tokens, %d blocks used", a.produced.Load(), b.produced.Load(), s.cache.used())
	}
}

// TestCacheInvariants runs random sequences. After every step the numbers of blocks must add up,
// and no block may outlive its parent.
func TestCacheInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := stepper(Config{CacheBlocks: 24, BlockTokens: 4, MaxModelTokens: 60, MaxSeqs: 6, MaxBatchTokens: 20})
		var all []*sequence
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "arrival") {
				q := sequenceOf(s, rapid.IntRange(1, 40).Draw(t, "prompt"), rapid.IntRange(1, 20).Draw(t, "answer"),
					uint32(rapid.IntRange(0, 3).Draw(t, "family")))
				all = append(all, q)
				s.submit([]*sequence{q})
			}
			if len(all) > 0 && rapid.IntRange(0, 9).Draw(t, "abort") == 0 {
				all[rapid.IntRange(0, len(all)-1).Draw(t, "victim")].aborted.Store(true)
			}
			s.step()
			checkCache(t, s)
		}
		for s.step() >= 0 {
		}
		if s.cache.used() != 0 {
			t.Fatalf("%d blocks leaked", s.cache.used())
		}
	})
}

func checkCache(t *rapid.T, s *scheduler) {
	c := s.cache
	pinned, free := 0, c.free.Len()
	for _, b := range c.blocks {
		if b.refs > 0 {
			pinned++
		}
	}
	held := map[*block]int{}
	loose := 0
	for _, q := range s.running {
		loose += q.loose
		for _, b := range q.held {
			held[b]++
		}
	}
	switch {
	case pinned != c.pinned || pinned+free != len(c.blocks) || loose != c.loose:
		t.Fatalf("pinned %d of %d, free %d, blocks %d, loose %d of %d", pinned, c.pinned, free, len(c.blocks), loose,
			c.loose)
	case c.loose+len(c.blocks) > c.capacity:
		t.Fatalf("%d blocks in a cache of %d", c.loose+len(c.blocks), c.capacity)
	}
	for b, n := range held {
		if b.refs != n || c.blocks[b.hash] != b {
			t.Fatalf("block held %d times has %d references", n, b.refs)
		}
	}
}

func TestLeavesAreEvictedBeforeTheirParents(t *testing.T) {
	s := stepper(Config{CacheBlocks: 8, BlockTokens: 4, MaxModelTokens: 32})
	long := sequenceOf(s, 24, 1, 1)
	s.submit([]*sequence{long})
	for s.step() >= 0 {
	}
	s.submit([]*sequence{sequenceOf(s, 16, 1, 2)})
	for s.step() >= 0 {
	}
	kept := 0
	for kept < len(long.hashes) && s.cache.blocks[long.hashes[kept]] != nil {
		kept++
	}
	for _, h := range long.hashes[kept:] {
		if s.cache.blocks[h] != nil {
			t.Error("a block outlived its parent")
		}
	}
	if kept != 4 {
		t.Errorf("%d leading blocks left, want 4", kept)
	}
}

// TestManyStreams checks that each of many concurrent streams gets all its tokens.
func TestManyStreams(t *testing.T) {
	e := start(t, func(c *Config) { c.Speed = 5; c.MaxSeqs = 16 })
	var clients sync.WaitGroup
	for i := range 100 {
		clients.Go(func() {
			res, err := send(e, chatBody(fmt.Sprint("stream ", i), `,"stream":true,"max_tokens":20`))
			if err != nil {
				t.Error(err)
				return
			}
			defer res.Body.Close()
			if list, err := events(res.Body); err != nil || len(list) != 22 {
				t.Errorf("%d events, %v", len(list), err)
			}
		})
	}
	clients.Wait()
	if s := e.Stats(); s.MaxRunning != 16 || s.GeneratedTokens != 2000 {
		t.Errorf("%+v", s)
	}
}

// TestSpeedDividesTime checks that an answer takes its simulated time divided by Speed, and no
// less.
func TestSpeedDividesTime(t *testing.T) {
	e := start(t, func(c *Config) { c.Speed = 10 })
	begun := time.Now()
	object(t, post(t, e, "/v1/completions", `{"prompt":"`+strings.Repeat("abcd", 2000)+`","max_tokens":21}`), 200)
	want := (100*time.Millisecond + 20*15*time.Millisecond) / 10
	if took := time.Since(begun); took < want {
		t.Errorf("took %v, want %v or a little more", took, want)
	}
}

// TestBurn checks that one thread really uses the CPU time of a step.
func TestBurn(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime()
	took := burn(5 * time.Millisecond)
	if used := threadTime() - before; used < 5*time.Millisecond || took < 5*time.Millisecond {
		t.Errorf("5 ms took %v of CPU in %v", used, took)
	}
	if burn(0) != 0 {
		t.Error("nothing took time")
	}
}
