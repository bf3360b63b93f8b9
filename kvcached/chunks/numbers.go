package chunks

// numbers gives keys small numbers, from 1, while somebody holds them, and keeps a value with each.
// It has at most maxFamilies keys.
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
		case len(n.list) > maxFamilies:
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

// list is a list of chunks, linked by their numbers.
type list struct {
	first, last uint32
	n           int
}

func (l *list) add(all []chunk, i uint32) {
	all[i].prev, all[i].next = l.last, 0
	if l.last != 0 {
		all[l.last].next = i
	} else {
		l.first = i
	}
	l.last = i
	l.n++
}

func (l *list) remove(all []chunk, i uint32) {
	h := &all[i]
	if h.prev != 0 {
		all[h.prev].next = h.next
	} else {
		l.first = h.next
	}
	if h.next != 0 {
		all[h.next].prev = h.prev
	} else {
		l.last = h.prev
	}
	h.prev, h.next = 0, 0
	l.n--
}
