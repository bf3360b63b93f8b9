package residency

// A sweep removes the places of departed or cleared nodes from all holders of their table. Each
// Apply does a part of the sweep.
const (
	sweepStep     = 8 // rows and buckets per hold of the lock
	sweepPerBlock = 1 // and additionally for each block of the events
)

// sweep is the state of a shard's sweep.
type sweep struct {
	nodes  uint64 // places being swept; 0 = none
	rows   int    // rows still to sweep, from the last one on; rows are reused in the opposite order
	bucket int    // the next bucket, after the rows
	slots  *slots // the map that the bucket belongs to
}

// sweepSome continues a due sweep by up to n rows and buckets.
func (x *Index) sweepSome(n int) {
	shard, unswept := x.unswept.first()
	if !unswept {
		return
	}
	s := &x.shards[shard]
	t := s.table.Load()
	if s.sweep.nodes == 0 {
		s.sweep = sweep{nodes: s.left, rows: t.top}
	}
	before := t.blocks
	done := s.sweep.step(t, n)
	x.held += t.blocks - before
	if !done {
		return
	}
	s.left &^= s.sweep.nodes
	s.sweep = sweep{}
	if s.left == 0 {
		x.unswept.remove(shard)
	}
}

// step sweeps up to n rows and buckets. step returns true when the sweep is done.
func (s *sweep) step(t *holderTable, n int) bool {
	for ; s.rows > 0; s.rows-- {
		if n--; n < 0 {
			return false
		}
		t.sweepRow(s.rows-1, s.nodes)
	}
	m := t.slots.Load()
	if m != s.slots {
		s.slots, s.bucket = m, 0
	}
	for ; s.bucket < len(m.buckets); s.bucket++ {
		if n--; n < 0 {
			return false
		}
		t.sweepBucket(&m.buckets[s.bucket], s.nodes)
	}
	return true
}

// sweepAll sweeps all tables at once.
func (x *Index) sweepAll() {
	for shard, unswept := x.unswept.first(); unswept; shard, unswept = x.unswept.first() {
		s := &x.shards[shard]
		t := s.table.Load()
		s.sweep = sweep{}
		x.sweepSome(t.top + len(t.slots.Load().buckets))
	}
}
