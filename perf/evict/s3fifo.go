package evict

// s3fifo is S3-FIFO (Yang et al., SOSP 2023). New keys pass through a small FIFO queue of a tenth
// of the capacity. Keys used more than once in the small queue move to the main queue. The other
// keys leave, and their names are remembered, as many as the main queue holds keys. A key whose
// name is remembered goes to the main queue.
type s3fifo struct {
	*lists
	capacity, small int
	uses            []uint8 // by key, at most 3
}

const (
	s3Small = iota
	s3Main
	s3Ghost
)

func newS3FIFO(capacity, keys int) *s3fifo {
	return &s3fifo{lists: newLists(3, keys), capacity: capacity, small: max(capacity/10, 1), uses: make([]uint8, keys)}
}

func (p *s3fifo) access(key uint32) bool {
	if p.has(key) {
		p.uses[key] = min(p.uses[key]+1, 3)
		return true
	}
	ghost := p.in[key] == s3Ghost
	if ghost {
		p.remove(key)
	}
	for p.len() >= p.capacity {
		p.evict()
	}
	p.uses[key] = 0
	if ghost {
		p.push(s3Main, key)
	} else {
		p.push(s3Small, key)
	}
	return false
}

func (p *s3fifo) evict() {
	if p.size[s3Small] >= p.small || p.size[s3Main] == 0 {
		p.evictSmall()
	} else {
		p.evictMain()
	}
}

// evictSmall moves used keys on until one has left. evictSmall evicts from the main queue if the
// main queue is above its size.
func (p *s3fifo) evictSmall() {
	for p.size[s3Small] > 0 {
		key := p.pop(s3Small)
		if p.uses[key] <= 1 {
			p.push(s3Ghost, key)
			if p.size[s3Ghost] > p.capacity-p.small {
				p.pop(s3Ghost)
			}
			return
		}
		p.uses[key] = 0
		p.push(s3Main, key)
		if p.size[s3Main] > p.capacity-p.small {
			p.evictMain()
			return
		}
	}
}

func (p *s3fifo) evictMain() {
	for {
		key := p.pop(s3Main)
		if p.uses[key] == 0 {
			return
		}
		p.uses[key]--
		p.push(s3Main, key)
	}
}

func (p *s3fifo) has(key uint32) bool { return p.in[key] <= s3Main }
func (p *s3fifo) len() int            { return p.size[s3Small] + p.size[s3Main] }
