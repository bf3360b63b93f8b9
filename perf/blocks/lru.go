package blocks

// lru is a node's cache: a list of blocks, the most recently used first.
type lru struct {
	capacity int // 0: no bound
	stored   int
	at       map[uint64]int32
	entries  []entry // 0 is the list's head
	free     []int32
}

type entry struct {
	key        uint64
	prev, next int32
}

func newLRU(capacity int) *lru {
	return &lru{capacity: capacity, at: map[uint64]int32{}, entries: make([]entry, 1)}
}

// leading returns how many leading blocks of a prompt are held. No block is held without those
// before it.
func (l *lru) leading(prompt []uint64) int {
	low, high := 0, len(prompt)
	for low < high {
		mid := (low + high) / 2
		if _, ok := l.at[prompt[mid]]; ok {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// take uses a prompt whose first held blocks are there, and returns the removed blocks.
func (l *lru) take(prompt []uint64, held int) (removed []uint64) {
	for i := held - 1; i >= 0; i-- {
		at := l.at[prompt[i]]
		l.unlink(at)
		l.push(at)
	}
	for l.capacity > 0 && len(l.at)+len(prompt)-held > l.capacity && len(l.at) > held {
		removed = append(removed, l.evict())
	}
	for i := len(prompt) - 1; i >= held; i-- {
		l.insert(prompt[i])
	}
	// The beginning counts as used last, so it will be evicted after all later blocks.
	for i := held - 1; i >= 0; i-- {
		at := l.at[prompt[i]]
		l.unlink(at)
		l.push(at)
	}
	l.stored += len(prompt) - held
	return removed
}

func (l *lru) evict() uint64 {
	at := l.entries[0].prev
	key := l.entries[at].key
	l.unlink(at)
	delete(l.at, key)
	l.free = append(l.free, at)
	return key
}

// insert adds a block. If the block is there already, after a missing one, it becomes the most
// recently used.
func (l *lru) insert(key uint64) {
	if at, ok := l.at[key]; ok {
		l.unlink(at)
		l.push(at)
		return
	}
	at := int32(len(l.entries))
	if n := len(l.free); n > 0 {
		at, l.free = l.free[n-1], l.free[:n-1]
		l.entries[at].key = key
	} else {
		l.entries = append(l.entries, entry{key: key})
	}
	l.at[key] = at
	l.push(at)
}

func (l *lru) push(at int32) {
	first := l.entries[0].next
	l.entries[at].prev, l.entries[at].next = 0, first
	l.entries[first].prev = at
	l.entries[0].next = at
}

func (l *lru) unlink(at int32) {
	e := l.entries[at]
	l.entries[e.prev].next = e.next
	l.entries[e.next].prev = e.prev
}
