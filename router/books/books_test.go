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
				e.Count(e.keys, nil)
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
			if b.Prefill(noon) != w.prefill || b.WaitingTokens() != w.prefill || b.blocks != w.blocks() ||
				b.Shared(probe) != w.shared(probe) {
				t.Fatalf("seed %d: %d tokens, %d blocks, %d shared; want %d, %d, %d", seed, b.Prefill(noon),
					b.blocks, b.Shared(probe), w.prefill, w.blocks(), w.shared(probe))
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
		entries[i].Count([]uint64{first, 1}, nil)
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
				e.Count(prompt(dice), nil)
				e.Generated(40, 50)
				b.Shared(prompt(dice))
				b.Prefill(noon)
				if b.WaitingPrompts() < 0 || b.Backlog(noon) < 0 || b.Computed(noon) < 0 {
					t.Error("a figure is negative")
				}
				late.Wait()
				e.Close(noon)
			}
		})
	}
	wg.Wait()
	if !b.Empty() || b.WaitingPrompts() != 0 || b.Backlog(noon) != 0 || b.WaitingTokens() != 0 {
		t.Errorf("%+v", &b)
	}
}

// TestOutputBlocks checks the weights of output blocks.
func TestOutputBlocks(t *testing.T) {
	var b Book
	var first, second Entry
	b.Open(&first, Cost{Blocks: 4}, noon)
	first.Count(chain(1, 1, 2, 2), nil)
	b.Open(&second, Cost{Blocks: 4}, noon)
	second.Count(chain(1, 1, 3, 3), nil)
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
			e.Count(keys, nil)
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
	got := [...]any{b.Backlog(ms(at)), b.Computed(ms(at)), b.WaitingPrompts(), b.WaitingTokens()}
	want := [...]any{ms(backlog).Sub(noon), ms(computed).Sub(noon), pressing, waiting}
	if got != want {
		t.Errorf("after %d ms: backlog %v, computed %v, %v prompts of %v tokens; want %v", at, got[0], got[1],
			got[2], got[3], want)
	}
}

// overdue checks how late the oldest prompt of a book is at a time in milliseconds.
func overdue(t *testing.T, b *Book, at, late int) {
	t.Helper()
	if got, want := b.Overdue(ms(at)), ms(late).Sub(noon); got != want {
		t.Errorf("after %d ms: overdue for %v, want %v", at, got, want)
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
	overdue(t, &b, 90, 0)
	overdue(t, &b, 120, 20)
	figures(t, &b, 120, 30, 120, 2, 1500)
	overdue(t, &b, 400, 300)
	figures(t, &b, 400, 0, 150, 2, 1500)
	second.Begun(ms(80)) // before the older one: 50 of the 80 ms were its own
	figures(t, &b, 80, 70, 80, 1, 1000)
	figures(t, &b, 90, 60, 90, 1, 1000)
	timed(&b, &third, 30, 90)
	figures(t, &b, 90, 90, 90, 2, 1300)
	first.Begun(ms(100)) // earlier than expected; the next one is computed from now on
	figures(t, &b, 100, 30, 150, 1, 300)
	figures(t, &b, 110, 20, 160, 1, 300)
	first.Begun(ms(115)) // once more
	third.Close(ms(120)) // without an answer, after 20 ms
	figures(t, &b, 120, 0, 170, 0, 0)
	figures(t, &b, 500, 0, 170, 0, 0) // an idle engine computes nothing
	timed(&b, &third, 40, 1000)
	figures(t, &b, 1010, 30, 180, 1, 400)
	for _, e := range []*Entry{&first, &second, &third, &cached} {
		e.Close(ms(1020))
	}
	figures(t, &b, 1020, 0, 190, 0, 0)
	if !b.Empty() {
		t.Errorf("%+v", &b)
	}
}

// TestOverdue checks when a node is late with its oldest prompt. A prompt that comes does not make
// it less late. A younger prompt that was computed shows that the node works. If the oldest request
// ends without an answer, the node stays as late.
func TestOverdue(t *testing.T) {
	open := func(b *Book, e *Entry, learned, lag time.Duration, at int) {
		b.Open(e, Cost{Prefill: 1, Learned: learned * time.Millisecond, Lag: lag}, ms(at))
	}
	const lag = 50 * time.Millisecond
	var b Book
	var first, second, third Entry
	open(&b, &first, 100, lag, 0)
	overdue(t, &b, 150, 0)
	overdue(t, &b, 170, 20)
	open(&b, &second, 30, lag, 170)
	overdue(t, &b, 170, 20)
	figures(t, &b, 170, 30, 100, 2, 2)
	open(&b, &third, 10, lag, 170)
	third.Close(ms(180)) // was not computed
	overdue(t, &b, 180, 30)
	open(&b, &third, 10, lag, 180)
	third.Assumed(ms(180)) // nothing was seen of it, so it took its own time
	third.Close(ms(180))
	overdue(t, &b, 180, 20)
	second.Begun(ms(180))
	overdue(t, &b, 180, 0)
	overdue(t, &b, 200, 10)
	second.Close(ms(190))
	open(&b, &second, 30, lag, 1000)
	first.Close(ms(1000))
	overdue(t, &b, 1000, 1000-190-30)
	second.Begun(ms(1000))
	overdue(t, &b, 1000, 0)
	second.Close(ms(1000))

	open(&b, &first, 100, Never, 2000)
	open(&b, &second, 30, lag, 2000)
	overdue(t, &b, 1<<30, 0)
	first.Close(ms(2010)) // a node that refuses a request at once is not late
	overdue(t, &b, 2010+30+50, 0)
	overdue(t, &b, 2010+30+50+7, 7)
	second.Close(ms(2010))
	b.Open(&first, Cost{Prefill: 1, Lag: lag}, ms(3000)) // an unknown time
	open(&b, &second, 30, lag, 3000)
	overdue(t, &b, 1<<30, 0)
	first.Close(ms(3000))
	second.Close(ms(3000))
}

// TestLatePrompts checks that the time that a late prompt takes counts as computed while others
// wait behind it.
func TestLatePrompts(t *testing.T) {
	var b Book
	var first, second Entry
	timed(&b, &first, 100, 0)
	timed(&b, &second, 400, 0)
	figures(t, &b, 290, 210, 290, 2, 5000)
	overdue(t, &b, 290, 190)
	first.Begun(ms(300))
	figures(t, &b, 300, 400, 300, 1, 4000)
	figures(t, &b, 310, 390, 310, 1, 4000)
	second.Begun(ms(900)) // nobody waited: the engine may have done something else
	figures(t, &b, 900, 0, 700, 0, 0)
}

// TestUnknownExpectedTimes checks prompts without a learned time. They wait, and add nothing to
// the backlog.
func TestUnknownExpectedTimes(t *testing.T) {
	var b Book
	var first, second Entry
	b.Open(&first, Cost{Prefill: 70}, ms(0))
	figures(t, &b, 5, 0, 0, 1, 70)
	timed(&b, &second, 100, 5)
	figures(t, &b, 10, 95, 5, 2, 1070)
	first.Close(ms(20))
	figures(t, &b, 20, 100, 15, 1, 1000) // the first one took 15 ms of the second one's time
	second.Close(ms(20))
	figures(t, &b, 20, 0, 15, 0, 0)
}

// TestTwoTimes checks prompts with an expected and a learned time. The expected times do not change
// the backlog, and the learned ones not the computed tokens.
func TestTwoTimes(t *testing.T) {
	var b Book
	var first, second, third Entry
	open := func(e *Entry, tokens int64, expected, learned, at int) {
		b.Open(e, Cost{Prefill: tokens, Expected: ms(expected).Sub(noon), Learned: ms(learned).Sub(noon)}, ms(at))
	}
	want := func(at int, prefill int64, backlog, computed int) {
		t.Helper()
		if got := b.Prefill(ms(at)); got != prefill {
			t.Errorf("after %d ms: %d tokens, want %d", at, got, prefill)
		}
		figures(t, &b, at, backlog, computed, b.WaitingPrompts(), b.WaitingTokens())
	}
	open(&first, 1000, 100, 200, 0)
	open(&second, 500, 50, 10, 10)
	open(&third, 300, 0, 30, 10)
	third.Begun(ms(50)) // without an expected time: 30 ms count as its own by the learned times only
	want(50, 1000, 190, 50)
	second.Begun(ms(70)) // 50 of the 70 ms count as its own by the expected times, 10 by the learned ones
	want(70, 800, 170, 70)
	first.Begun(ms(90)) // earlier than expected
	want(90, 0, 0, 240)
	second.Close(ms(90))
	if first.Close(ms(90)); !b.Empty() {
		t.Errorf("%+v", &b)
	}
}

// TestBacklogInAnyOrder opens and ends entries in random order, at random times. The backlog is
// never negative, and never above the sum of the expected times. A prompt adds its expected time to
// it, and does not make others less late. The computed time never falls. At the end nothing waits,
// and at least the expected times of all prompts with an answer have been computed.
func TestBacklogInAnyOrder(t *testing.T) {
	for seed := range uint64(300) {
		dice := rand.New(rand.NewPCG(seed, 3))
		var b Book
		entries, open := make([]Entry, 8), make([]time.Duration, 8) // 0: not waiting
		var sum, all, last time.Duration
		waiting, now := int32(0), noon
		for range 200 {
			now = now.Add(time.Duration(dice.IntN(40)) * time.Millisecond)
			i := dice.IntN(len(entries))
			e := &entries[i]
			if sum -= open[i]; open[i] > 0 {
				waiting--
			}
			if open[i] > 0 {
				if dice.IntN(2) > 0 {
					e.Begun(now)
				} else {
					all -= open[i]
				}
				open[i] = 0
			}
			if e.Close(now); dice.IntN(3) > 0 {
				open[i] = time.Duration(1+dice.IntN(100)) * time.Millisecond
				before, lag := b.Backlog(now)+b.Overdue(now), time.Duration(dice.IntN(50))*time.Millisecond
				b.Open(e, Cost{Prefill: 1 + dice.Int64N(99), Learned: open[i], Lag: lag}, now)
				if after := b.Backlog(now) + b.Overdue(now); after != before+open[i] {
					t.Fatalf("seed %d: backlog %v after %v and a prompt of %v", seed, after, before, open[i])
				}
				sum, all, waiting = sum+open[i], all+open[i], waiting+1
			}
			if b.WaitingPrompts() != waiting || b.Backlog(now) < 0 || b.Computed(now) < last ||
				b.Computed(now) < all-sum {
				t.Fatalf("seed %d: %d prompts wait, want %d; backlog %v, computed %v after %v, of %v", seed,
					b.WaitingPrompts(), waiting, b.Backlog(now), b.Computed(now), last, all)
			}
			last = b.Computed(now)
			if b.Backlog(now) > sum || sum == 0 && b.Overdue(now) != 0 {
				t.Fatalf("seed %d: backlog %v of %v, overdue for %v", seed, b.Backlog(now), sum, b.Overdue(now))
			}
		}
		for i := range entries {
			entries[i].Close(now)
		}
		if b.Backlog(now) != 0 || b.WaitingPrompts() != 0 || b.WaitingTokens() != 0 || !b.Empty() ||
			b.Computed(now) < max(all-sum, last) {
			t.Fatalf("seed %d: backlog %v, %d prompts, %d tokens, computed %v of %v", seed, b.Backlog(now),
				b.WaitingPrompts(), b.WaitingTokens(), b.Computed(now), all)
		}
	}
}

// TestSilence checks how long a node has given no token to the answers that are listened to. Time
// spent on prompts, first tokens and answers that wait for their clients do not count.
func TestSilence(t *testing.T) {
	var b Book
	var first, second, third, fourth Entry
	silent := func(at, want int) {
		t.Helper()
		if got := b.Silence(ms(at)); got != ms(want).Sub(noon) {
			t.Errorf("after %d ms: %v, want %d ms", at, got, want)
		}
	}
	begin := func(e *Entry, at int) {
		b.Open(e, Cost{Blocks: 1}, ms(at))
		e.Listen(true, ms(at))
	}
	silent(0, 0)
	begin(&first, 0)
	silent(300, 300)
	begin(&second, 400) // its first token is no sign of the others' next one
	silent(500, 500)
	first.Heard(ms(600))
	silent(600, 300) // a token takes away half
	silent(900, 600)
	timed(&b, &third, 200, 1000)
	silent(1150, 700) // 150 ms for the prompt
	silent(1300, 800) // the prompt is late by 100 ms
	third.Begun(ms(1400))
	silent(1400, 900)
	second.Heard(ms(1500))
	silent(1600, 600)
	first.Listen(false, ms(1700))
	first.Heard(ms(1700)) // what the client takes was sent before
	silent(1800, 800)
	second.Listen(false, ms(1900))
	silent(5000, 0)
	first.Listen(true, ms(5000))
	first.Listen(true, ms(5100))
	silent(5200, 200)
	timed(&b, &fourth, 1000, 5200)
	fourth.Begun(ms(5300)) // the prompt was expected to take longer
	fourth.Close(ms(5300))
	first.Heard(ms(5310))
	silent(5400, 90)
	if first.Close(ms(5500)); first.Listens() {
		t.Error("a closed entry is listened to")
	}
	second.Close(ms(5500))
	third.Close(ms(5500))
	silent(9000, 0)
	first.Listen(true, ms(9000))
	first.Heard(ms(9000))
	silent(9500, 0)
	if !b.Empty() || b.listened.Load() != 0 {
		t.Errorf("%+v", &b)
	}
}

// TestSilenceWritesRarely checks that most tokens only read the book.
func TestSilenceWritesRarely(t *testing.T) {
	var b Book
	var e Entry
	b.Open(&e, Cost{Blocks: 1}, noon)
	e.Listen(true, noon)
	writes, last := 0, b.heard.Load()
	for i := range 1000 {
		if e.Heard(ms(i)); b.heard.Load() != last {
			writes, last = writes+1, b.heard.Load()
		}
	}
	if writes == 0 || writes > 2*1000/int(heardEvery.Milliseconds()) {
		t.Errorf("%d writes of 1000 tokens", writes)
	}
}
