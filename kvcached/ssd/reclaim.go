package ssd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// spareDivisor bounds reclaim's copies to a fifth of a segment. So at the cap, a byte from a writer
// causes at most 1/(1-1/5) = 1.25 bytes of writes.
const spareDivisor = 5

// reclaimSegments frees one segment after the other while there is no room for a new one.
func (t *Tier) reclaimSegments() {
	select {
	case <-t.ready:
	case <-t.stop.Done():
		return
	}
	look := time.NewTicker(squeezeLook)
	defer look.Stop()
	for {
		t.look()
		var again <-chan time.Time
		for t.stop.Err() == nil && !t.roomFor(max(t.segmentSize(), t.squeeze.wanted.Load()), false) {
			t.reclaiming.Store(true)
			t.dropSpares(t.segmentSize() / 2) // the rows may have grown into that space
			freed := t.reclaimOne()
			t.reclaiming.Store(false)
			t.tried(freed)
			if !freed {
				again = time.After(reclaimRetry)
				break
			}
		}
		select {
		case <-t.reclaim:
		case <-again:
		case <-look.C:
		case <-t.stop.Done():
			return
		}
	}
}

// reclaimRetry is the pause after an attempt that freed no segment, as when all segments are still
// written to.
const reclaimRetry = 50 * time.Millisecond

// reclaimOne frees a segment. false: no segment can be freed.
func (t *Tier) reclaimOne() bool {
	s, all := t.victim(false)
	if s == nil {
		t.sealFull()
		if !t.checkpoint() {
			return false
		}
		if s, all = t.victim(true); s == nil {
			return false
		}
	}
	defer t.release(s)
	table, err := t.readTable(t.stop, s)
	if err != nil {
		return false
	}
	moves := t.copyOut(s, table, all)
	if !t.settle(s, moves) || t.stop.Err() != nil || !t.evict(s, table) {
		return false
	}
	// The rows of the copies must survive before the originals go.
	if t.stop.Err() != nil || !t.checkpoint() {
		return false
	}
	t.stats.reclaimed.Add(1)
	t.retire(s)
	return true
}

// passMax bounds the segments that reclaim passes over in search of one with few used records.
const passMax = 16

// victim chooses and acquires the segment to free. It prefers the emptiest segment if all of its
// live records may be copied; all is then true. Its second choice is the oldest segment whose used
// records may be copied. Segments that it passes over get a second chance: they go to the end of
// the line, and their records must be used anew. If neither exists and any is set, it chooses the
// oldest segment. If any is not set, it chooses none, and the caller moves the checkpoint first.
func (t *Tier) victim(any bool) (best *segment, all bool) {
	line := t.reclaimable()
	for _, s := range line {
		if s.live.Load() <= s.size.Load()/spareDivisor && (best == nil || s.live.Load() < best.live.Load()) {
			best, all = s, true
		}
	}
	for i := 0; best == nil && i < min(passMax, len(line)); i++ {
		if line[i].used.Load() <= line[i].size.Load()/spareDivisor {
			best = line[i]
			for _, passed := range line[:i] {
				t.spare(passed)
			}
		}
	}
	switch {
	case len(line) == 0, best == nil && !any:
		return nil, false
	case best == nil:
		best = line[0]
	}
	return t.segs.acquire(best.id), all
}

// reclaimable lists the segments that the checkpoint has passed, in the order of reclaim.
func (t *Tier) reclaimable() []*segment {
	t.log.mu.Lock()
	busy := map[*segment]bool{t.log.active: true}
	for _, s := range t.log.open {
		busy[s] = true
	}
	t.log.mu.Unlock()
	line := slices.DeleteFunc(t.segs.all(), func(s *segment) bool { return busy[s] })
	slices.SortStableFunc(line, func(a, b *segment) int { return cmp.Compare(a.rank, b.rank) })
	return line
}

// spare sends s to the end of the line and marks its records as not used.
func (t *Tier) spare(s *segment) {
	t.log.mu.Lock()
	s.rank = uint64(t.log.segment)
	t.log.mu.Unlock()
	table, err := t.readTable(t.stop, s)
	if err != nil {
		return
	}
	for i := range table {
		hash := t.index.hash(&table[i].addr)
		if e, ok := t.index.get(hash); ok && lies(&e, s, &table[i]) {
			t.use(hash, false)
		}
	}
}

// readTable returns the records of s, from its footer or, without one, from their headers.
func (t *Tier) readTable(ctx context.Context, s *segment) ([]tableEntry, error) {
	table, err := footerOf(s)
	if err == nil {
		return table, nil
	}
	table = nil
	err = t.walk(ctx, s, 1, s.pageCount(), false, func(h *header, _ []byte, _ error) {
		table = append(table, tableEntry{addr: h.Addr, seq: h.seq, page: h.page, size: uint32(h.size), crc: h.crc,
			flags: h.flags})
	})
	return table, err
}

func footerOf(s *segment) ([]tableEntry, error) {
	last := alignedBytes(page)
	pages := s.pageCount()
	if pages < 2 {
		return nil, errSegment
	}
	if err := s.f.ReadAt([][]byte{last}, int64(pages-1)*page); err != nil {
		return nil, err
	}
	first, n, sum, err := decodeLast(last, s.id, s.salt, pages)
	if err != nil {
		return nil, err
	}
	b := alignedBytes(int(footerPages(n)-1) * page)
	if n > 0 {
		if err := s.f.ReadAt([][]byte{b}, int64(first)*page); err != nil {
			return nil, err
		}
	}
	return decodeTable(b, n, sum, first)
}

// move is a record that is copied but not published.
type move struct {
	old    entry
	h      header
	flight *flight
}

// copyOut copies the used records of s, or all its live records if all is set. Records are used if
// they were read since they were written or last spared.
func (t *Tier) copyOut(s *segment, table []tableEntry, all bool) (moves []move) {
	allowed := s.size.Load() / spareDivisor
	var buf []byte
	for i := range table {
		if t.stop.Err() != nil {
			break
		}
		e, ok := t.index.get(t.index.hash(&table[i].addr))
		if !ok || !lies(&e, s, &table[i]) || t.expired(e.expires) || !all && !e.used || e.bytes() > allowed {
			continue
		}
		if need := roundUp(storedSize(int(e.size), e.flags)); cap(buf) < need {
			buf = alignedBytes(need)
		}
		m, err := t.copyRecord(s, &table[i], e.hash, buf)
		switch {
		case err == nil:
			moves = append(moves, m)
			allowed -= e.bytes()
			t.pace.wait(t.stop, e.bytes())
		case errors.Is(err, errNoSpace), errors.Is(err, ErrIO):
			return moves
		case errors.Is(err, errRecord):
			t.dropDamaged(&table[i].addr, &e, err)
		}
	}
	return moves
}

// lies tells whether e is the entry of the table's record in s.
func lies(e *entry, s *segment, r *tableEntry) bool {
	return e.state == stateLive && e.segment == s.id && e.page == r.page && e.seq == r.seq
}

// copyRecord appends a copy of the record to the log. Its flight lasts until settle, so the
// checkpoint stays before the copy.
func (t *Tier) copyRecord(s *segment, r *tableEntry, hash uint64, buf []byte) (m move, err error) {
	head := t.pages.Get().(*[page]byte)
	defer t.pages.Put(head)
	payload, err := t.readRecord(t.stop, s, &m.h, head[:], place{s.id, r.page}, int(r.size), r.flags, buf[:r.size])
	if err != nil {
		return m, err
	}
	if m.h.Addr != r.addr || m.h.seq != r.seq {
		return m, fmt.Errorf("%w: it is another block's", errRecord)
	}
	m.h.Key, m.h.Attr = append([]byte(nil), m.h.Key...), append([]byte(nil), m.h.Attr...)
	if m.flight, m.old, err = t.allocateCopy(s, r, hash); err != nil {
		return m, err
	}
	m.h.place, m.h.salt, m.h.Expires = m.flight.place, m.flight.seg.salt, m.old.expires
	var body []byte
	if m.h.flags == 0 {
		body = buf[:roundUp(m.h.size)]
		clear(body[m.h.size:])
	}
	if err := t.writeRecord(t.stop, m.flight.seg, &m.h, payload, body); err != nil {
		t.land(m.flight, false)
		return m, err
	}
	t.stats.moved.Add(1)
	t.stats.movedBytes.Add(uint64(m.h.pages()) * page)
	return m, nil
}

// allocateCopy gives a place to the copy of a record that is still the address's own. It holds the
// address's lock, so a later tombstone lies behind the copy.
func (t *Tier) allocateCopy(s *segment, r *tableEntry, hash uint64) (*flight, entry, error) {
	t.addrs.lock(hash)
	defer t.addrs.unlock(hash)
	e, ok := t.index.get(hash)
	if !ok || !lies(&e, s, r) {
		return nil, e, ErrMiss
	}
	copied := *r
	f, err := t.allocate(recordPages(int(r.size), r.flags), copied, true)
	return f, e, err
}

// settle syncs the copies, and publishes those whose originals are still current.
func (t *Tier) settle(s *segment, moves []move) bool {
	durable := map[*segment]bool{}
	for i := range moves {
		to := moves[i].flight.seg
		if _, ok := durable[to]; !ok {
			durable[to] = t.datasync(to) == nil
		}
	}
	ok := true
	for i := range moves {
		ok = t.settleOne(&moves[i], durable[moves[i].flight.seg]) && ok
	}
	return ok
}

func (t *Tier) settleOne(m *move, durable bool) bool {
	defer t.land(m.flight, true)
	if !durable {
		t.doubt.add(m.flight.place)
		return false
	}
	hash := m.old.hash
	t.addrs.lock(hash)
	defer t.addrs.unlock(hash)
	e, ok := t.index.get(hash)
	if !ok || e.state != stateLive || !e.same(&m.old) {
		return true
	}
	r := rowOf(&m.h)
	r.expires = e.expires
	c := t.rows.change()
	c.put(&m.h.Addr, &r)
	if err := c.commit(false); err != nil {
		t.writeFailed("row", err)
		return false
	}
	t.publish(&m.h.Addr, r.entry(hash))
	return true
}

// evict drops the blocks that still lie in s. The removal of their rows is durable before any read
// misses a block, so later writes and deletions need not know of it.
func (t *Tier) evict(s *segment, table []tableEntry) bool {
	for some := range slices.Chunk(table, evictBatch) {
		if !t.evictSome(s, some) {
			return false
		}
	}
	return true
}

// evictBatch bounds the records that are evicted at once under lock.
const evictBatch = 1024

func (t *Tier) evictSome(s *segment, table []tableEntry) bool {
	var addrs []block.Addr
	for i := range table {
		if e, ok := t.index.get(t.index.hash(&table[i].addr)); ok && lies(&e, s, &table[i]) {
			addrs = append(addrs, table[i].addr)
		}
	}
	if len(addrs) == 0 {
		return true
	}
	list := t.lockAll(addrs)
	defer t.unlockAll(list)
	c := t.rows.change()
	for i, h := range list {
		if e, ok := t.index.get(h.hash); !ok || e.state != stateLive || e.segment != s.id {
			list[i].addr = nil
			continue
		}
		if t.o.evicting != nil {
			t.o.evicting(*h.addr)
		}
		c.drop(h.addr)
	}
	if err := c.commit(true); err != nil {
		t.writeFailed("row", err)
		return false
	}
	for _, h := range list {
		if h.addr != nil {
			t.evicted(h)
		}
	}
	return true
}

func (t *Tier) evicted(h hashed) {
	e, ok := t.index.remove(h.hash)
	if !ok {
		return
	}
	t.account(&e, -1)
	if t.expired(e.expires) {
		t.stats.expired.Add(1)
	} else {
		t.stats.evicted.Add(1)
		t.stats.evictedBytes.Add(uint64(e.bytes()))
	}
	if t.o.Evicted != nil {
		t.o.Evicted(*h.addr)
	}
}
