package prefix

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// held is the model's belief about a group of blocks. held implements the rules of the index on a
// plain map, with plain times and the blocks' digests.
type held struct {
	born, touched           time.Time
	inUse, settled, pending bool
	blocks                  []uint64
	kept                    int // seen at a dispatch: blocks shared with the prompt
}

type model struct {
	held map[string]held // by node and leader
}

func key(ref Ref, d uint64) string { return fmt.Sprintf("%x/%x", ref, d) }

// each calls fn for the groups of a prompt.
func (m *model) each(c *Chain, ref Ref, fn func(g int, k string, blocks []uint64)) {
	for g := 0; g*groupBlocks < c.Blocks(); g++ {
		var blocks []uint64
		for i := g * groupBlocks; i < min((g+1)*groupBlocks, c.Blocks()); i++ {
			blocks = append(blocks, c.Key(i))
		}
		fn(g, key(ref, blocks[0]), blocks)
	}
}

// common returns how many leading blocks two groups have in common. common compares blocks behind
// the leader by their tags.
func common(a, b []uint64) (n int) {
	for n < min(len(a), len(b)) && (a[n] == b[n] || n > 0 && tag(a[n]) == tag(b[n])) {
		n++
	}
	return n
}

// looked is the state of a prompt on a node: the number of valid leading groups, the blocks held,
// and the blocks held or pending with their groups.
type looked struct {
	seen           []held
	matched, there int // blocks
	alive          int // groups
}

func (m *model) chain(c *Chain, ref Ref, now time.Time, lifetime time.Duration) (l looked) {
	var floor time.Time
	ordered, held := true, true
	m.each(c, ref, func(g int, k string, blocks []uint64) {
		h, ok := m.held[k]
		if ordered = ordered && ok && !h.touched.Before(floor); !ordered {
			return
		}
		if h.born.After(floor) {
			floor = h.born
		}
		h.kept = common(h.blocks, blocks)
		if l.alive == g && now.Sub(h.touched) <= lifetime {
			l.alive, l.there, held = g+1, g*groupBlocks+h.kept, held && !h.pending
			if held {
				l.matched = l.there
			}
		}
		l.seen = append(l.seen, h)
	})
	return l
}

// grow returns an entry's blocks after a request. grow keeps the old blocks if goesOn is set and
// the old blocks are more.
func (h *held) grow(blocks []uint64, goesOn bool) {
	if !goesOn || common(h.blocks, blocks) < len(blocks) {
		h.blocks = blocks
	}
}

func (m *model) record(c *Chain, ref Ref, at time.Time, lifetime time.Duration) []held {
	was := m.chain(c, ref, at, lifetime)
	m.each(c, ref, func(g int, k string, blocks []uint64) {
		h := m.held[k]
		if g >= was.alive {
			if h.born.Before(at) {
				h.born = at
			}
			h.settled, h.pending, h.blocks = false, true, blocks
		}
		if h.touched.Before(at) {
			h.touched = at
		}
		h.inUse = true
		m.held[k] = h
	})
	return was.seen
}

func (m *model) begun(c *Chain, ref Ref, at time.Time) {
	m.each(c, ref, func(g int, k string, blocks []uint64) {
		h, known := m.held[k]
		if !known {
			h = held{born: at, touched: at, inUse: true}
		}
		h.pending = false
		h.grow(blocks, true)
		m.held[k] = h
	})
}

func (m *model) forget(c *Chain, ref Ref, at time.Time, seen []held) {
	m.each(c, ref, func(g int, k string, blocks []uint64) {
		h, known := m.held[k]
		switch {
		case !known || !h.touched.Equal(at):
		case h.born.Equal(at) && !h.settled:
			delete(m.held, k)
		case g < len(seen):
			h.touched, h.inUse, h.settled = seen[g].touched, seen[g].inUse, seen[g].settled
			if len(h.blocks) == len(blocks) && common(h.blocks, blocks) == len(blocks) {
				h.blocks = blocks[:seen[g].kept]
			}
			m.held[k] = h
		}
	})
}

func (m *model) observe(c *Chain, ref Ref, at, now time.Time, believed, actual int, seen []held) {
	cut := c.Blocks()
	if believed-actual > 1 {
		gone := (actual + groupBlocks) / groupBlocks
		if actual == 0 && believed-min((believed-1)%groupBlocks, mistaken) > 1 {
			gone = 0
		}
		if gone*groupBlocks < believed && gone < len(seen) && !seen[gone].inUse {
			cut = gone * groupBlocks
		}
	}
	m.each(c, ref, func(g int, k string, blocks []uint64) {
		h, known := m.held[k]
		reborn := known && g*groupBlocks >= cut && h.born.Before(at)
		if !known || reborn {
			h.born = at
		}
		h.touched, h.inUse, h.settled, h.pending = now, false, true, false
		h.grow(blocks, known && !reborn)
		m.held[k] = h
	})
}

type modelFlight struct {
	c        *Chain
	ref      Ref
	at       time.Time
	believed int
	seen     []held
}

// run is a random history on an index large enough to evict nothing.
type run struct {
	*testing.T
	*fakeClock
	r       *rand.Rand
	x       *Index
	m       model
	refs    []Ref
	joined  int
	flights []modelFlight
}

func TestIndexAgainstPlainMap(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	for n := range uint64(20) {
		t.Run(fmt.Sprintf("seed=%d", seed+n), func(t *testing.T) {
			u := &run{T: t, fakeClock: newFakeClock(), r: rand.New(rand.NewPCG(seed+n, 0))}
			u.x = u.unswept(Options{MaxBlocks: 1 << 16})
			u.m.held = map[string]held{}
			for range 2000 {
				u.op()
				if t.Failed() {
					return
				}
			}
		})
	}
}

func (u *run) op() {
	switch p := u.r.IntN(100); {
	case p < 34:
		u.dispatch()
	case p < 40:
		u.begin()
	case p < 65:
		u.finish()
	case p < 75:
		u.compare(u.prompt())
	case p < 96:
		u.advance(time.Duration(u.r.IntN(20_000)) * time.Millisecond)
	case p < 98 && len(u.refs) < 20:
		u.joined++
		u.refs = append(u.refs, u.x.Join(fmt.Sprint("node-", u.joined)))
	case p < 99 && len(u.refs) > 0:
		i := u.r.IntN(len(u.refs))
		u.x.Leave(u.refs[i])
		u.refs = append(u.refs[:i], u.refs[i+1:]...)
	default:
		u.x.sweep()
	}
}

// prompt returns a random prompt. At each of a few forks the prompt follows one of a few branches.
func (u *run) prompt() *Chain {
	var text []byte
	for fork := range 1 + u.r.IntN(6) {
		text = append(text, prompt(fmt.Sprint(fork, "-", u.r.IntN(3)), 1+(fork*fork)%9)...)
	}
	return chain(text)
}

func (u *run) compare(c *Chain) []int32 {
	got, coming := make([]int32, len(u.refs)), make([]int32, len(u.refs))
	u.x.Match(c, u.refs, got, coming)
	may := u.x.MayHold(c)
	for i, ref := range u.refs {
		if coming[i] > 0 && !may {
			u.Errorf("node %x has %d blocks, and none may have any", ref, coming[i])
		}
		want := u.m.chain(c, ref, u.t, u.x.Lifetime(ref))
		if !u.x.Caching(ref) {
			want = looked{}
		}
		if got[i] != int32(want.matched) || coming[i] != int32(want.there) {
			u.Errorf("node %x: matched %d and %d blocks, the model has %d and %d",
				ref, got[i], coming[i], want.matched, want.there)
		}
	}
	return got
}

func (u *run) dispatch() {
	if len(u.refs) == 0 {
		return
	}
	c := u.prompt()
	got, i := u.compare(c), u.r.IntN(len(u.refs))
	ref := u.refs[i]
	at := u.t.Add(-time.Duration(u.r.IntN(4)) * time.Second) // requests are recorded out of order
	seen := u.m.record(c, ref, at, u.x.Lifetime(ref))
	u.x.Record(c, ref, at)
	if len(seen) != len(c.sent.seen) {
		u.Errorf("saw %d groups at dispatch, the model %d", len(c.sent.seen), len(seen))
	}
	f := modelFlight{c, ref, at, int(got[i]), seen}
	u.flights = append(u.flights, f)
	if u.r.IntN(2) == 0 {
		u.begun(&f)
	}
}

// begin makes a node begin to answer one of its requests, possibly again.
func (u *run) begin() {
	if len(u.flights) > 0 {
		u.begun(&u.flights[u.r.IntN(len(u.flights))])
	}
}

func (u *run) begun(f *modelFlight) {
	u.x.Begun(f.c, f.ref)
	u.m.begun(f.c, f.ref, f.at)
}

func (u *run) finish() {
	if len(u.flights) == 0 {
		return
	}
	i := u.r.IntN(len(u.flights))
	f := u.flights[i]
	u.flights = append(u.flights[:i], u.flights[i+1:]...)
	if u.r.IntN(8) == 0 {
		u.x.Forget(f.c, f.ref, f.at)
		u.m.forget(f.c, f.ref, f.at, f.seen)
		return
	}
	actual := f.believed
	if u.r.IntN(2) == 0 {
		actual = u.r.IntN(f.c.Blocks() + 1)
	}
	u.x.Observe(f.c, Observation{
		Ref: f.ref, Believed: f.believed, DispatchedAt: f.at,
		PromptTokens: int64(f.c.Blocks() * BlockTokens), CachedTokens: int64(actual * BlockTokens),
	})
	u.m.observe(f.c, f.ref, f.at, u.t, f.believed, actual, f.seen)
}

// TestConcurrentUse runs the requests of sixteen nodes at once, with readers, departures and
// sweeps, for the race detector. No reader may see more than was recorded.
func TestConcurrentUse(t *testing.T) {
	x := NewIndex(Options{MaxBlocks: 2000})
	defer x.Close()
	texts := make([][]byte, 32)
	for i := range texts {
		texts[i] = branch(prompt("system", 20), 20, fmt.Sprint("tail", i), 20+2*i)
	}
	refs := make([]atomic.Uint32, 16)
	for i := range refs {
		refs[i].Store(uint32(x.Join(fmt.Sprint(i))))
	}
	var wg sync.WaitGroup
	for i := range refs {
		wg.Go(func() { churn(x, &refs[i], texts, uint64(i)) })
	}
	for i := range 4 {
		wg.Go(func() { read(t, x, refs, texts, uint64(i)) })
	}
	wg.Wait()
	if x.Len() > 2000+len(x.table.buckets)*groupBlocks {
		t.Errorf("%d blocks with a bound of 2000", x.Len())
	}
}

func churn(x *Index, slot *atomic.Uint32, texts [][]byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for range 300 {
		ref, c, at := Ref(slot.Load()), chain(texts[r.IntN(len(texts))]), time.Now()
		x.Record(c, ref, at)
		if r.IntN(4) > 0 {
			x.Begun(c, ref)
		}
		o := Observation{Ref: ref, Believed: c.Blocks(), DispatchedAt: at, PromptTokens: 1000,
			CachedTokens: int64(r.IntN(1000))}
		if r.IntN(10) == 0 {
			x.Forget(c, ref, at)
		} else {
			x.Observe(c, o)
		}
		if r.IntN(50) == 0 {
			x.Leave(ref)
			slot.Store(uint32(x.Join(fmt.Sprint(seed))))
		}
	}
}

func read(t *testing.T, x *Index, slots []atomic.Uint32, texts [][]byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	refs, matched := make([]Ref, len(slots)), make([]int32, len(slots))
	c := new(Chain)
	for range 2000 {
		for i := range slots {
			refs[i] = Ref(slots[i].Load())
		}
		c.Reset(Seed("model", "", ""), texts[r.IntN(len(texts))], nil)
		hashed := x.Match(c, refs, matched, nil)
		for _, m := range matched {
			if int(m) > hashed {
				t.Errorf("matched %d of %d hashed blocks", m, hashed)
			}
		}
	}
}
