package evict

// leafARC is leafLRU with ARC's two parts: recent blocks were used by one request, frequent ones by
// several. leafARC remembers as many names of evicted blocks as it holds blocks. If an evicted
// block is requested again, the boundary moves in favour of its former part.
//
// Unlike ARC, leafARC begins with most of the room for recent blocks, and gives frequent blocks
// twice the weight. A prompt's blocks return together, so each return moves the boundary by a
// prompt's length.
type leafARC struct {
	*lists
	family
	capacity, target int // target is the target size of recent
}

// leafARCStart is the initial share of recent blocks. leafARCWeight is how much a frequent block's
// return moves the boundary.
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

// recall moves the boundary if key was evicted recently, and returns the part that the key goes to.
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

// evict removes a leaf from the part that is too large, or else from the other part.
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

// forget drops the oldest name of the longer list of names.
func (p *leafARC) forget() {
	if p.size[arcRecentLeft] > p.size[arcFrequentLeft] {
		p.pop(arcRecentLeft)
	} else {
		p.pop(arcFrequentLeft)
	}
}

func (p *leafARC) has(key uint32) bool { return p.in[key] <= arcFrequent }
func (p *leafARC) Len() int            { return p.size[arcRecent] + p.size[arcFrequent] }
