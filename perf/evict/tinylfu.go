package evict

// tinyLFU is W-TinyLFU (Einziger, Friedman and Manes, ACM TOS 2017) with a fixed window. New keys
// enter an LRU window of 1 %. A key that leaves the window enters the main part only if it was used
// more often than the key that it would replace. The main part is a segmented LRU, with 80 %
// protected.
type tinyLFU struct {
	*lists
	capacity, window, protected int
	seen                        *sketch
}

const (
	lfuWindow = iota
	lfuProbation
	lfuProtected
)

func newTinyLFU(capacity, keys int) *tinyLFU {
	w := max(capacity/100, 1)
	return &tinyLFU{
		lists: newLists(3, keys), capacity: capacity, window: w, protected: (capacity - w) * 8 / 10,
		seen: newSketch(capacity),
	}
}

func (p *tinyLFU) access(key uint32) bool {
	p.seen.add(key)
	switch p.in[key] {
	case lfuWindow:
		p.move(lfuWindow, key)
		return true
	case lfuProbation, lfuProtected:
		p.move(lfuProtected, key)
		if p.size[lfuProtected] > p.protected {
			p.push(lfuProbation, p.pop(lfuProtected))
		}
		return true
	}
	p.push(lfuWindow, key)
	if p.size[lfuWindow] > p.window {
		p.admit(p.pop(lfuWindow))
	}
	return false
}

// admit admits a key that has left the window to the main part, or drops it.
func (p *tinyLFU) admit(key uint32) {
	if p.size[lfuProbation]+p.size[lfuProtected] < p.capacity-p.window {
		p.push(lfuProbation, key)
		return
	}
	list := uint8(lfuProbation)
	if p.size[list] == 0 {
		list = lfuProtected
	}
	if p.size[list] == 0 || p.seen.count(key) <= p.seen.count(p.last(list)) {
		return
	}
	p.pop(list)
	p.push(lfuProbation, key)
}

func (p *tinyLFU) has(key uint32) bool { return p.in[key] != none }
func (p *tinyLFU) len() int            { return p.size[0] + p.size[1] + p.size[2] }

// sketch counts uses approximately. The sketch has 4 rows of counters up to 15, and the least of a
// key's counters is its count. All counters are halved after ten times the capacity of uses.
type sketch struct {
	rows         [4][]uint8
	mask         uint32
	adds, period int
}

func newSketch(capacity int) *sketch {
	n := 64
	for n < 4*capacity {
		n *= 2
	}
	s := &sketch{mask: uint32(n - 1), period: 10 * capacity}
	for i := range s.rows {
		s.rows[i] = make([]uint8, n)
	}
	return s
}

// slot distributes keys by a different odd multiplier in each row.
func (s *sketch) slot(row int, key uint32) uint32 {
	h := (uint64(key) + 1) * [4]uint64{0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f, 0x165667b19e3779f9,
		0xd6e8feb86659fd93}[row]
	h ^= h >> 29
	return uint32(h>>32) & s.mask
}

func (s *sketch) add(key uint32) {
	least := s.count(key)
	for i := range s.rows {
		if c := &s.rows[i][s.slot(i, key)]; *c == least && least < 15 {
			*c++
		}
	}
	if s.adds++; s.adds >= s.period {
		s.adds /= 2
		for i := range s.rows {
			for j := range s.rows[i] {
				s.rows[i][j] /= 2
			}
		}
	}
}

func (s *sketch) count(key uint32) uint8 {
	least := uint8(15)
	for i := range s.rows {
		least = min(least, s.rows[i][s.slot(i, key)])
	}
	return least
}
