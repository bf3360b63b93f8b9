package transport

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

const (
	mostWishes   = 1024                   // blocks of one peer that wait for a grant; further ones come by streams
	mostGrants   = 2                      // Grants to one peer at a time; with two, blocks need not wait for a slow one
	releaseIn    = 2 * time.Second        // time for a Release
	releaseAfter = 5 * time.Millisecond   // pause before a Release; an earlier Grant may give the grants back
	releaseAgain = 250 * time.Millisecond // the same pause after a Release that had no answer
)

// wish is a block that a Get waits for.
type wish struct {
	addr   block.Addr
	answer chan promise // buffered for one promise
	gone   atomic.Bool  // set first by the Get that leaves, or by the answer
}

// promise is the answer to a wish.
type promise struct {
	block *wire.GrantedBlock // nil: no owner could be asked
	stamp wire.Stamp         // last purge that the block was checked against
	grant *heldGrant         // set if the block's status is OK
	why   fallback           // set without a block
}

// heldGrant is a grant as its reader sees it.
type heldGrant struct {
	s     *readSession
	id    uint64
	until time.Time    // end of the grant by this host's clock, somewhat before the owner ends it
	left  atomic.Int32 // blocks that are still being read, or will be
}

// owed is a grant that the peer shall end. If the peer does not learn that, the grant ends by
// itself, later than until.
type owed struct {
	id    uint64
	until time.Time
}

// done notes that one of the grant's blocks is not read any more.
func (l *heldGrant) done() {
	if l.left.Add(-1) == 0 {
		l.s.grantee.giveBack(l.s, owed{l.id, l.until})
	}
	l.s.grantee.mu.Lock()
	l.s.grants--
	l.s.quiet()
	l.s.grantee.mu.Unlock()
}

// want asks for a block, together with the other blocks of the queue. nil: the queue is full.
func (ge *grantee) want(a block.Addr) *wish {
	ge.mu.Lock()
	defer ge.mu.Unlock()
	if len(ge.queue) >= mostWishes || ge.closed {
		return nil
	}
	w := &wish{addr: a, answer: make(chan promise, 1)}
	ge.queue = append(ge.queue, w)
	if ge.asking < mostGrants {
		ge.asking++
		ge.work.Go(ge.grants)
	}
	return w
}

// leave gives up a wish.
func (w *wish) leave() {
	if w.gone.Swap(true) {
		if p := <-w.answer; p.grant != nil {
			p.grant.done()
		}
	}
}

func (w *wish) tell(p promise) {
	if w.gone.Swap(true) {
		if p.grant != nil {
			p.grant.done()
		}
		return
	}
	w.answer <- p
}

// grants asks for the blocks of the queue, in one Grant after the other. Blocks that come while
// mostGrants are running go with the next Grant.
func (ge *grantee) grants() {
	for {
		runtime.Gosched() // lets other Gets join the batch
		s, batch, done := ge.next()
		if batch == nil {
			return
		}
		if s == nil {
			for _, w := range batch {
				w.tell(promise{why: noSession})
			}
			continue
		}
		ge.grant(s, batch, done)
		ge.mu.Lock()
		s.asking--
		s.quiet()
		ge.mu.Unlock()
	}
}

// next takes the next batch. nil: the queue is empty.
func (ge *grantee) next() (s *readSession, batch []*wish, done []owed) {
	ge.mu.Lock()
	defer ge.mu.Unlock()
	s = ge.s
	n := len(ge.queue)
	if s != nil {
		n = min(n, s.most)
	}
	if n == 0 {
		if ge.asking--; ge.asking == 0 {
			ge.flushLater(releaseAfter)
		}
		return nil, nil, nil
	}
	batch = append(batch, ge.queue[:n]...)
	ge.queue = append(ge.queue[:0], ge.queue[n:]...)
	if s != nil {
		done = s.takeDone()
		s.asking++
		s.asked = time.Now()
	}
	return s, batch, done
}

// grant asks for a batch, and answers its wishes.
func (ge *grantee) grant(s *readSession, batch []*wish, done []owed) {
	w := wire.Wanted{Session: s.id, Done: idsOf(done), Addrs: make([]block.Addr, len(batch))}
	for i := range batch {
		w.Addrs[i] = batch[i].addr
	}
	ctx, cancel := context.WithTimeout(ge.life, ge.p.pool.o.GrantIn)
	defer cancel()
	asked, request := time.Now(), ge.p.pool.request.Add(1)
	var granted *wire.Granted
	var stamp wire.Stamp
	err := ge.ask(ctx, wire.Grant, request, w.Append(nil), func(at wire.Stamp, body []byte) (err error) {
		stamp = at
		granted, err = wire.ParseGranted(clone(body), len(batch), len(s.pairs))
		return err
	})
	ge.count.asked.Add(1)
	ge.count.wanted.Add(uint64(len(batch)))
	if err != nil {
		if !errors.Is(err, wire.Busy) {
			// The owner may still have granted the blocks.
			done = append(done, owed{wire.GrantOf(request), time.Now().Add(s.lasts)})
		}
		ge.refused(s, err, done)
		for _, w := range batch {
			w.tell(promise{why: noGrant})
		}
		return
	}
	l := &heldGrant{s: s, id: granted.Grant, until: asked.Add(min(s.lasts, time.Duration(granted.MS)*time.Millisecond))}
	n := 0
	for i := range granted.Blocks {
		if granted.Blocks[i].Status == wire.OK {
			n++
		}
	}
	l.left.Store(int32(n))
	ge.mu.Lock()
	s.grants += int64(n)
	ge.mu.Unlock()
	for i, w := range batch {
		p := promise{block: &granted.Blocks[i], stamp: stamp}
		if p.block.Status == wire.OK {
			p.grant = l
		}
		w.tell(p)
	}
}

// refused handles a Grant without a usable answer. It gives back the grants that the message should
// have ended, and the grant that it may have begun.
func (ge *grantee) refused(s *readSession, err error, done []owed) {
	var status wire.Status
	switch known := errors.As(err, &status); {
	case known && status == wire.Miss:
		ge.fail(s, "the peer has ended the session", err)
	case known && status != wire.Busy && status != wire.Deadline:
		ge.fail(s, "the peer refuses to grant", err)
	default:
		ge.giveBack(s, done...)
	}
}

// giveBack notes grants that are not read any more.
func (ge *grantee) giveBack(s *readSession, done ...owed) {
	ge.mu.Lock()
	defer ge.mu.Unlock()
	if ge.s != s {
		return
	}
	s.owe(done)
	if ge.asking == 0 {
		ge.flushLater(releaseAfter)
	}
}

// owe notes grants that will be given back later. grantee.mu is held.
func (s *readSession) owe(done []owed) {
	for _, d := range done {
		if len(s.done) < wire.MaxDone { // further grants end by themselves
			s.done = append(s.done, d)
		}
	}
}

// takeDone removes and returns the grants to give back. It leaves out those that the owner has
// ended by itself: an owner's grant lasts at most GrantIn longer than until. grantee.mu is held.
func (s *readSession) takeDone() []owed {
	past := time.Now().Add(-s.grantee.p.pool.o.GrantIn)
	done := slices.DeleteFunc(s.done, func(d owed) bool { return d.id == 0 || !past.Before(d.until) })
	s.done = nil
	return done
}

func idsOf(done []owed) (ids []uint64) {
	for _, d := range done {
		ids = append(ids, d.id)
	}
	return ids
}

// flushLater gives grants back soon, unless a Grant gives them back earlier. mu is held.
func (ge *grantee) flushLater(after time.Duration) {
	if ge.flushing || ge.closed || ge.s == nil || len(ge.s.done) == 0 {
		return
	}
	ge.flushing = true
	ge.work.Go(func() {
		await.For(ge.life, after)
		ge.flush()
	})
}

// flush gives grants back. One Release runs at a time; grants that come meanwhile wait for the
// next.
func (ge *grantee) flush() {
	ge.mu.Lock()
	s := ge.s
	var done []owed
	if s != nil && ge.asking == 0 && !ge.closed {
		done = s.takeDone()
	}
	if len(done) == 0 {
		ge.flushing = false
		ge.mu.Unlock()
		return
	}
	ge.mu.Unlock()
	ctx, cancel := context.WithTimeout(ge.life, releaseIn)
	defer cancel()
	err := ge.ask(ctx, wire.Release, 0, (&wire.Returned{Session: s.id, Grants: idsOf(done)}).Append(nil),
		func(wire.Stamp, []byte) error { return nil })
	if ge.count.releases.Add(1); errors.Is(err, wire.Miss) {
		ge.fail(s, "the peer has ended the session", err)
	}
	ge.mu.Lock()
	defer ge.mu.Unlock()
	ge.flushing = false
	again := releaseAfter
	if err != nil && ge.s == s {
		s.owe(done)
		again = releaseAgain
	}
	if ge.asking == 0 {
		ge.flushLater(again)
	}
}
