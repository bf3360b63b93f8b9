package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// lender keeps the blocks of ended prompts until another engine has read them or their lease ends.
// Each prompt is read at most once. A loan keeps at least one block of the cache, and a reader a
// connection, which bounds the number of desks. Any goroutine may call the methods.
type lender struct {
	lease time.Duration

	mu    sync.Mutex
	desks map[string]*desk
	shut  bool

	requests, blocks                 atomic.Int64 // lent now
	lent, expired, wrong, lost, lone atomic.Int64
}

// desk is the place where the engine that has a prompt's blocks meets the one that reads them.
type desk struct {
	loan    *loan // nil before the prompt is computed
	readers int   // other engines that wait for the loan
	hosts   int   // requests here that wait for a reader
	changed chan struct{}
}

// loan is one prompt that another engine may read.
type loan struct {
	q     *sequence
	sched *scheduler // has the blocks
	size  int        // number of blocks
	end   *time.Timer
}

// lentPrompt is what a reader gets.
type lentPrompt struct {
	tokens []uint32
	cached int // tokens that were cached when the prompt was computed
}

func newLender(lease time.Duration) *lender {
	return &lender{lease: lease, desks: make(map[string]*desk)}
}

// enter returns the desk of a name, made if need be. The caller holds l.mu.
func (l *lender) enter(name string) *desk {
	d := l.desks[name]
	if d == nil {
		d = &desk{changed: make(chan struct{})}
		l.desks[name] = d
	}
	return d
}

// tell wakes those who wait at a desk, and removes the desk if it is empty. The caller holds l.mu.
func (l *lender) tell(name string, d *desk) {
	close(d.changed)
	d.changed = make(chan struct{})
	if d.loan == nil && d.readers == 0 && d.hosts == 0 {
		delete(l.desks, name)
	}
}

// lend keeps the blocks of q, which has just ended, if q asks for that. As in vLLM only an answer
// that a limit ended is lent. A nil lender lends nothing. lend returns false if the caller should
// free the blocks.
func (l *lender) lend(q *sequence, s *scheduler) bool {
	if l == nil || !q.lent() || q.lost {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.enter(q.lendAs)
	if l.shut || d.loan != nil {
		l.tell(q.lendAs, d)
		return false
	}
	n := &loan{q: q, sched: s, size: len(q.held) + q.loose}
	n.end = time.AfterFunc(l.lease, func() {
		if l.remove(q.lendAs, n) {
			l.expired.Add(1)
			s.giveBack(q)
		}
	})
	d.loan = n
	l.lent.Add(1)
	l.requests.Add(1)
	l.blocks.Add(int64(n.size))
	l.tell(q.lendAs, d)
	return true
}

// take returns a lent prompt and frees its blocks. If wait is set, take waits for a prompt that is
// not computed yet, until ctx ends. take returns nil if there is no such loan.
func (l *lender) take(ctx context.Context, name string, wait bool) *lentPrompt {
	n := l.claim(name)
	if n == nil && wait {
		n = l.await(ctx, name)
	}
	if n == nil {
		return nil
	}
	n.end.Stop()
	n.sched.giveBack(n.q)
	return &lentPrompt{n.q.prompt, int(n.q.cached.Load())}
}

// claim ends a loan. claim returns nil if there is none.
func (l *lender) claim(name string) *loan {
	l.mu.Lock()
	defer l.mu.Unlock()
	if d := l.desks[name]; d != nil && d.loan != nil {
		return l.pick(name, d)
	}
	return nil
}

// pick ends the loan of a desk. The caller holds l.mu.
func (l *lender) pick(name string, d *desk) *loan {
	n := d.loan
	d.loan = nil
	l.requests.Add(-1)
	l.blocks.Add(-int64(n.size))
	l.tell(name, d)
	return n
}

// await is claim for a reader that waits.
func (l *lender) await(ctx context.Context, name string) *loan {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.enter(name)
	d.readers++
	l.tell(name, d)
	defer func() {
		d.readers--
		l.tell(name, d)
	}()
	for d.loan == nil {
		if !l.pause(ctx, d) {
			return nil
		}
	}
	return l.pick(name, d)
}

// meet waits until another engine waits to read a prompt. meet returns false if ctx ends first.
func (l *lender) meet(ctx context.Context, name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.enter(name)
	d.hosts++
	defer func() {
		d.hosts--
		l.tell(name, d)
	}()
	for d.readers == 0 {
		if !l.pause(ctx, d) {
			return false
		}
	}
	return true
}

// pause waits for a change at a desk. pause returns false if ctx has ended or the lender is closed.
// The caller holds l.mu, which pause releases meanwhile.
func (l *lender) pause(ctx context.Context, d *desk) bool {
	changed := d.changed
	l.mu.Unlock()
	select {
	case <-changed:
	case <-ctx.Done():
	}
	l.mu.Lock()
	return ctx.Err() == nil && !l.shut
}

// remove ends the loan n. remove returns false if n has ended before.
func (l *lender) remove(name string, n *loan) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.desks[name]
	if d == nil || d.loan != n {
		return false
	}
	l.pick(name, d)
	return true
}

// close ends all loans and waits.
func (l *lender) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shut = true
	for name, d := range l.desks {
		if d.loan != nil {
			d.loan.end.Stop()
			d.loan = nil
		}
		l.tell(name, d)
	}
}

// stats adds the lender's counts to s.
func (l *lender) stats(s *Stats) {
	s.LentRequests, s.LentBlocks, s.Lent = l.requests.Load(), l.blocks.Load(), l.lent.Load()
	s.ExpiredLeases, s.WrongBlocks = l.expired.Load(), l.wrong.Load()
	s.LostBlocks, s.LoneLegs = l.lost.Load(), l.lone.Load()
}
