//go:build linux

package lease

import (
	"sync"
	"time"

	"github.com/cognitora/dataplane/kv/frame"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/store"
)

// leases are the leases of one connection. A lease's id has its place in a table. A list links the
// leases by deadline: all last equally long, so the last one begun or renewed also ends last.
type leases struct {
	mu    sync.Mutex
	slots []slot // slots[0] heads both lists
	held  int
}

type slot struct {
	block      *store.Block // nil: free
	deadline   int64
	length     int64
	generation uint32
	next, prev uint32 // next also links the free slots, from slots[0].generation on
}

// id returns the id of the lease in slot i: its generation and i. The generation is never 0.
func (t *leases) id(i uint32) uint64 { return uint64(t.slots[i].generation)<<32 | uint64(i) }

// find returns the slot of a lease; 0: it has ended.
func (t *leases) find(id uint64) uint32 {
	i := uint32(id)
	if i == 0 || int(i) >= len(t.slots) || t.slots[i].generation != uint32(id>>32) || t.slots[i].block == nil {
		return 0
	}
	return i
}

// add puts a block under a lease. The caller has checked the quotas.
func (t *leases) add(b *store.Block, length, deadline int64) uint64 {
	if t.slots == nil {
		t.slots = make([]slot, 1, 8)
	}
	i := t.slots[0].generation
	if i != 0 {
		t.slots[0].generation = t.slots[i].next
	} else {
		t.slots = append(t.slots, slot{})
		i = uint32(len(t.slots) - 1)
	}
	s := &t.slots[i]
	if s.generation++; s.generation == 0 {
		s.generation = 1
	}
	s.block, s.length, s.deadline = b, length, deadline
	t.append(i)
	t.held++
	return t.id(i)
}

func (t *leases) append(i uint32) {
	last := t.slots[0].prev
	t.slots[i].prev, t.slots[i].next = last, 0
	t.slots[last].next, t.slots[0].prev = i, i
}

func (t *leases) unlink(i uint32) {
	s := &t.slots[i]
	t.slots[s.prev].next, t.slots[s.next].prev = s.next, s.prev
}

// remove ends the lease in slot i and returns its block.
func (t *leases) remove(i uint32) (*store.Block, int64) {
	t.unlink(i)
	s := &t.slots[i]
	b, length := s.block, s.length
	s.block, s.next = nil, t.slots[0].generation
	t.slots[0].generation = i
	t.held--
	return b, length
}

// first returns the slot with the earliest deadline; 0: there are no leases.
func (t *leases) first() uint32 {
	if len(t.slots) == 0 {
		return 0
	}
	return t.slots[0].next
}

// grant leases b to c and fills in g. If a bound forbids that, it releases b and sets the reason.
func (c *conn) grant(b *store.Block, g *frame.Grant) {
	s := c.server
	info := b.Info()
	// The charge is the block's memory in the arena. A small block's memory is far larger than its
	// payload.
	size := int64(ram.Granules(ram.PieceSize(info.Length, len(info.Item.Key)+len(info.Item.Attr)))) * ram.Granule
	c.leases.mu.Lock()
	switch {
	case c.server.stopping.Load():
		g.Status = frame.StatusClosed
	case c.leases.held >= s.o.MaxLeases || !c.charge(size):
		g.Status = frame.StatusQuota
	default:
		s.count.leases.Add(1)
		g.DeadlineNS = frame.Monotonic() + int64(s.o.Lease)
		g.Lease = c.leases.add(b, size, g.DeadlineNS)
		g.Offset, g.Length, g.CRC, g.Status = uint64(b.Offset()), uint32(info.Length), info.CRC, frame.StatusOK
	}
	c.leases.mu.Unlock()
	if g.Status != frame.StatusOK {
		s.count.refused.Add(1)
		b.Release()
	}
}

// charge counts bytes for c's user and for all users. It returns false if either would have too
// many.
func (c *conn) charge(size int64) bool {
	s := c.server
	if c.user.leased.Add(size) > s.o.MaxLeased {
		c.user.leased.Add(-size)
		return false
	}
	if s.count.leasedBytes.Add(size) > s.o.MaxLeasedTotal {
		s.count.leasedBytes.Add(-size)
		c.user.leased.Add(-size)
		return false
	}
	return true
}

// release ends a lease at its client's request.
func (c *conn) release(id uint64) {
	c.leases.mu.Lock()
	i := c.leases.find(id)
	if i == 0 {
		c.leases.mu.Unlock()
		c.server.count.unknown.Add(1)
		return
	}
	b, length := c.leases.remove(i)
	c.leases.mu.Unlock()
	c.server.count.released.Add(1)
	c.giveBack(b, length)
}

func (c *conn) giveBack(b *store.Block, length int64) {
	s := c.server
	b.Release()
	c.user.leased.Add(-length)
	s.count.leasedBytes.Add(-length)
	if s.count.leases.Add(-1) == 0 {
		select {
		case s.drained <- struct{}{}:
		default:
		}
	}
}

// renew prolongs a lease and returns its new deadline; 0: the lease has ended.
func (c *conn) renew(id uint64) int64 {
	c.leases.mu.Lock()
	defer c.leases.mu.Unlock()
	i := c.leases.find(id)
	now := frame.Monotonic()
	if i == 0 || c.leases.slots[i].deadline <= now {
		c.server.count.unknown.Add(1)
		return 0
	}
	c.leases.unlink(i)
	c.leases.append(i)
	c.leases.slots[i].deadline = now + int64(c.server.o.Lease)
	return c.leases.slots[i].deadline
}

// expire ends c's leases with a deadline before the given time. It returns the numbers of ended and
// of remaining leases.
func (c *conn) expire(before int64) (ended, left int) {
	for {
		c.leases.mu.Lock()
		i := c.leases.first()
		if i == 0 || c.leases.slots[i].deadline >= before {
			left = c.leases.held
			c.leases.mu.Unlock()
			return ended, left
		}
		b, length := c.leases.remove(i)
		c.leases.mu.Unlock()
		ended++
		c.giveBack(b, length)
	}
}

// sweep ends expired leases until Close.
func (s *Server) sweep() {
	tick := time.NewTicker(max(s.o.Grace/2, 5*time.Millisecond))
	defer tick.Stop()
	var conns []*conn
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		if s.count.leases.Load() == 0 {
			continue
		}
		s.mu.Lock()
		for c := range s.conns {
			conns = append(conns, c)
		}
		s.mu.Unlock()
		before := frame.Monotonic() - int64(s.o.Grace)
		for i, c := range conns {
			s.sweepOne(c, before)
			conns[i] = nil
		}
		conns = conns[:0]
	}
}

func (s *Server) sweepOne(c *conn, before int64) {
	ended, left := c.expire(before)
	s.count.expired.Add(uint64(ended))
	if left == 0 && c.ended.Load() {
		s.leave(c)
	}
}
