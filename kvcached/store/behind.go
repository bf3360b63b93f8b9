package store

import (
	"errors"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

// Bounds of what waits to be written to SSD. Beyond them a block is not queued, which is counted,
// and comes up again with its next use.
const (
	behindBlocks  = 4096
	behindWriters = 2
)

// behindShare is the part of the arena that may wait.
const behindShare = 8

// behind is the queue of blocks that are written to SSD after their second use. Each is held, so
// that it is not evicted before.
type behind struct {
	wake  chan struct{}
	items []later // a ring
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

// enqueue puts a block into the queue if it is not on SSD, nor was replaced there not long ago. The
// lock is held.
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

// write writes what is in the queue, until the store closes and the queue is empty.
func (s *Store) write() {
	for {
		for it, ok := s.dequeue(); ok; it, ok = s.dequeue() {
			s.writeLater(it)
		}
		select {
		case <-s.behind.wake:
		case <-s.life.Done():
			// What was queued before the store closed is written; nothing is queued after that.
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
	if err != nil && !errors.Is(err, ssd.ErrQuota) { // which the tier counts
		s.counts.BehindFailed++
	}
	s.behind.bytes -= it.size
	if id := s.tier.Find(s.tier.Hash(&it.addr), &it.addr); id != 0 && s.tier.Body(id) == it.body {
		s.tier.At(id).Mark &^= queued
	}
	s.tier.Drop(it.body)
}

// writeQueued writes a block unless it has been replaced, deleted or written meanwhile.
func (s *Store) writeQueued(o *op, it later) error {
	h := s.tier.Hash(&it.addr)
	s.mu.Lock()
	id := s.tier.Find(h, &it.addr)
	if id == 0 || s.tier.Body(id) != it.body || s.tier.At(id).Mark&onDisk != 0 || s.expired(s.tier.At(id).Expires) {
		s.mu.Unlock()
		return nil
	}
	e := s.tier.At(id)
	r := ssd.Record{
		Addr: it.addr, Namespace: s.tier.Names().At(e.NS()).Text, Key: s.tier.Key(id), Attr: s.tier.Attr(id),
		Parent: s.tier.Parent(id), Expires: e.Expires, CRC: e.CRC, HasCRC: true,
	}
	payload := padded(s.tier.Memory(it.body), int(e.Length), len(r.Key)+len(r.Attr))
	o.lost = false
	s.mu.Unlock()
	if err := s.disk.Write(s.writing, r, payload, false); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.WrittenBehind++
	s.wrote(o, h, r.Parent)
	return nil
}

// wrote notes that SSD has what RAM has. The lock is held, and so is o.
func (s *Store) wrote(o *op, h uint64, parent block.Digest) {
	if o.lost {
		return
	}
	if id := s.tier.Find(h, &o.addr); id != 0 {
		s.tier.At(id).Mark |= onDisk
	}
	s.diskChanged(h, &o.addr, parent, true)
}
