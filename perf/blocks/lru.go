package blocks

import (
	"container/list"
	"slices"
)

// lru is a node's cache: a list of blocks, the most recently used first.
type lru struct {
	capacity int // 0: no bound
	stored   int
	at       map[uint64]*list.Element
	order    list.List // of keys
}

func newLRU(capacity int) *lru {
	return &lru{capacity: capacity, at: map[uint64]*list.Element{}}
}

// leading returns how many leading blocks of a prompt are held. A block is held only together with
// all blocks before it.
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

// take uses a prompt of which the first held blocks are in the cache. take returns the removed
// blocks.
func (l *lru) take(prompt []uint64, held int) (removed []uint64) {
	l.use(prompt[:held])
	for l.capacity > 0 && len(l.at)+len(prompt)-held > l.capacity && len(l.at) > held {
		key := l.order.Remove(l.order.Back()).(uint64)
		delete(l.at, key)
		removed = append(removed, key)
	}
	l.use(prompt)
	l.stored += len(prompt) - held
	return removed
}

// use makes blocks the most recently used, and adds those that are not there. The first block
// counts as used last, so it will be evicted after all later blocks.
func (l *lru) use(keys []uint64) {
	for _, key := range slices.Backward(keys) {
		if at, ok := l.at[key]; ok {
			l.order.MoveToFront(at)
		} else {
			l.at[key] = l.order.PushFront(key)
		}
	}
}
