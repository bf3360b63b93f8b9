package store

import (
	"errors"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

// Bounds of the queue of blocks that wait to be written to SSD. A block beyond a bound is counted
// and not queued. The next use of the block tries again.
const (
	behindBlocks  = 4096
	behindWriters = 2
)

// behindShare bounds the queue: its blocks take at most the arena's size divided by behindShare.
const behindShare = 8

// behind is the queue of blocks that are written to SSD after their first read. A queued block is
// held, so that it is not evicted while it waits.
type behind struct {
	wake  chan struct{}
	items []later // a ring buffer
	first int
	n     int
	bytes int64
	limit int64
}

type later struct {
	addr block.Addr
	body ram.Ext
	size int64
}

func newBehind(arena int64) *behind {
	return &behind{wake: make(chan struct{}, behindWriters), items: make([]later, behindBlocks),
		limit: arena / behindShare}
}

// enqueue puts a block into the queue unless SSD has it or it was replaced on SSD not long ago. The
// caller holds the lock.
func (s *Store) enqueue(h uint64, id ram.ID) {
	e := s.tier.At(id)
	if s.disk == nil || e.Mark&(onDisk|queued) != 0 || s.closed {
		return
	}
	if s.churn.has(h) {
		s.counts.BehindChanging++
		return
	}
	q := s.behind
	x := s.tier.Body(id)
	size := int64(len(s.tier.Memory(x)))
	if q.n == len(q.items) || q.bytes > 0 && q.bytes+size > q.limit {
		s.counts.BehindDropped++
		return
	}
	e.Mark |= queued
	s.tier.Hold(x)
	q.items[(q.first+q.n)%len(q.items)] = later{s.tier.Addr(id), x, size}
	q.n++
	q.bytes += size
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (s *Store) dequeue() (it later, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.behind
	if q.n == 0 {
		return it, false
	}
	it = q.items[q.first]
	q.first = (q.first + 1) % len(q.items)
	q.n--
	return it, true
}

// write writes the queued blocks to SSD until the store closes and the queue is empty.
func (s *Store) write() {
	for {
		for it, ok := s.dequeue(); ok; it, ok = s.dequeue() {
			s.writeLater(it)
		}
		select {
		case <-s.behind.wake:
		case <-s.life.Done():
			// Blocks that were queued before the store closed are written. Nothing is queued after
			// that.
			for it, ok := s.dequeue(); ok; it, ok = s.dequeue() {
				s.writeLater(it)
			}
			return
		}
	}
}

func (s *Store) writeLater(it later) {
	o, err := s.acquire(s.writing, it.addr)
	if err == nil {
		err = s.writeQueued(o, it)
		s.release(o)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && !errors.Is(err, ssd.ErrQuota) { // the SSD tier counts refusals by quota
		s.counts.BehindFailed++
	}
	s.behind.bytes -= it.size
	if id := s.tier.Find(s.tier.Hash(&it.addr), &it.addr); id != 0 && s.tier.Body(id) == it.body {
		s.tier.At(id).Mark &^= queued
	}
	s.tier.Drop(it.body)
}

// writeQueued writes a block unless it has been replaced, deleted or written meanwhile, or is being
// purged.
func (s *Store) writeQueued(o *op, it later) error {
	h := s.tier.Hash(&it.addr)
	s.mu.Lock()
	id := s.tier.Find(h, &it.addr)
	if id == 0 || s.tier.Body(id) != it.body || s.tier.At(id).Mark&onDisk != 0 || s.expired(s.tier.At(id).Expires) ||
		s.purgesID(id) {
		s.mu.Unlock()
		return nil
	}
	r, payload := s.record(id)
	o.lost = false
	s.mu.Unlock()
	if err := s.disk.Write(s.writing, r, payload, false); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.WrittenBehind++
	s.wrote(o, h, &r)
	return nil
}

// record returns the SSD record and the payload of a block in RAM. The caller holds the lock, and
// holds the block for as long as it uses the result.
func (s *Store) record(id ram.ID) (r ssd.Record, payload []byte) {
	e := s.tier.At(id)
	r = ssd.Record{
		Addr: s.tier.Addr(id), Namespace: s.tier.Names().At(e.NS()).Text, Key: s.tier.Key(id), Attr: s.tier.Attr(id),
		Parent: s.tier.Parent(id), Expires: e.Expires, CRC: e.CRC, HasCRC: true,
	}
	return r, padded(s.tier.Memory(s.tier.Body(id)), int(e.Length), len(r.Key)+len(r.Attr))
}

// wrote notes that SSD has the same block as RAM. The caller holds the lock, the block's op, and
// the block itself, whose memory the record aliases.
func (s *Store) wrote(o *op, h uint64, r *ssd.Record) {
	if o.lost {
		return
	}
	if id := s.tier.Find(h, &o.addr); id != 0 {
		s.tier.At(id).Mark |= onDisk
	}
	s.cameToDisk(r)
}
