package tokens

import "math"

// bpe is byte-level BPE. bpe turns words into ids.
type bpe struct {
	bytes  [256]uint32 // id of each byte
	words  words
	merges pairs
	starts []pair // merges of two bytes, indexed by both; the merging of every word begins with these merges
}

// symbol is a token while it is being merged.
type symbol struct {
	id         uint32
	prev, next int32 // indices in the word; -1: none
}

// few is the length in bytes up to which the best merge is found by scanning all. Longer words use
// a heap.
const few = 48

// scratch is the memory of one encoding. One goroutine at a time uses a scratch.
type scratch struct {
	ids     []uint32
	ranks   []uint32
	symbols []symbol
	heap    []candidate
	chunk   chunk

	longest int  // bytes; a longer word is not encoded
	over    bool // a longer word was found
}

const noRank = math.MaxUint32

// append appends the ids of one word.
func (b *bpe) append(dst []uint32, word string, s *scratch) []uint32 {
	if id, ok := b.words.find(word); ok {
		return append(dst, id)
	}
	if len(word) > s.longest {
		s.over = true
		return dst
	}
	if len(word) > few {
		return b.long(dst, word, s)
	}
	return b.short(dst, word, s)
}

// short merges the pair of the lowest rank, or the first of several equal pairs, until no pair is
// left.
func (b *bpe) short(dst []uint32, word string, s *scratch) []uint32 {
	ids, ranks := s.ids[:0], s.ranks[:0]
	for i := range len(word) {
		ids = append(ids, b.bytes[word[i]])
	}
	for i := range len(ids) - 1 {
		ranks = append(ranks, b.start(word[i], word[i+1]).rank)
	}
	for {
		best, at := uint32(noRank), -1
		for i, r := range ranks {
			if r < best {
				best, at = r, i
			}
		}
		if at < 0 {
			break
		}
		ids[at] = b.merges.merged(ids[at], ids[at+1])
		ids = append(ids[:at+1], ids[at+2:]...)
		ranks = append(ranks[:at], ranks[at+1:]...)
		if at < len(ranks) {
			ranks[at] = b.merges.rank(ids[at], ids[at+1])
		}
		if at > 0 {
			ranks[at-1] = b.merges.rank(ids[at-1], ids[at])
		}
	}
	s.ids, s.ranks = ids, ranks
	return append(dst, ids...)
}

// start returns the merge of two bytes.
func (b *bpe) start(left, right byte) *pair { return &b.starts[int(left)<<8|int(right)] }

// findStarts fills the merges of two bytes.
func (b *bpe) findStarts() {
	b.starts = make([]pair, 1<<16)
	for i := range b.starts {
		left, right := b.bytes[i>>8], b.bytes[i&0xff]
		b.starts[i] = pair{rank: b.merges.rank(left, right), merged: b.merges.merged(left, right)}
	}
}

// candidate is a pair that may be merged. candidate counts while its two symbols are unchanged.
type candidate struct {
	rank        uint32
	at          int32
	left, right uint32
}

func (c candidate) before(o candidate) bool {
	return c.rank < o.rank || c.rank == o.rank && c.at < o.at
}

// long does the same as short, in n log n steps. long is for long words, such as a line of dashes.
func (b *bpe) long(dst []uint32, word string, s *scratch) []uint32 {
	sym := s.symbols[:0]
	for i := range len(word) {
		sym = append(sym, symbol{b.bytes[word[i]], int32(i - 1), int32(i + 1)})
	}
	sym[len(sym)-1].next = -1
	s.heap = s.heap[:0]
	for i := range len(sym) - 1 {
		if p := b.start(word[i], word[i+1]); p.rank != noRank {
			s.push(candidate{p.rank, int32(i), sym[i].id, sym[i+1].id})
		}
	}
	const gone = math.MaxUint32
	for len(s.heap) > 0 {
		c := s.pop()
		left := &sym[c.at]
		if left.id != c.left || left.next < 0 || sym[left.next].id != c.right {
			continue
		}
		right := &sym[left.next]
		left.id, right.id, left.next = b.merges.merged(c.left, c.right), gone, right.next
		if left.next >= 0 {
			sym[left.next].prev = c.at
			b.offer(s, sym, c.at)
		}
		if left.prev >= 0 {
			b.offer(s, sym, left.prev)
		}
	}
	for i := int32(0); i >= 0; i = sym[i].next {
		dst = append(dst, sym[i].id)
	}
	s.symbols = sym
	return dst
}

func (b *bpe) offer(s *scratch, sym []symbol, at int32) {
	left, right := sym[at].id, sym[sym[at].next].id
	if rank := b.merges.rank(left, right); rank != noRank {
		s.push(candidate{rank, at, left, right})
	}
}

func (s *scratch) push(c candidate) {
	s.heap = append(s.heap, c)
	for i := len(s.heap) - 1; i > 0; {
		up := (i - 1) / 2
		if !s.heap[i].before(s.heap[up]) {
			return
		}
		s.heap[i], s.heap[up] = s.heap[up], s.heap[i]
		i = up
	}
}

func (s *scratch) pop() candidate {
	h := s.heap
	top, last := h[0], len(h)-1
	h[0] = h[last]
	h = h[:last]
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			break
		}
		if down+1 < last && h[down+1].before(h[down]) {
			down++
		}
		if !h[down].before(h[i]) {
			break
		}
		h[i], h[down] = h[down], h[i]
		i = down
	}
	s.heap = h
	return top
}

// pairs is a hash table from two ids to the rank of their merge and the resulting id.
type pairs struct {
	slots []pair
}

type pair struct {
	key    uint64 // 0: empty; else the ids plus one
	rank   uint32
	merged uint32
}

func newPairs(n int) pairs { return pairs{slots: make([]pair, tableSize(n))} }

func (p *pairs) slot(a, b uint32) (*pair, uint64) {
	key := (uint64(a)<<32 | uint64(b)) + 1
	for i := place(key*spread, len(p.slots)); ; i = (i + 1) & (len(p.slots) - 1) {
		if s := &p.slots[i]; s.key == key || s.key == 0 {
			return s, key
		}
	}
}

// put adds a pair. put keeps the first rank of a pair.
func (p *pairs) put(a, b, rank, merged uint32) bool {
	s, key := p.slot(a, b)
	if s.key != 0 {
		return false
	}
	*s = pair{key, rank, merged}
	return true
}

func (p *pairs) rank(a, b uint32) uint32 {
	if s, _ := p.slot(a, b); s.key != 0 {
		return s.rank
	}
	return noRank
}

func (p *pairs) merged(a, b uint32) uint32 {
	s, _ := p.slot(a, b)
	return s.merged
}
