// Package books counts what a router's requests cost the nodes that compute them.
//
// Each node has a Book. A request has an Entry in the book of the node that it was sent to. The
// entry takes the request's cost from the book exactly once, however the request ends:
//
//   - The uncached prompt tokens count until the first token of the answer.
//   - The KV blocks of the prompt count until the end. Blocks that several active requests share
//     count once.
//   - Output blocks count as they grow, if the entry is told of them.
//
// Requests themselves are counted by fleet.Node, which also bounds them. A book has the load of one
// router only. The node's own report tells the load of others; Recent gives the part of that report
// which may be this router's.
package books

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// Book is the load of one node. The zero value is an empty book. Book is safe for concurrent use.
type Book struct {
	// Every pick reads these fields.
	prefill  atomic.Int64  // tokens
	used     atomic.Int64  // blocks and output, in units of 1/outputUnit block; may be negative
	modelled atomic.Bool   // waiting is modelled
	present  atomic.Uint32 // the marks of the active prompts

	// Picks by predicted time read these fields too.
	prompts
	listened atomic.Int32 // answers whose tokens the router reads as they come

	computed atomic.Int64 // ns that the node has spent on prompts that have ended
	heard    atomic.Int64 // since when the answers in listened are silent, on the book's clock

	mu        sync.Mutex
	blocks    int64           // of prompts
	output    int64           // in units of 1/outputUnit block; may be negative
	mean      atomic.Int64    // moving mean of the entries' uncached tokens
	runs      map[uint64]*run // active blocks, by the key of a run's first block
	active    int             // blocks in runs
	counted   int             // entries with keys
	waiting   queue
	recent    Peak // of blocks
	demand    demand
	elsewhere atomic.Int32 // entries in Elsewhere
	firsts    firsts       // last, because it is large
}

// prompts are those that wait. The book's lock guards writes.
type prompts struct {
	learned  atomic.Int64 // ns of their computation, as learned
	since    atomic.Int64 // ns from epoch to waiting.byLearned
	due      atomic.Int64 // ns from epoch to waiting.due
	pressing atomic.Int32 // their number
}

// outputUnit is the inverse of the smallest weight of an output block.
const outputUnit = 256

// Cost is the cost of a request at one node.
type Cost struct {
	Prefill int64 // prompt tokens that the node must compute
	Blocks  int64 // blocks of the prompt that no other active request of the node has, as far as known
	// Expected is the time that the node alone needs for Prefill, by a model that the operator
	// gave. 0: unknown.
	Expected time.Duration
	// Learned is this time by what the router has learned. Backlog, Overdue and Computed count it.
	// 0: unknown.
	Learned time.Duration
	// Elsewhere says that another node computes the prompt first. It counts until Begun.
	Elsewhere bool
	// Lag is the further time until the first token is seen. Never: no token is seen before the end
	// of the answer, so the node is never late with it.
	Lag time.Duration
}

// Never is the Lag of an answer whose first token is not seen.
const Never = time.Duration(math.MaxInt64 / 4)

// Entry is a request's part of a book. The zero value is an empty entry, ready for Open. The owner
// of an entry calls its methods one at a time, except Assumed.
type Entry struct {
	book     *Book
	cost     Cost
	prefills bool     // the prefill counts; guarded by book.mu
	blocks   int64    // counted in book.blocks without keys
	keys     []uint64 // blocks in book.runs
	sharing  *Sharing // counts the keys; nil: nothing does
	output   int64    // counted in book.output
	listens  bool     // counted in book.listened

	before, after *Entry // in book.waiting
}

// Open adds the cost of a request to the book. e must be empty.
func (b *Book) Open(e *Entry, c Cost, now time.Time) {
	c.Prefill, c.Blocks = max(c.Prefill, 0), max(c.Blocks, 0)
	e.book, e.cost, e.blocks = b, c, c.Blocks
	b.mu.Lock()
	defer b.mu.Unlock()
	b.learn(c.Prefill)
	b.recent.Rise(b.use(c.Blocks, 0))
	if e.prefills = c.Prefill > 0; e.prefills {
		b.prefill.Add(c.Prefill)
		b.waiting.push(e, time.Duration(b.learned.Load()), now)
		b.count(int64(c.Learned), 1)
		b.demand.add(c.Learned, now)
	}
	if c.Elsewhere {
		b.elsewhere.Add(1)
	}
}

// use counts further blocks, and output in units of 1/outputUnit block. use returns the blocks. The
// caller holds the lock.
func (b *Book) use(blocks, output int64) int64 {
	b.blocks, b.output = b.blocks+blocks, b.output+output
	b.used.Store(b.blocks*outputUnit + b.output)
	return b.blocks
}

// learn moves the mean an eighth of the way. Requests without prefill do not count. The caller
// holds the lock.
func (b *Book) learn(tokens int64) {
	mean := b.mean.Load()
	switch {
	case tokens == 0:
	case mean == 0:
		b.mean.Store(tokens)
	default:
		b.mean.Store(mean + (tokens-mean)/8)
	}
}

// Count replaces the entry's number of blocks by the blocks with these keys. A key identifies a
// block together with all blocks before it. The keys must not change until Close. s counts the
// prompt, too; nil: nothing does.
func (e *Entry) Count(keys []uint64, s *Sharing) {
	b := e.book
	if b == nil || e.keys != nil || len(keys) == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e.keys, e.sharing = keys, s
	if s != nil {
		s.note(keys, 1)
	}
	b.counted++
	b.note(keys, 1)
	b.recent.Rise(b.use(int64(b.add(keys))-e.blocks, 0))
	e.blocks = 0
}

// Begun notes that the node has computed the prompt. Later calls of Begun and Assumed do nothing.
func (e *Entry) Begun(now time.Time) { e.ends(seen, now) }

// Assumed notes that the node should have computed the prompt by now. Another goroutine may call
// Assumed between Open and Close.
func (e *Entry) Assumed(now time.Time) { e.ends(assumed, now) }

func (e *Entry) ends(how ending, now time.Time) {
	b := e.book
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	e.waited(how, now)
}

// waited ends the entry's wait for its prompt. The caller holds book.mu. The time of a prompt that
// was not computed counts as far as it has passed.
func (e *Entry) waited(how ending, now time.Time) {
	if e.cost.Elsewhere {
		e.cost.Elsewhere = false
		e.book.elsewhere.Add(-1)
	}
	if !e.prefills {
		return
	}
	e.prefills = false
	b, learned := e.book, int64(e.cost.Learned)
	before := b.underway(now)
	b.prefill.Add(-e.cost.Prefill)
	b.waiting.remove(e, how, now)
	b.count(-learned, -1)
	took := before - b.underway(now)
	if how != dropped {
		took = max(took, learned) // a late prompt took longer than learned
	}
	b.computed.Add(took)
}

// count counts prompts more that wait, with their learned time. The caller holds the lock.
func (b *Book) count(learned int64, prompts int32) {
	b.modelled.Store(b.waiting.modelled())
	b.since.Store(int64(b.waiting.byLearned.Sub(epoch)))
	b.due.Store(int64(b.waiting.due.Sub(epoch)))
	b.learned.Add(learned)
	b.pressing.Add(prompts)
}

var epoch = time.Now()

// Generated notes the number of tokens generated so far. expected is the expected length of the
// answer in tokens; 0: unknown. With a known length, output blocks and the blocks that only this
// request has count with the share of the answer that is still to come.
func (e *Entry) Generated(tokens, expected int64) {
	b := e.book
	if b == nil || tokens <= 0 {
		return
	}
	weight := 1.0
	if expected > 0 {
		weight = max(0, 1-float64(tokens)/float64(expected))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	grown := float64((tokens + block.Tokens - 1) / block.Tokens)
	own := float64(b.alone(e.keys)) + float64(e.blocks)
	output := int64(math.Round(outputUnit * (grown*weight - own*(1-weight))))
	b.use(0, output-e.output)
	e.output = output
}

// Close takes the entry's cost from the book and empties the entry. Close of an empty entry does
// nothing.
func (e *Entry) Close(now time.Time) {
	b := e.book
	if b == nil {
		return
	}
	e.Listen(false, now)
	b.mu.Lock()
	defer b.mu.Unlock()
	e.waited(dropped, now)
	gone := e.blocks
	if e.keys != nil {
		if e.sharing != nil {
			e.sharing.note(e.keys, -1)
		}
		b.note(e.keys, -1)
		gone += int64(b.remove(e.keys))
		if b.counted--; b.counted == 0 {
			gone += int64(b.clear())
		}
	}
	b.use(-gone, -e.output)
	e.book, e.cost, e.blocks, e.keys, e.sharing, e.output = nil, Cost{}, 0, nil, nil, 0
}

// Prefill returns how many prompt tokens the node's requests still have to compute at now. Prefill
// takes a lock only if entries have an expected time.
func (b *Book) Prefill(now time.Time) int64 {
	if b.modelled.Load() {
		return b.remaining(now)
	}
	return b.prefill.Load()
}

// Backlog returns how long the node needs at now for the prompts that wait, by their learned
// times.
func (b *Book) Backlog(now time.Time) time.Duration {
	learned := b.learned.Load()
	return time.Duration(max(learned-max(int64(now.Sub(epoch))-b.since.Load(), 0), 0))
}

// Overdue returns how late the first token of the oldest prompt is that waits, by its learned time.
func (b *Book) Overdue(now time.Time) time.Duration {
	if b.learned.Load() <= 0 {
		return 0
	}
	return time.Duration(max(int64(now.Sub(epoch))-b.due.Load(), 0))
}

// WaitingPrompts returns the number of prompts that wait for their computation.
func (b *Book) WaitingPrompts() int32 { return b.pressing.Load() }

// Computed returns the time that the node has spent on prompts until now: the learned time of those
// that it has computed, or the longer one that they took while others waited. A prompt that is
// computed at the moment counts with the time so far. Computed does not fall, except beside a call
// that ends a prompt at the same moment.
func (b *Book) Computed(now time.Time) time.Duration {
	return time.Duration(b.computed.Load() + b.underway(now))
}

// underway returns the part of the waiting prompts' learned time that has passed at now.
func (b *Book) underway(now time.Time) int64 {
	return min(max(int64(now.Sub(epoch))-b.since.Load(), 0), b.learned.Load())
}

// Elsewhere returns the number of requests whose prompts another node computes first.
func (b *Book) Elsewhere() int32 { return b.elsewhere.Load() }

// WaitingTokens returns how many prompt tokens the node's requests had to compute when they were
// sent, until their first tokens.
func (b *Book) WaitingTokens() int64 { return b.prefill.Load() }

// remaining is Prefill for a modelled queue.
func (b *Book) remaining(now time.Time) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return max(b.prefill.Load()-b.waiting.computed(now), 0)
}

// Blocks returns the number of the node's active blocks. Output blocks count with their weight.
func (b *Book) Blocks() float64 {
	return float64(max(b.used.Load(), 0)) / outputUnit
}

// MayShare returns false if no leading block of the prompts with this mark is active at the node.
// MayShare spares Shared for most nodes of a large fleet.
func (b *Book) MayShare(m Mark) bool { return b.present.Load()&uint32(m) != 0 }

// Shared returns how many leading blocks of a prompt are active at the node.
func (b *Book) Shared(keys []uint64) int {
	if len(keys) == 0 || !b.firsts.has(keys[0]) {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.shared(keys)
}

// Mean returns the moving mean of the uncached prompt tokens of the node's requests that have some;
// 0: there were none.
func (b *Book) Mean() int64 { return b.mean.Load() }

// Recent returns the most active blocks that the node had in the last one to two windows of a Peak.
func (b *Book) Recent(now time.Time) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.recent.Since(now, b.blocks)
}

// Empty says whether the book has no load.
func (b *Book) Empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.prefill.Load() == 0 && b.blocks == 0 && b.output == 0 &&
		len(b.runs) == 0 && b.elsewhere.Load() == 0 && b.waiting.head == nil && b.present.Load() == 0
}
