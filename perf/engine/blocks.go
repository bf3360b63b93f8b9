package engine

// grow takes the blocks that q's chunk needs beyond those it holds.
func (s *scheduler) grow(q *sequence) bool {
	blocks := (q.computed + q.chunk + s.cfg.BlockTokens - 1) / s.cfg.BlockTokens
	need := blocks - len(q.held) - q.loose
	if need <= 0 {
		return true
	}
	if !s.cache.take(need) {
		return false
	}
	q.loose += need
	return true
}

func (s *scheduler) free(q *sequence) {
	s.cache.release(q.held, q.loose)
	q.held, q.loose, q.computed = nil, 0, 0
}

// fill hashes the blocks of q that its chunk completed and announces new ones.
func (s *scheduler) fill(q *sequence) {
	full, from := q.computed/s.cfg.BlockTokens, len(q.held)
	if full == from {
		return
	}
	if full > len(q.hashes) {
		q.hashes = s.extend(q, full)
	}
	stored := from
	for i := from; i < full; i++ {
		b, isNew := s.cache.fill(q.hashes[i])
		q.held, q.loose = append(q.held, b), q.loose-1
		if !isNew {
			s.events.stored(q, stored, i, s.cfg.BlockTokens)
			stored = i + 1
		}
	}
	s.events.stored(q, stored, full, s.cfg.BlockTokens)
}

// extend hashes generated blocks up to block full.
func (s *scheduler) extend(q *sequence, full int) []blockHash {
	n := len(q.hashes)
	tokens := q.tokens(n*s.cfg.BlockTokens, full*s.cfg.BlockTokens)
	for ; n < full; n++ {
		var parent *blockHash
		if n > 0 {
			parent = &q.hashes[n-1]
		}
		q.hashes = append(q.hashes, hashBlock(parent, q.salt, tokens[:s.cfg.BlockTokens]))
		tokens = tokens[s.cfg.BlockTokens:]
	}
	return q.hashes
}
