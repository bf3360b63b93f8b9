package evict

// arc is ARC (Megiddo and Modha, FAST 2003). ARC has two lists of keys: recent ones, which were
// seen once, and frequent ones. ARC also remembers the names of as many evicted keys as it holds.
// If an evicted key is requested again, the boundary moves in favour of its former list.
type arc struct {
	*lists
	capacity, target int // target is the target size of recent
}

const (
	arcRecent       = iota // T1
	arcFrequent            // T2
	arcRecentLeft          // B1
	arcFrequentLeft        // B2
)

func newARC(capacity, keys int) *arc { return &arc{lists: newLists(4, keys), capacity: capacity} }

func (p *arc) access(key uint32) bool {
	switch p.in[key] {
	case arcRecent, arcFrequent:
		p.move(arcFrequent, key)
		return true
	case arcRecentLeft:
		p.target = min(p.target+max(p.size[arcFrequentLeft]/p.size[arcRecentLeft], 1), p.capacity)
		p.replace(false)
		p.move(arcFrequent, key)
	case arcFrequentLeft:
		p.target = max(p.target-max(p.size[arcRecentLeft]/p.size[arcFrequentLeft], 1), 0)
		p.replace(true)
		p.move(arcFrequent, key)
	default:
		p.makeRoom()
		p.push(arcRecent, key)
	}
	return false
}

// makeRoom makes room for a key that is not remembered.
func (p *arc) makeRoom() {
	recent := p.size[arcRecent] + p.size[arcRecentLeft]
	all := recent + p.size[arcFrequent] + p.size[arcFrequentLeft]
	switch {
	case recent == p.capacity && p.size[arcRecent] == p.capacity:
		p.pop(arcRecent)
	case recent == p.capacity:
		p.pop(arcRecentLeft)
		p.replace(false)
	case all >= p.capacity:
		if all == 2*p.capacity {
			p.pop(arcFrequentLeft)
		}
		p.replace(false)
	}
}

// replace evicts a key and remembers its name, if the cache is full.
func (p *arc) replace(frequentLeft bool) {
	if p.len() < p.capacity {
		return
	}
	if n := p.size[arcRecent]; n > 0 && (n > p.target || frequentLeft && n == p.target) || p.size[arcFrequent] == 0 {
		p.push(arcRecentLeft, p.pop(arcRecent))
	} else {
		p.push(arcFrequentLeft, p.pop(arcFrequent))
	}
}

func (p *arc) has(key uint32) bool { return p.in[key] <= arcFrequent }
func (p *arc) len() int            { return p.size[arcRecent] + p.size[arcFrequent] }
