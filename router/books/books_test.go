package books

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// chain returns the keys of a prompt. A part is a block, and a key stands for all parts up to it.
func chain(parts ...int) (keys []uint64) {
	key := uint64(12345)
	for _, p := range parts {
		key = (key ^ uint64(p)) * 0x9e3779b97f4a7c15
		key ^= key >> 29
		keys = append(keys, key)
	}
	return keys
}

// prompt returns the keys of a random prompt. Many prompts share blocks.
func prompt(dice *rand.Rand) []uint64 {
	parts := make([]int, 1+dice.IntN(40))
	for i := range parts {
		if dice.IntN(8) == 0 {
			parts[i] = dice.IntN(3)
		}
	}
	return chain(parts...)
}

var noon = time.Unix(1_700_000_000, 0)

// twin is a book that is kept by counting every block.
type twin struct {
	users   map[uint64]int
	loose   int64 // blocks without keys
	prefill int64
}

func (w *twin) blocks() int64 { return int64(len(w.users)) + w.loose }

func (w *twin) shared(keys []uint64) (n int) {
	for n < len(keys) && w.users[keys[n]] > 0 {
		n++
	}
	return n
}

func (w *twin) count(keys []uint64, n int) {
	for _, k := range keys {
		if w.users[k] += n; w.users[k] == 0 {
			delete(w.users, k)
		}
	}
}

// TestBookEqualsACountOfBlocks runs random requests and compares the book with a plain count.
func TestBookEqualsACountOfBlocks(t *testing.T) {
	type open struct {
		Entry
		cost  Cost
		keys  []uint64
		begun bool
	}
	for seed := range uint64(300) {
		dice := rand.New(rand.NewPCG(seed, 0))
		var b Book
		w := twin{users: map[uint64]int{}}
		var all []*open
		for range 400 {
			if len(all) == 0 || dice.IntN(3) == 0 {
				e := &open{cost: Cost{Prefill: dice.Int64N(500), Blocks: dice.Int64N(50)}}
				b.Open(&e.Entry, e.cost, noon)
				w.prefill, w.loose = w.prefill+e.cost.Prefill, w.loose+e.cost.Blocks
				all = append(all, e)
			}
			i := dice.IntN(len(all))
			e := all[i]
			switch dice.IntN(5) {
			case 0, 1:
				if keys := prompt(dice); e.keys == nil {
					e.keys = keys
					w.count(keys, 1)
					w.loose -= e.cost.Blocks
				}
				e.Count(e.keys)
			case 2:
				e.Begun(noon)
				if !e.begun {
					w.prefill -= e.cost.Prefill
				}
				e.begun = true
			case 3:
				e.Generated(dice.Int64N(200), dice.Int64N(200))
			case 4:
				e.Close(noon)
				if !e.begun {
					w.prefill -= e.cost.Prefill
				}
				if w.count(e.keys, -1); e.keys == nil {
					w.loose -= e.cost.Blocks
				}
				all[i] = all[len(all)-1]
				all = all[:len(all)-1]
			}
			probe := prompt(dice)
			if b.Prefill(noon) != w.prefill || b.Waiting() != w.prefill || b.blocks.Load() != w.blocks() ||
				b.Shared(probe) != w.shared(probe) {
				t.Fatalf("seed %d: %d tokens, %d blocks, %d shared; want %d, %d, %d", seed, b.Prefill(noon),
					b.blocks.Load(), b.Shared(probe), w.prefill, w.blocks(), w.shared(probe))
			}
			if w.shared(probe) > 0 && !b.MayShare(MarkOf(probe)) {
				t.Fatalf("seed %d: the mark of an active prompt is missing", seed)
			}
		}
		for _, e := range all {
			e.Close(noon)
			e.Close(noon)
		}
		if !b.Empty() {
			t.Fatalf("seed %d: %+v", seed, &b)
		}
	}
}

// TestMarks checks that a book tells most prompts apart by their marks, and keeps a mark until the
// last of its prompts has ended.
func TestMarks(t *testing.T) {
	var b Book
	var entries [3]Entry
	for i, first := range []uint64{5, 5 + marks, 7} {
		b.Open(&entries[i], Cost{}, noon)
		entries[i].Count([]uint64{first, 1})
	}
	for i, want := range [][3]bool{
		{true, true, false}, {true, true, false}, {false, true, false}, {false, false, false},
	} {
		if i > 0 {
			entries[i-1].Close(noon)
		}
		for k, first := range []uint64{5, 7, 9} {
			if got := b.MayShare(MarkOf([]uint64{first})); got != want[k] {
				t.Errorf("%d ended: a prompt that begins with %d may share: %v", i, first, got)
			}
		}
	}
	if b.MayShare(MarkOf(nil)) {
		t.Error("a prompt without a block may share")
	}
}

// TestConcurrentEntries opens and closes entries from several goroutines at once.
func TestConcurrentEntries(t *testing.T) {
	var b Book
	var wg sync.WaitGroup
	for seed := range uint64(8) {
		wg.Go(func() {
			dice := rand.New(rand.NewPCG(seed, 1))
			var e Entry
			for range 2000 {
				b.Open(&e, Cost{Prefill: dice.Int64N(100), Blocks: 3, Expected: time.Duration(dice.Int64N(2))}, noon)
				var late sync.WaitGroup
				late.Go(func() { e.Begun(noon) })
				e.Count(prompt(dice))
				e.Generated(40, 50)
				b.Shared(prompt(dice))
				b.Prefill(noon)
				if b.Pressing() < 0 || b.Backlog(noon) < 0 || b.Computed(noon) < 0 {
					t.Error("a figure is negative")
				}
				late.Wait()
				e.Close(noon)
			}
		})
	}
	wg.Wait()
	if !b.Empty() || b.Pressing() != 0 || b.Backlog(noon) != 0 || b.Waiting() != 0 {
		t.Errorf("%+v", &b)
	}
}

// TestOutputBlocks checks the weights of output blocks.
func TestOutputBlocks(t *testing.T) {
	var b Book
	var first, second Entry
	b.Open(&first, Cost{Blocks: 4}, noon)
	first.Count(chain(1, 1, 2, 2))
	b.Open(&second, Cost{Blocks: 4}, noon)
	second.Count(chain(1, 1, 3, 3))
	for _, c := range []struct {
		tokens, expected int64
		want             float64
	}{
		{0, 0, 6},
		{16, 0, 7},                   // one full block
		{17, 0, 8},                   // a block begins
		{50, 100, 6 + 4*0.5 - 2*0.5}, // half of the output and of the two blocks that first alone has
		{100, 100, 6 - 2},            // nothing is to come
		{200, 100, 6 - 2},            // nor beyond the expected length
	} {
		first.Generated(c.tokens, c.expected)
		if b.Blocks() != c.want {
			t.Errorf("%d of %d tokens: %v blocks, want %v", c.tokens, c.expected, b.Blocks(), c.want)
		}
	}
	second.Close(noon)
	first.Close(noon)
	if !b.Empty() {
		t.Errorf("%+v", &b)
	}
}

// TestExpectedPrefill checks the computed part of prompts with an expected time.
func TestExpectedPrefill(t *testing.T) {
	var b Book
	var first, second, third Entry
	at := func(ms int) time.Time { return noon.Add(time.Duration(ms) * time.Millisecond) }
	want := func(ms int, tokens int64) {
		t.Helper()
		if got := b.Prefill(at(ms)); got != tokens {
			t.Errorf("after %d ms: %d tokens, want %d", ms, got, tokens)
		}
	}
	b.Open(&first, Cost{Prefill: 1000, Expected: 100 * time.Millisecond}, at(0))
	b.Open(&second, Cost{Prefill: 500, Expected: 50 * time.Millisecond}, at(10))
	want(50, 1000)
	want(150, 0)
	want(200, 0)
	second.Begun(at(60)) // out of order: its 50 ms of the 60 were its own
	want(60, 900)
	b.Open(&third, Cost{Prefill: 400, Expected: 40 * time.Millisecond}, at(60))
	first.Begun(at(110)) // third is the oldest from now on
	want(110, 400)
	want(120, 300)
	second.Close(at(120))
	b.Open(&second, Cost{Prefill: 200}, at(120)) // without an expected time nothing counts as computed
	want(130, 600)
	second.Close(at(130))
	want(130, 200)
	for _, e := range []*Entry{&first, &second, &third} {
		e.Close(at(140))
	}
	if !b.Empty() {
		t.Errorf("%+v", &b)
	}
}

// TestCollidingKeys counts prompts whose keys contradict each other. The book is empty afterwards.
func TestCollidingKeys(t *testing.T) {
	for seed := range uint64(200) {
		dice := rand.New(rand.NewPCG(seed, 2))
		var b Book
		entries := make([]Entry, 5)
		for i := range 100 {
			e := &entries[i%len(entries)]
			e.Close(noon)
			keys := make([]uint64, 1+dice.IntN(10))
			for k := range keys {
				keys[k] = dice.Uint64N(6)
			}
			b.Open(e, Cost{Blocks: 1}, noon)
			e.Count(keys)
			e.Generated(10, 20)
			b.Shared(keys)
		}
		for i := range entries {
			entries[i].Close(noon)
		}
		if !b.Empty() {
			t.Fatalf("seed %d: %+v", seed, &b)
		}
	}
}

// ms returns the time that is this many milliseconds after noon.
func ms(n int) time.Time { return noon.Add(time.Duration(n) * time.Millisecond) }

// timed opens an entry with a learned time in milliseconds.
func timed(b *Book, e *Entry, expected, at int) {
	b.Open(e, Cost{Prefill: 10 * int64(expected), Blocks: 1, Learned: time.Duration(expected) * time.Millisecond},
		ms(at))
}

// figures checks what picks by predicted time read of a book at a time in milliseconds.
func figures(t *testing.T, b *Book, at, backlog, computed int, pressing int32, waiting int64) {
	t.Helper()
	got := [...]any{b.Backlog(ms(at)), b.Computed(ms(at)), b.Pressing(), b.Waiting()}
	want := [...]any{ms(backlog).Sub(noon), ms(computed).Sub(noon), pressing, waiting}
	if got != want {
		t.Errorf("after %d ms: backlog %v, computed %v, %v prompts of %v tokens; want %v", at, got[0], got[1], got[2], got[3], want)
	}
}

// TestBacklog checks the expected times of prompts that wait and that have ended. The prompts are
// late and early, and end in any order.
func TestBacklog(t *testing.T) {
	var b Book
	var first, second, third, cached Entry
	figures(t, &b, 0, 0, 0, 0, 0)
	timed(&b, &first, 100, 0)
	timed(&b, &second, 50, 10)
	b.Open(&cached, Cost{Blocks: 9, Learned: time.Second}, ms(10)) // nothing is to be computed
	figures(t, &b, 10, 140, 10, 2, 1500)
	figures(t, &b, 90, 60, 90, 2, 1500)
	figures(t, &b, 150, 0, 150, 2, 1500)
	figures(t, &b, 170, 20, 150, 2, 1500) // overdue for 20 ms
	figures(t, &b, 400, 250, 150, 2, 1500)
	second.Begun(ms(80)) // before the older one: 50 of the 80 ms were its own
	figures(t, &b, 80, 70, 80, 1, 1000)
	figures(t, &b, 90, 60, 90, 1, 1000)
	timed(&b, &third, 30, 90)
	figures(t, &b, 90, 90, 90, 2, 1300)
	first.Begun(ms(100)) // earlier than expected; the next one is computed from now on
	figures(t, &b, 100, 30, 150, 1, 300)
	figures(t, &b, 110, 20, 160, 1, 300)
	first.Begun(ms(115)) // once more
	third.Close(ms(120)) // without an answer
	figures(t, &b, 120, 0, 180, 0, 0)
	figures(t, &b, 500, 0, 180, 0, 0) // an idle engine computes nothing
	timed(&b, &third, 40, 1000)
	figures(t, &b, 1010, 30, 190, 1, 400)
	for _, e := range []*Entry{&first, &second, &third, &cached} {
		e.Close(ms(1020))
	}
	figures(t, &b, 1020, 0, 220, 0, 0)
	if !b.Empty() {
		t.Errorf("%+v", &b)
	}
}

// TestUnknownExpectedTimes checks prompts without a learned time. They wait, and add nothing to
// the backlog.
func TestUnknownExpectedTimes(t *testing.T) {
	var b Book
	var first, second Entry
	b.Open(&first, Cost{Prefill: 70}, ms(0))
	figures(t, &b, 5, 0, 0, 1, 70)
	timed(&b, &second, 100, 5)
	figures(t, &b, 10, 90, 10, 2, 1070)
	first.Close(ms(20))
	figures(t, &b, 20, 100, 0, 1, 1000)
	second.Close(ms(20))
	figures(t, &b, 20, 0, 100, 0, 0)
}

// TestBacklogInAnyOrder opens and ends entries in random order, at random times. The backlog is
// never negative, and never above the sum of the expected times unless all are overdue. At the end
// nothing waits, and the expected times of all prompts have been computed.
func TestBacklogInAnyOrder(t *testing.T) {
	for seed := range uint64(300) {
		dice := rand.New(rand.NewPCG(seed, 3))
		var b Book
		entries, open := make([]Entry, 8), make([]time.Duration, 8) // 0: not waiting
		var sum, all time.Duration
		waiting, now := int32(0), noon
		for range 200 {
			now = now.Add(time.Duration(dice.IntN(40)) * time.Millisecond)
			i := dice.IntN(len(entries))
			e := &entries[i]
			if sum -= open[i]; open[i] > 0 {
				waiting--
			}
			if open[i] = 0; dice.IntN(2) == 0 {
				e.Begun(now)
			}
			if e.Close(now); dice.IntN(3) > 0 {
				open[i] = time.Duration(1+dice.IntN(100)) * time.Millisecond
				b.Open(e, Cost{Prefill: 1 + dice.Int64N(99), Learned: open[i]}, now)
				sum, all, waiting = sum+open[i], all+open[i], waiting+1
			}
			if b.Pressing() != waiting || b.Backlog(now) < 0 || b.Computed(now) < 0 || b.Computed(now) > all {
				t.Fatalf("seed %d: %d prompts wait, want %d; backlog %v, computed %v of %v", seed, b.Pressing(), waiting,
					b.Backlog(now), b.Computed(now), all)
			}
			since := now.Sub(epoch) - time.Duration(b.since.Load())
			if late := max(since-sum, 0); b.Backlog(now) > max(sum, late) || sum == 0 && b.Backlog(now) != 0 {
				t.Fatalf("seed %d: backlog %v of %v", seed, b.Backlog(now), sum)
			}
		}
		for i := range entries {
			entries[i].Close(now)
		}
		if b.Backlog(now) != 0 || b.Pressing() != 0 || b.Waiting() != 0 || b.Computed(now) != all || !b.Empty() {
			t.Fatalf("seed %d: backlog %v, %d prompts, %d tokens, computed %v of %v", seed, b.Backlog(now), b.Pressing(),
				b.Waiting(), b.Computed(now), all)
		}
	}
}
