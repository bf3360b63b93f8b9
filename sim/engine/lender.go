package engine

import (
	"sync"
	"sync/atomic"
	"time"
)

// lender keeps the blocks of ended prompts until another engine has read them or their lease ends.
// Each prompt is read at most once. A loan keeps at least one block of the cache, which bounds the
// number of loans. Any goroutine may call the methods.
type lender struct {
	lease time.Duration

	mu    sync.Mutex
	loans map[string]*loan
	shut  bool

	blocks                     atomic.Int64 // of all loans
	lent, expired, wrong, lost atomic.Int64
}

// loan is one prompt that another engine may read.
type loan struct {
	q     *sequence
	sched *scheduler // has the blocks
	size  int        // number of blocks
	end   *time.Timer
}

func newLender(lease time.Duration) *lender {
	return &lender{lease: lease, loans: make(map[string]*loan)}
}

// lend keeps the blocks of q, which has just ended, if q asks for that. As in vLLM only an answer
// that max_tokens ended is lent. A nil lender lends nothing. lend returns false if the caller should free the blocks.
func (l *lender) lend(q *sequence, s *scheduler) bool {
	if l == nil || q.lendAs == "" || q.output.reason != "length" {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.shut || l.loans[q.lendAs] != nil {
		return false
	}
	n := &loan{q: q, sched: s, size: len(q.held) + q.loose}
	n.end = time.AfterFunc(l.lease, func() {
		if l.remove(q.lendAs, n) {
			l.expired.Add(1)
			s.giveBack(q)
		}
	})
	l.loans[q.lendAs] = n
	l.lent.Add(1)
	l.blocks.Add(int64(n.size))
	return true
}

// take returns the tokens of a lent prompt and frees its blocks. take returns nil if there is no
// such loan.
func (l *lender) take(name string) []uint32 {
	l.mu.Lock()
	n := l.loans[name]
	l.mu.Unlock()
	if n == nil || !l.remove(name, n) {
		return nil
	}
	n.end.Stop()
	n.sched.giveBack(n.q)
	return n.q.prompt
}

// remove ends a loan. remove returns false if the loan has ended before.
func (l *lender) remove(name string, n *loan) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.loans[name] != n {
		return false
	}
	delete(l.loans, name)
	l.blocks.Add(-int64(n.size))
	return true
}

// close ends all loans.
func (l *lender) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shut = true
	for _, n := range l.loans {
		n.end.Stop()
	}
	clear(l.loans)
}

// stats adds the lender's counts to s.
func (l *lender) stats(s *Stats) {
	l.mu.Lock()
	s.LentRequests = int64(len(l.loans))
	l.mu.Unlock()
	s.LentBlocks, s.Lent, s.ExpiredLeases = l.blocks.Load(), l.lent.Load(), l.expired.Load()
	s.WrongBlocks, s.LostBlocks = l.wrong.Load(), l.lost.Load()
}
