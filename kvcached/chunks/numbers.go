package chunks

import (
	"encoding/binary"

	"github.com/cognitora/dataplane/kv/block"
)

// numbers gives keys small numbers, from 1, while somebody holds them, and keeps a value with each.
// It has at most maxOrigins keys.
type numbers[K comparable, V any] struct {
	byKey map[K]uint32
	list  []held[K, V]
	free  []uint32
}

type held[K comparable, V any] struct {
	key   K
	value V // zero at first
	holds int
}

func newNumbers[K comparable, V any]() numbers[K, V] {
	return numbers[K, V]{byKey: map[K]uint32{}, list: make([]held[K, V], 1)}
}

// hold returns the number of a key and keeps it until drop; false: there are too many keys.
func (n *numbers[K, V]) hold(k K) (uint32, bool) {
	i, ok := n.byKey[k]
	if !ok {
		switch last := len(n.free) - 1; {
		case last >= 0:
			i, n.free = n.free[last], n.free[:last]
		case len(n.list) > maxOrigins:
			return 0, false
		default:
			i = uint32(len(n.list))
			n.list = append(n.list, held[K, V]{})
		}
		n.list[i].key = k
		n.byKey[k] = i
	}
	n.list[i].holds++
	return i, true
}

func (n *numbers[K, V]) drop(i uint32) {
	h := &n.list[i]
	if h.holds--; h.holds == 0 {
		delete(n.byKey, h.key)
		*h = held[K, V]{}
		n.free = append(n.free, i)
	}
}

func (n *numbers[K, V]) at(i uint32) *held[K, V] { return &n.list[i] }

// remember sets a value in a map of at most so many keys. A further key takes the place of any
// other.
func remember[K comparable, V any](all map[K]V, most int, k K, v V) {
	if _, known := all[k]; !known && len(all) >= most {
		for other := range all {
			delete(all, other)
			break
		}
	}
	all[k] = v
}

// queue is the idle chunks, the oldest first. Each has a link, which keeps the chunk's parent
// meanwhile: the chunk has the number of the link in its place (Table.parent).
type queue struct {
	links []link // link 0 is before the first and after the last one
	free  []uint32
}

type link struct {
	parent        block.Name
	chunk         ref
	before, after uint32
}

func newQueue() queue { return queue{links: make([]link, 1)} }

func (q *queue) len() int   { return len(q.links) - 1 - len(q.free) }
func (q *queue) first() ref { return q.links[q.links[0].after].chunk }

func (q *queue) add(r ref, h *chunk) {
	var n uint32
	if last := len(q.free) - 1; last >= 0 {
		n, q.free = q.free[last], q.free[:last]
	} else {
		n = uint32(len(q.links))
		q.links = append(q.links, link{})
	}
	last := q.links[0].before
	q.links[n] = link{h.place, r, last, 0}
	q.links[last].after, q.links[0].before = n, n
	h.place = block.Name{}
	binary.LittleEndian.PutUint32(h.place[:], n)
	h.put(h.get() | linked)
}

func (q *queue) remove(h *chunk) {
	n := h.link()
	l := &q.links[n]
	h.place = l.parent
	h.put(h.get() &^ linked)
	q.links[l.before].after, q.links[l.after].before = l.after, l.before
	q.free = append(q.free, n)
}
