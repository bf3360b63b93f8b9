package evict

// lists are linked lists of keys. Each key is in at most one list.
type lists struct {
	links []link  // by key; the lists' heads follow
	in    []uint8 // by key: the key's list, or none
	size  []int   // by list
	keys  int
}

type link struct{ prev, next uint32 }

const none = 255

func newLists(count, keys int) *lists {
	l := &lists{links: make([]link, keys+count), in: make([]uint8, keys), size: make([]int, count), keys: keys}
	for i := range l.in {
		l.in[i] = none
	}
	for i := range count {
		h := uint32(keys + i)
		l.links[h] = link{h, h}
	}
	return l
}

// push puts a key that is in no list at the front of list.
func (l *lists) push(list uint8, key uint32) {
	head := uint32(l.keys) + uint32(list)
	first := l.links[head].next
	l.links[key] = link{head, first}
	l.links[first].prev, l.links[head].next = key, key
	l.in[key] = list
	l.size[list]++
}

// remove removes a key from its list.
func (l *lists) remove(key uint32) {
	k := l.links[key]
	l.links[k.prev].next, l.links[k.next].prev = k.next, k.prev
	l.size[l.in[key]]--
	l.in[key] = none
}

// move moves a key from its list to the front of list.
func (l *lists) move(list uint8, key uint32) {
	l.remove(key)
	l.push(list, key)
}

// last returns the key at the back of a list, which must not be empty.
func (l *lists) last(list uint8) uint32 { return l.links[l.keys+int(list)].prev }

// before returns the next key towards the front; false at the front.
func (l *lists) before(key uint32) (uint32, bool) {
	p := l.links[key].prev
	return p, int(p) < l.keys
}

// pop removes and returns the key at the back of a list, which must not be empty.
func (l *lists) pop(list uint8) uint32 {
	key := l.last(list)
	l.remove(key)
	return key
}
