package evict

// family knows which blocks follow one another, and so which are leaves: blocks
// after which nothing is held.
type family struct {
	parent   []uint32 // by key; itself: none
	children []uint32 // by key: how many of its children are held
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

// leafSearch bounds how many keys from the back of a list are looked at for a
// leaf. Requests are used tail first, so that the last key nearly always is one.
const leafSearch = 8

// leaf is the least recently used leaf at the back of a list that is not the
// parent of key; false where there is none.
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

// leafLRU is LRU, but of a request the last block is used first and the first
// block last, and only leaves are evicted. So a conversation is shortened from
// its end, and what is left of it can be loaded.
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

// Store adds what is missing in order, until nothing is left to evict but what comes before it.
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

// count returns how many leading blocks are held, and how many in all.
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
