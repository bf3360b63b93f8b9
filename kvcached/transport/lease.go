package transport

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kvcached/block"
	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
)

// Blocks of one Grant are looked up several at a time, for those on SSD take a while. What is not there in getIn goes by stream, so that others do not wait for it.
const (
	gettingAtOnce = 8
	getIn         = 50 * time.Millisecond
)

// lease is some blocks that a peer may read until it ends. Their windows end before they are let go of, never after.
type lease struct {
	id      uint64
	s       *session
	blocks  []Block
	windows [][]rdma.Window // by rail
	held    []func()        // of bytes in flight
	lent    int             // blocks, of so many
	bytes   int
	timer   *time.Timer
}

// grant lends what can be lent of the blocks that are wanted, and takes back what the peer has done with.
func (s *session) grant(ctx context.Context, w *wire.Wanted) ([]byte, error) {
	l := s.l
	s.giveBack(w.Done)
	l.count.grants.Add(1)
	out := &wire.Lent{Blocks: make([]wire.LentBlock, len(w.Addrs))}
	t := &lease{s: s, windows: make([][]rdma.Window, len(s.ends))}
	if s.reserve() {
		defer s.unreserve()
		s.take(ctx, t, w.Addrs, out)
	} else {
		for i := range out.Blocks {
			out.Blocks[i].Status = wire.ByStream
		}
	}
	for i := range out.Blocks {
		if out.Blocks[i].Status != wire.OK && out.Blocks[i].Status != wire.Miss {
			l.count.byStream.Add(1)
		}
	}
	if len(t.blocks) == 0 {
		return out.Append(nil), nil
	}
	if err := ctx.Err(); err != nil {
		t.forget()
		return nil, err
	}
	blocks, bytes := uint64(t.lent), uint64(t.bytes)
	out.Lease, out.MS = s.number(t), uint32(l.lease.Milliseconds())
	body := out.Append(nil) // with keys that lie in the blocks, which may be let go of from begin on
	if !s.begin(t) {
		t.forget()
		return nil, wire.Miss
	}
	l.count.blocks.Add(blocks)
	l.count.bytes.Add(bytes)
	return body, nil
}

// number gives a lease its number.
func (s *session) number(t *lease) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	t.id = s.last
	return t.id
}

// reserve tells whether the session may have another lease, and keeps room for it until unreserve.
func (s *session) reserve() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.leases)+s.making >= mostLeases {
		return false
	}
	s.making++
	return true
}

func (s *session) unreserve() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.making--
}

// begin has the lease run from now on; false: the session has ended.
func (s *session) begin(t *lease) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return false
	}
	s.leases[t.id] = t
	c := &s.l.count
	c.leases.Add(1)
	c.leased.Add(int64(t.bytes))
	s.l.work.Add(1)
	t.timer = time.AfterFunc(s.l.lease, func() {
		defer s.l.work.Done()
		if s.remove(t.id) != nil {
			c.ended.Add(1)
			t.undo()
			t.uncount()
		}
	})
	return true
}

// remove takes a lease out; nil: somebody else ends it, or has.
func (s *session) remove(id uint64) *lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.leases[id]
	delete(s.leases, id)
	return t
}

// giveBack ends leases that the peer has done with, all windows of a pair with one wait.
func (s *session) giveBack(ids []uint64) {
	all := &lease{s: s, windows: make([][]rdma.Window, len(s.ends))}
	var done []*lease
	for _, id := range ids {
		t := s.remove(id)
		if t == nil {
			continue
		}
		if t.timer.Stop() {
			s.l.work.Done()
		}
		for i, w := range t.windows {
			all.windows[i] = append(all.windows[i], w...)
		}
		done = append(done, t)
	}
	if len(done) == 0 {
		return
	}
	all.revoke()
	for _, t := range done {
		t.letGo()
	}
}

// undo ends what may be read, and then lets go of it.
func (t *lease) undo() {
	t.revoke()
	t.release()
}

// forget is undo of a lease that the peer was not told of.
func (t *lease) forget() {
	t.s.host.gates.giveBack(outward, t.bytes)
	t.undo()
}

// revoke returns when nobody reads through the lease's windows any more.
func (t *lease) revoke() {
	ctx, cancel := context.WithTimeout(context.Background(), revokeWithin)
	defer cancel()
	for i, w := range t.windows {
		if len(w) > 0 {
			_ = t.s.ends[i].pair.Revoke(ctx, w) // an error says that the pair was closed for it
		}
	}
}

// letGo is release of a lease that was counted.
func (t *lease) letGo() {
	t.release()
	t.uncount()
}

func (t *lease) uncount() {
	t.s.l.count.leased.Add(int64(-t.bytes))
	t.s.l.count.leases.Add(-1)
}

// release lets go of blocks that nobody can read any more.
func (t *lease) release() {
	for _, b := range t.blocks {
		b.Release()
	}
	for _, release := range t.held {
		release()
	}
	t.blocks, t.held = nil, nil
}

// take puts into t, and into the answer, what can be lent of the blocks.
func (s *session) take(ctx context.Context, t *lease, addrs []block.Addr, out *wire.Lent) {
	got := s.get(ctx, addrs, out)
	size := 0
	for i, b := range got {
		if b == nil {
			continue
		}
		e := &out.Blocks[i]
		if e.Status = s.admit(t, b, e, wire.MaxSmall-64-len(addrs)-size); e.Status != wire.OK {
			b.Release()
			got[i] = nil
			continue
		}
		it := b.Found().Item
		s.l.s.unsure.read(s.host, &it)
		size += e.Size()
	}
	if !s.open(ctx, t, got, out) {
		t.forget()
		t.windows, t.lent, t.bytes = make([][]rdma.Window, len(s.ends)), 0, 0
		for i, b := range got {
			if b != nil {
				out.Blocks[i] = wire.LentBlock{Status: wire.ByStream}
			}
		}
	}
}

// get looks up the blocks; nil: it has a status instead.
func (s *session) get(ctx context.Context, addrs []block.Addr, out *wire.Lent) []Block {
	got := make([]Block, len(addrs))
	h, logger := s.l.s.o.Handler, s.l.s.o.Logger
	brief, cancel := context.WithTimeout(context.WithValue(ctx, remoteKey{}, s.remote), getIn)
	defer cancel()
	one := func(i int) {
		b, err := h.Get(brief, addrs[i])
		if err == nil {
			got[i] = b
			return
		}
		if out.Blocks[i].Status = statusOf(err); errors.Is(err, context.DeadlineExceeded) {
			out.Blocks[i].Status = wire.ByStream
		} else if out.Blocks[i].Status == wire.Internal {
			logger.Warn("operation failed", "op", wire.Grant, "peer", s.remote.Host, "role", s.remote.Role, "error", err)
		}
	}
	if len(addrs) == 1 {
		one(0)
		return got
	}
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(gettingAtOnce, len(addrs)) {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(addrs); i = int(next.Add(1)) - 1 {
				one(i)
			}
		})
	}
	all.Wait()
	return got
}

// admit takes a block into the lease, and fills in what is told of it in at most room bytes. The windows of its parts come later.
func (s *session) admit(t *lease, b Block, e *wire.LentBlock, room int) wire.Status {
	payload, f := b.Bytes(), b.Found()
	if !s.l.rails.holds(payload) {
		return wire.ByStream
	}
	*e = wire.LentBlock{CRC: f.CRC, Length: uint64(len(payload)), Parent: f.Item.Parent, Expires: f.Item.Expires, Key: f.Item.Key, Attr: f.Item.Attr}
	s.split(e)
	if e.Size() > room {
		return wire.ByStream
	}
	release, err := s.l.s.holdFor(s.host, len(payload))
	if err != nil {
		return statusOf(err)
	}
	if !s.host.gates.take(outward, len(payload)) { // others of the same Grant would wait for it
		release()
		return wire.ByStream
	}
	t.blocks, t.held = append(t.blocks, b), append(t.held, release)
	t.lent, t.bytes = t.lent+1, t.bytes+len(payload)
	return wire.OK
}

// split has a large block read over all rails, and others over one after the other.
func (s *session) split(e *wire.LentBlock) {
	rails := s.railsUsed()
	first := int(s.turn.Add(1) % uint64(len(rails)))
	share := e.Length
	if e.Length >= stripeAbove && len(rails) > 1 {
		n := uint64(len(rails))
		share = ((e.Length+n-1)/n + stripeAlign - 1) / stripeAlign * stripeAlign
	}
	for at := uint64(0); at < e.Length; at += share {
		e.Parts = append(e.Parts, wire.Window{Rail: uint32(rails[(first+len(e.Parts))%len(rails)]), Length: min(share, e.Length-at)})
	}
}

func (s *session) railsUsed() (used []int) {
	for i, e := range s.ends {
		if e != nil {
			used = append(used, i)
		}
	}
	return used
}

// open makes the windows of all parts, those of a pair with one wait; false: the cards do not take them.
func (s *session) open(ctx context.Context, t *lease, got []Block, out *wire.Lent) bool {
	for rail, end := range s.ends {
		if end == nil {
			continue
		}
		var mems [][]byte
		var parts []*wire.Window
		for i, b := range got {
			if b == nil {
				continue
			}
			at := uint64(0)
			for k := range out.Blocks[i].Parts {
				p := &out.Blocks[i].Parts[k]
				if p.Rail == uint32(rail) {
					mems, parts = append(mems, b.Bytes()[at:at+p.Length]), append(parts, p)
				}
				at += p.Length
			}
		}
		if len(mems) == 0 {
			continue
		}
		windows, err := end.pair.Grant(ctx, mems)
		t.windows[rail] = windows
		if err != nil || len(windows) != len(parts) {
			if !errors.Is(err, rdma.ErrFull) {
				s.l.s.o.Logger.Warn("blocks cannot be lent", "card", end.rail.name, "peer", s.remote.Host, "error", err)
			}
			return false
		}
		for k, w := range windows {
			parts[k].RKey, parts[k].Addr = w.Key().RKey, w.Key().Addr
		}
	}
	return true
}
