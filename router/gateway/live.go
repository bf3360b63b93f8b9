package gateway

import (
	"sync"
	"sync/atomic"
)

// liveCalls is the set of calls with a request out at a node. A shutdown ends all live calls. The
// set has 16 parts, so the request path does not wait for one lock.
type liveCalls [16]liveShard

type liveShard struct {
	mu    sync.Mutex
	calls map[*call]struct{}
	_     [48]byte // one cache line each
}

func (l *liveCalls) shard(c *call) *liveShard { return &l[c.number%uint64(len(l))] }

func (l *liveCalls) add(c *call) {
	s := l.shard(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = map[*call]struct{}{}
	}
	s.calls[c] = struct{}{}
}

func (l *liveCalls) remove(c *call) {
	s := l.shard(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.calls, c)
}

// each calls f for every live call. A call cannot end while f runs on the call.
func (l *liveCalls) each(f func(*call)) {
	for i := range l {
		s := &l[i]
		s.mu.Lock()
		for c := range s.calls {
			f(c)
		}
		s.mu.Unlock()
	}
}

// counter counts up to a bound.
type counter struct{ n atomic.Int64 }

func (c *counter) take(limit int) bool {
	if c.n.Add(1) > int64(limit) {
		c.n.Add(-1)
		return false
	}
	return true
}

// give undoes one take and returns the remaining count.
func (c *counter) give() int64 { return c.n.Add(-1) }
