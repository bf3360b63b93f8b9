package evict

// family knows which blocks follow one another, and therefore which blocks are leaves: no held
// block follows them.
type family struct {
	parent   []uint32 // by key; a key without parent has itself
	children []uint32 // by key: number of its held children
}

func newFamily(keys int) family {
	f := family{parent: make([]uint32, keys), children: make([]uint32, keys)}
	for k := range f.parent {
		f.parent[k] = uint32(k)
	}
	return f
}

func (f *family) held(key uint32) {
	if p := f.parent[key]; p != key {
		f.children[p]++
	}
}

func (f *family) gone(key uint32) {
	if p := f.parent[key]; p != key {
		f.children[p]--
	}
}

// leafSearch is how many keys from the back of a list are searched for a leaf. Requests use their
// blocks from the tail on, so the last key is nearly always a leaf.
const leafSearch = 8

// leaf returns the least recently used leaf at the back of a list, but never the parent of key;
// false if there is none.
func (f *family) leaf(l *lists, list uint8, key uint32) (uint32, bool) {
	if l.size[list] == 0 {
		return 0, false
	}
	at, ok := l.last(list), true
	for n := 0; ok && n < leafSearch; n++ {
		if f.children[at] == 0 && at != f.parent[key] {
			return at, true
		}
		at, ok = l.before(at)
	}
	return 0, false
}

// leafLRU is LRU with two differences. A request's last block is used first, and its first block
// last. Only leaves are evicted. So a conversation is shortened from its end, and the rest of it
// can still be loaded.
type leafLRU struct {
	*lists
	family
	capacity int
}

func newLeafLRU(capacity, keys int) *leafLRU {
	return &leafLRU{lists: newLists(1, keys), family: newFamily(keys), capacity: capacity}
}

func (p *leafLRU) Request(keys []uint32) (leading, hits int) {
	leading, hits = count(p, keys)
	p.touch(keys)
	p.Store(keys)
	p.touch(keys)
	return leading, hits
}

// Store adds the missing blocks in order, until only their predecessors could be evicted.
func (p *leafLRU) Store(keys []uint32) {
	for i, k := range keys {
		if p.has(k) {
			continue
		}
		if i > 0 {
			p.parent[k] = keys[i-1]
		}
		if p.size[0] == p.capacity {
			leaf, ok := p.leaf(p.lists, 0, k)
			if !ok {
				return
			}
			p.remove(leaf)
			p.gone(leaf)
		}
		p.push(0, k)
		p.held(k)
	}
}

func (p *leafLRU) touch(keys []uint32) {
	for i := len(keys) - 1; i >= 0; i-- {
		if p.has(keys[i]) {
			p.move(0, keys[i])
		}
	}
}

func (p *leafLRU) has(key uint32) bool { return p.in[key] == 0 }
func (p *leafLRU) Len() int            { return p.size[0] }

// count returns how many leading blocks are held, and how many in total.
func count(p interface{ has(uint32) bool }, keys []uint32) (leading, hits int) {
	for i, k := range keys {
		if p.has(k) {
			hits++
			if leading == i {
				leading++
			}
		}
	}
	return leading, hits
}
