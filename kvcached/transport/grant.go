package transport

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
)

// grant is a set of blocks that a peer may read until the grant ends. Its windows end before its
// blocks are released.
type grant struct {
	id      uint64
	s       *session
	blocks  []Block
	windows [][]rdma.Window // by rail
	held    []func()        // each uncounts bytes in flight
	granted int             // number of blocks that the peer got
	bytes   int
	timer   *time.Timer
}

// grant ends the grants that the peer has done with, and makes a grant of the wanted blocks that
// the peer may read. begun is id, or 0 if no block is granted.
func (s *session) grant(ctx context.Context, w *wire.Wanted, id uint64) (answer []byte, begun uint64, err error) {
	gr := s.granter
	s.giveBack(w.Done)
	gr.count.asked.Add(1)
	out := &wire.Granted{Blocks: make([]wire.GrantedBlock, len(w.Addrs))}
	g := &grant{id: id, s: s, windows: make([][]rdma.Window, len(s.ends))}
	if s.reserve() {
		defer s.unreserve()
		s.take(ctx, g, w.Addrs, out)
	} else {
		for i := range out.Blocks {
			out.Blocks[i].Status = wire.ByStream
		}
	}
	for i := range out.Blocks {
		if out.Blocks[i].Status != wire.OK && out.Blocks[i].Status != wire.Miss {
			gr.count.byStream.Add(1)
		}
	}
	if len(g.blocks) == 0 {
		return out.Append(nil), 0, nil
	}
	blocks, bytes := uint64(g.granted), uint64(g.bytes)
	out.Grant, out.MS = id, uint32(gr.lasts.Milliseconds())
	// made before begin: the keys in it lie in blocks, which may be released as soon as the grant
	// has begun
	answer = out.Append(nil)
	if err = ctx.Err(); err == nil {
		err = s.begin(g)
	}
	if err != nil {
		g.forget()
		return nil, 0, err
	}
	gr.count.blocks.Add(blocks)
	gr.count.bytes.Add(bytes)
	return answer, id, nil
}

// reserve tells whether the session may have another grant, and keeps room for it until unreserve.
func (s *session) reserve() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := mostGranted
	if s.kept {
		most = mostKept
	}
	if len(s.grants)+s.making >= most {
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

// begin starts the grant's time. It returns wire.Miss if the session has ended, and wire.Deadline
// if nobody waits for the grant any more.
func (s *session) begin(g *grant) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return wire.Miss
	}
	// The peer has asked again after a connection broke, or has given back the grant before it
	// began.
	if s.grants[g.id] != nil || slices.Contains(s.undone[:], g.id) {
		return wire.Deadline
	}
	s.grants[g.id] = g
	c := &s.granter.count
	c.grants.Add(1)
	c.granted.Add(int64(g.bytes))
	s.granter.work.Add(1)
	g.timer = time.AfterFunc(s.granter.lasts, func() {
		defer s.granter.work.Done()
		if s.expire(g.id) {
			c.ended.Add(1)
			g.undo()
			g.uncount()
		}
	})
	return nil
}

// expire removes a grant whose time is over. From then on the session gets fewer grants, until the
// peer gives one back. false: another call ends the grant.
func (s *session) expire(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.grants[id] == nil {
		return false
	}
	delete(s.grants, id)
	s.kept = true
	return true
}

// returned removes a grant that the peer has done with. If the grant has not begun, it never will.
// nil: there is no grant to end, or another call ends it.
func (s *session) returned(id uint64) *grant {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.grants[id]
	if g == nil {
		s.undone[s.oldest] = id
		s.oldest = (s.oldest + 1) % len(s.undone)
		return nil
	}
	delete(s.grants, id)
	s.kept = false
	return g
}

// giveBack ends grants that the peer has done with or given up. It revokes all windows of a pair
// with one wait.
func (s *session) giveBack(ids []uint64) {
	all := &grant{s: s, windows: make([][]rdma.Window, len(s.ends))}
	var done []*grant
	for _, id := range ids {
		g := s.returned(id)
		if g == nil {
			continue
		}
		if g.timer.Stop() {
			s.granter.work.Done()
		}
		for i, w := range g.windows {
			all.windows[i] = append(all.windows[i], w...)
		}
		done = append(done, g)
	}
	if len(done) == 0 {
		return
	}
	all.revoke()
	for _, g := range done {
		g.letGo()
	}
}

// undo revokes the grant and then releases its blocks.
func (g *grant) undo() {
	g.revoke()
	g.release()
}

// forget is undo for a grant that the peer never heard of.
func (g *grant) forget() {
	g.s.granter.s.o.Bandwidth.giveBack(outward, g.bytes)
	g.undo()
}

// revoke returns when nobody can read through the grant's windows any more.
func (g *grant) revoke() {
	ctx, cancel := context.WithTimeout(context.Background(), bindWithin)
	defer cancel()
	for i, w := range g.windows {
		if len(w) > 0 {
			_ = g.s.ends[i].pair.Revoke(ctx, w) // after an error the pair is closed, which revokes as well
		}
	}
}

// letGo is release for a grant that was counted.
func (g *grant) letGo() {
	g.release()
	g.uncount()
}

func (g *grant) uncount() {
	g.s.granter.count.granted.Add(int64(-g.bytes))
	g.s.granter.count.grants.Add(-1)
}

// release releases blocks that nobody can read any more.
func (g *grant) release() {
	for _, b := range g.blocks {
		b.Release()
	}
	for _, release := range g.held {
		release()
	}
	g.blocks, g.held = nil, nil
}

// split divides a large block among all rails. It gives each smaller block to the next rail.
func (s *session) split(e *wire.GrantedBlock) {
	rails := s.railsUsed()
	first := int(s.turn.Add(1) % uint64(len(rails)))
	share := e.Length
	if e.Length >= stripeAbove && len(rails) > 1 {
		n := uint64(len(rails))
		share = ((e.Length+n-1)/n + stripeAlign - 1) / stripeAlign * stripeAlign
	}
	for at := uint64(0); at < e.Length; at += share {
		e.Parts = append(e.Parts, wire.Window{Rail: uint32(rails[(first+len(e.Parts))%len(rails)]),
			Length: min(share, e.Length-at)})
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

// grant makes windows even if ctx ends meanwhile. A pair breaks if its context ends while the pair
// makes windows. The session then breaks as well.
func (e *grantEnd) grant(ctx context.Context, mems [][]byte) ([]rdma.Window, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bindWithin)
	defer cancel()
	return e.pair.Grant(ctx, mems)
}

// open makes the windows of all parts, with one wait for each pair. false: a card did not make
// them.
func (s *session) open(ctx context.Context, g *grant, got []picked, out *wire.Granted) bool {
	for rail, end := range s.ends {
		if end == nil {
			continue
		}
		var mems [][]byte
		var parts []*wire.Window
		for i, b := range got {
			if b.Block == nil {
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
		if ctx.Err() != nil {
			return false
		}
		windows, err := end.grant(ctx, mems)
		g.windows[rail] = windows
		if err != nil || len(windows) != len(parts) {
			if !errors.Is(err, rdma.ErrFull) {
				s.granter.s.warn("grant", "blocks cannot be granted",
					"card", end.rail.name, "peer", s.remote.Host,
					"error", err)
			}
			return false
		}
		for k, w := range windows {
			parts[k].RKey, parts[k].Addr = w.Key().RKey, w.Key().Addr
		}
	}
	return true
}
