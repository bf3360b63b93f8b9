package evict

// sieve is SIEVE (Zhang et al., NSDI 2024). SIEVE is a FIFO queue with a hand that moves from the
// oldest to the newest key. The hand spares keys that were used since it last passed, and does not
// move them.
type sieve struct {
	*lists
	capacity int
	visited  []bool // by key
	hand     uint32
	placed   bool // the hand points to a key
}

func newSieve(capacity, keys int) *sieve {
	return &sieve{lists: newLists(1, keys), capacity: capacity, visited: make([]bool, keys)}
}

func (p *sieve) access(key uint32) bool {
	if p.has(key) {
		p.visited[key] = true
		return true
	}
	if p.size[0] == p.capacity {
		p.evict()
	}
	p.push(0, key)
	p.visited[key] = false
	return false
}

func (p *sieve) evict() {
	at, ok := p.hand, p.placed
	if !ok {
		at = p.last(0)
	}
	for p.visited[at] {
		p.visited[at] = false
		if at, ok = p.before(at); !ok {
			at = p.last(0)
		}
	}
	p.hand, p.placed = p.before(at)
	p.remove(at)
}

func (p *sieve) has(key uint32) bool { return p.in[key] == 0 }
func (p *sieve) len() int            { return p.size[0] }
