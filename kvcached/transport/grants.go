package transport

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
)

const (
	mostWishes   = 1024                   // blocks of one peer that wait to be granted; further ones come by streams
	mostGrants   = 2                      // under way to one peer: blocks go with the other while one is slow
	releaseIn    = 2 * time.Second        // a peer takes back what was read
	releaseAfter = 5 * time.Millisecond   // grants that are done with are given back, where no Grant takes that along
	releaseAgain = 250 * time.Millisecond // the same, after a try to do so had no answer
)

// wish is a block that a Get wants to read.
type wish struct {
	addr   block.Addr
	answer chan promise // of one
	gone   atomic.Bool  // by whoever comes first: who asked has left, or has been answered
}

// promise is what became of a wish.
type promise struct {
	block *wire.GrantedBlock // nil: nobody could be asked
	stamp wire.Stamp         // up to which purge the block was checked
	grant *heldGrant         // with status OK
	why   fallback           // without block
}

// heldGrant is a grant as the reader has it.
type heldGrant struct {
	s     *readSession
	id    uint64
	until time.Time    // by our clock it ends before the owner's
	left  atomic.Int32 // blocks that are not done with
}

// owed is a grant that the peer is to be told to end. It ends by itself, later than until.
type owed struct {
	id    uint64
	until time.Time
}

// done says that nobody reads one of its blocks any more.
func (l *heldGrant) done() {
	if l.left.Add(-1) == 0 {
		l.s.b.giveBack(l.s, owed{l.id, l.until})
	}
	l.s.b.mu.Lock()
	l.s.grants--
	l.s.quiet()
	l.s.b.mu.Unlock()
}

// want asks for a block, together with others that are wanted at that time; nil: too many are.
func (b *grantee) want(a block.Addr) *wish {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) >= mostWishes || b.closed {
		return nil
	}
	w := &wish{addr: a, answer: make(chan promise, 1)}
	b.queue = append(b.queue, w)
	if b.asking < mostGrants {
		b.asking++
		b.work.Go(b.grants)
	}
	return w
}

// leave gives a wish up.
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

// grants asks for what is wanted, one message after the other: what comes while all mostGrants are
// under way goes with the next.
func (b *grantee) grants() {
	for {
		runtime.Gosched() // who is about to ask goes along
		s, batch, done := b.next()
		if batch == nil {
			return
		}
		if s == nil {
			for _, w := range batch {
				w.tell(promise{why: noSession})
			}
			continue
		}
		b.grant(s, batch, done)
		b.mu.Lock()
		s.asking--
		s.quiet()
		b.mu.Unlock()
	}
}

// next takes the next batch; nil: nothing is wanted any more.
func (b *grantee) next() (s *readSession, batch []*wish, done []owed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s = b.s
	n := len(b.queue)
	if s != nil {
		n = min(n, s.most)
	}
	if n == 0 {
		if b.asking--; b.asking == 0 {
			b.flushLater(releaseAfter)
		}
		return nil, nil, nil
	}
	batch = append(batch, b.queue[:n]...)
	b.queue = append(b.queue[:0], b.queue[n:]...)
	if s != nil {
		done = s.takeDone()
		s.asking++
		s.asked = time.Now()
	}
	return s, batch, done
}

// grant asks for a batch, and tells those who wait for it.
func (b *grantee) grant(s *readSession, batch []*wish, done []owed) {
	w := wire.Wanted{Session: s.id, Done: idsOf(done), Addrs: make([]block.Addr, len(batch))}
	for i := range batch {
		w.Addrs[i] = batch[i].addr
	}
	ctx, cancel := context.WithTimeout(b.life, b.p.pool.o.GrantIn)
	defer cancel()
	asked, request := time.Now(), b.p.pool.request.Add(1)
	var granted *wire.Granted
	var stamp wire.Stamp
	err := b.ask(ctx, wire.Grant, request, w.Append(nil), func(at wire.Stamp, body []byte) (err error) {
		stamp = at
		granted, err = wire.ParseGranted(clone(body), len(batch), len(s.pairs))
		return err
	})
	b.count.asked.Add(1)
	b.count.wanted.Add(uint64(len(batch)))
	if err != nil {
		if !errors.Is(err, wire.Busy) {
			// the owner may have granted all the same
			done = append(done, owed{wire.GrantOf(request), time.Now().Add(s.lasts)})
		}
		b.refused(s, err, done)
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
	b.mu.Lock()
	s.grants += int64(n)
	b.mu.Unlock()
	for i, w := range batch {
		p := promise{block: &granted.Blocks[i], stamp: stamp}
		if p.block.Status == wire.OK {
			p.grant = l
		}
		w.tell(p)
	}
}

// refused notes that a Grant had no answer, or a bad one, and gives back what it had to tell as
// done, and the grant that it may have begun.
func (b *grantee) refused(s *readSession, err error, done []owed) {
	var status wire.Status
	switch known := errors.As(err, &status); {
	case known && status == wire.Miss:
		b.fail(s, "the peer has ended the session", err)
	case known && status != wire.Busy && status != wire.Deadline:
		b.fail(s, "the peer refuses to grant", err)
	default:
		b.giveBack(s, done...)
	}
}

// giveBack notes that grants are done with.
func (b *grantee) giveBack(s *readSession, done ...owed) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.s != s {
		return
	}
	s.owe(done)
	if b.asking == 0 {
		b.flushLater(releaseAfter)
	}
}

// owe has grants be given back later. b.mu is held.
func (s *readSession) owe(done []owed) {
	for _, d := range done {
		if len(s.done) < wire.MaxDone { // further ones end by themselves
			s.done = append(s.done, d)
		}
	}
}

// takeDone takes out what is to be given back, but for what the owner has ended by itself: its
// grant began after ours, by as much as a Grant may take. b.mu is held.
func (s *readSession) takeDone() []owed {
	past := time.Now().Add(-s.b.p.pool.o.GrantIn)
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

// flushLater has grants given back soon, unless a Grant takes them along. mu is held.
func (b *grantee) flushLater(after time.Duration) {
	if b.flushing || b.closed || b.s == nil || len(b.s.done) == 0 {
		return
	}
	b.flushing = true
	b.work.Go(func() {
		t := time.NewTimer(after)
		defer t.Stop()
		select {
		case <-t.C:
		case <-b.life.Done():
		}
		b.flush()
	})
}

// flush gives grants back. What comes meanwhile waits for it: one Release is under way at a time.
func (b *grantee) flush() {
	b.mu.Lock()
	s := b.s
	var done []owed
	if s != nil && b.asking == 0 && !b.closed {
		done = s.takeDone()
	}
	if len(done) == 0 {
		b.flushing = false
		b.mu.Unlock()
		return
	}
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(b.life, releaseIn)
	defer cancel()
	err := b.ask(ctx, wire.Release, 0, (&wire.Returned{Session: s.id, Grants: idsOf(done)}).Append(nil),
		func(wire.Stamp, []byte) error { return nil })
	if b.count.releases.Add(1); errors.Is(err, wire.Miss) {
		b.fail(s, "the peer has ended the session", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flushing = false
	again := releaseAfter
	if err != nil && b.s == s {
		s.owe(done)
		again = releaseAgain
	}
	if b.asking == 0 {
		b.flushLater(again)
	}
}
