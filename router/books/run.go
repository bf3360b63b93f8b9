package books

import (
	"sync"
	"sync/atomic"
)

// run is a stretch of consecutive blocks that the same active prompts have. A key identifies a
// block together with all blocks before it, so a prompt that has a block of a run has the blocks
// before it in the run, too. The runs of a book form a tree, in which the first key of a run leads
// on from the run before it. Two different blocks with one key make the book's count of blocks
// wrong until no prompt is active.
type run struct {
	keys  []uint64
	users int // active prompts
}

// keptRun is the longest run, in blocks, whose memory is kept for another run.
const keptRun = 4096

var pool = sync.Pool{New: func() any { return new(run) }}

func newRun(keys []uint64, users int) *run {
	r := pool.Get().(*run)
	r.keys, r.users = append(r.keys[:0], keys...), users
	return r
}

func (r *run) free() {
	if cap(r.keys) <= keptRun {
		pool.Put(r)
	}
}

// common returns how many leading blocks the run shares with keys, which begin with the same block.
func (r *run) common(keys []uint64) int {
	n := min(len(r.keys), len(keys))
	if r.keys[n-1] == keys[n-1] {
		return n
	}
	low, high := 1, n-1 // low blocks are equal, block high is not
	for low < high {
		if mid := (low + high) / 2; r.keys[mid] == keys[mid] {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// add counts a prompt among the users of its blocks. add returns how many of the blocks are new.
func (b *Book) add(keys []uint64) (fresh int) {
	defer func() { b.active += fresh }()
	if b.runs == nil {
		b.runs = map[uint64]*run{}
	}
	for at := 0; at < len(keys); {
		r := b.runs[keys[at]]
		if r == nil {
			b.runs[keys[at]] = newRun(keys[at:], 1)
			return len(keys) - at
		}
		n := r.common(keys[at:])
		if n < len(r.keys) {
			b.runs[r.keys[n]] = newRun(r.keys[n:], r.users)
			r.keys = r.keys[:n]
		}
		r.users++
		at += n
	}
	return 0
}

// remove takes back add. remove returns how many blocks no other prompt has.
func (b *Book) remove(keys []uint64) (gone int) {
	defer func() { b.active -= gone }()
	for at := 0; at < len(keys); {
		r := b.runs[keys[at]]
		if r == nil {
			break // keys have collided
		}
		n := len(r.keys)
		if r.users--; r.users == 0 {
			delete(b.runs, keys[at])
			gone += n
			r.free()
		}
		at += n
	}
	return gone
}

// clear removes what colliding keys have left behind once no prompt is active. clear returns the
// number of blocks.
func (b *Book) clear() (gone int) {
	gone, b.active = b.active, 0
	clear(b.runs)
	return gone
}

// shared returns how many leading blocks of a prompt are active.
func (b *Book) shared(keys []uint64) (n int) {
	for n < len(keys) {
		r := b.runs[keys[n]]
		if r == nil {
			break
		}
		common := r.common(keys[n:])
		if n += common; common < len(r.keys) {
			break
		}
	}
	return n
}

// alone returns how many blocks of an active prompt no other active prompt has.
func (b *Book) alone(keys []uint64) (n int) {
	for at := 0; at < len(keys); {
		r := b.runs[keys[at]]
		if r == nil {
			break // keys have collided
		}
		if at += len(r.keys); r.users == 1 {
			n += len(r.keys)
		}
	}
	return n
}

// firsts counts the active prompts by their first block. Prompts of different first blocks may
// share a place. A place without prompts shows without the book's lock that no block is shared.
type firsts [256]atomic.Int32

func (f *firsts) place(key uint64) *atomic.Int32 { return &f[key%uint64(len(f))] }

func (f *firsts) has(key uint64) bool { return f.place(key).Load() > 0 }

// Mark stands for the first block of a prompt. Prompts of different first blocks may have the same
// mark. A prompt without a block has the mark 0.
type Mark uint32

// marks is the number of marks, apart from 0. A mark stands for every marks-th place of firsts.
const marks = 32

// MarkOf returns the mark of a prompt.
func MarkOf(keys []uint64) Mark {
	if len(keys) == 0 {
		return 0
	}
	return 1 << (keys[0] % marks)
}

// note counts n more active prompts with these keys. The caller holds b.mu.
func (b *Book) note(keys []uint64, n int32) {
	b.firsts.place(keys[0]).Add(n)
	mark := uint32(MarkOf(keys))
	for at := keys[0] % marks; at < uint64(len(b.firsts)); at += marks {
		if b.firsts.has(at) {
			b.present.Or(mark)
			return
		}
	}
	b.present.And(^mark)
}
