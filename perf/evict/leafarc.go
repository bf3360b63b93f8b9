package evict

// leafARC is leafLRU in two parts, as ARC has them: recent blocks were used by
// one request, frequent ones by several. Where the boundary between the two
// lies follows from the names of what was evicted, as many as the cache holds
// blocks: one that comes back moves the boundary towards the side that it was on.
//
// Unlike ARC it begins with most of the room for recent blocks, and gives
// frequent blocks twice the weight: a prompt's blocks come back together, so
// that each return moves the boundary by a prompt's length.
type leafARC struct {
	*lists
	family
	capacity, target int // target size of recent
}

// leafARCStart is the part of the room that recent blocks have at first, and
// leafARCWeight what a frequent block's return counts.
const (
	leafARCStart  = 0.8
	leafARCWeight = 2
)

func newLeafARC(capacity, keys int) *leafARC {
	return &leafARC{lists: newLists(4, keys), family: newFamily(keys), capacity: capacity,
		target: int(leafARCStart * float64(capacity))}
}

func (p *leafARC) Request(keys []uint32) (leading, hits int) {
	leading, hits = count(p, keys)
	for i := len(keys) - 1; i >= 0; i-- {
		if p.has(keys[i]) {
			p.move(arcFrequent, keys[i])
		}
	}
	p.Store(keys)
	for i := len(keys) - 1; i >= 0; i-- {
		if p.has(keys[i]) {
			p.move(p.in[keys[i]], keys[i])
		}
	}
	return leading, hits
}

func (p *leafARC) Store(keys []uint32) {
	for i, k := range keys {
		if p.has(k) {
			continue
		}
		if i > 0 {
			p.parent[k] = keys[i-1]
		}
		list := p.recall(k)
		if p.Len() == p.capacity && !p.evict(k) {
			return
		}
		p.push(list, k)
		p.held(k)
	}
}

// recall moves the boundary if key was evicted not long ago, and returns the part that it goes to.
func (p *leafARC) recall(key uint32) uint8 {
	was := p.in[key]
	switch was {
	case arcRecentLeft:
		p.target = min(p.target+max(p.size[arcFrequentLeft]/p.size[arcRecentLeft], 1), p.capacity)
	case arcFrequentLeft:
		p.target = max(p.target-leafARCWeight*max(p.size[arcRecentLeft]/p.size[arcFrequentLeft], 1), 0)
	default:
		return arcRecent
	}
	p.remove(key)
	return arcFrequent
}

// evict removes a leaf from the part that is too large, else from the other.
func (p *leafARC) evict(key uint32) bool {
	list := uint8(arcRecent)
	if p.size[arcRecent] <= p.target {
		list = arcFrequent
	}
	leaf, ok := p.leaf(p.lists, list, key)
	if !ok {
		list = arcRecent + arcFrequent - list
		leaf, ok = p.leaf(p.lists, list, key)
	}
	if !ok {
		return false
	}
	p.remove(leaf)
	p.gone(leaf)
	p.push(list+arcRecentLeft, leaf)
	if p.size[arcRecentLeft]+p.size[arcFrequentLeft] > p.capacity {
		p.forget()
	}
	return true
}

// forget drops the oldest name of the longer list.
func (p *leafARC) forget() {
	if p.size[arcRecentLeft] > p.size[arcFrequentLeft] {
		p.pop(arcRecentLeft)
	} else {
		p.pop(arcFrequentLeft)
	}
}

func (p *leafARC) has(key uint32) bool { return p.in[key] <= arcFrequent }
func (p *leafARC) Len() int            { return p.size[arcRecent] + p.size[arcFrequent] }
