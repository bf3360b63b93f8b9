package evict

// lru evicts the least recently used key.
type lru struct {
	*lists
	capacity int
}

func newLRU(capacity, keys int) *lru { return &lru{newLists(1, keys), capacity} }

func (p *lru) access(key uint32) bool {
	if p.has(key) {
		p.move(0, key)
		return true
	}
	if p.size[0] == p.capacity {
		p.pop(0)
	}
	p.push(0, key)
	return false
}

func (p *lru) has(key uint32) bool { return p.in[key] == 0 }
func (p *lru) len() int            { return p.size[0] }
