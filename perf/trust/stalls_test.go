package trust

import (
	"context"
	"slices"
	"sync"
	"time"
)

// redisTimeout is for how long the routers wait for Redis.
const redisTimeout = 4 * time.Second

// excuse is the least time of standing still after which a router may have given Redis up, though
// Redis is there.
const excuse = redisTimeout * 3 / 4

// stalls are the times in which the machine stood still, as the test itself measures.
type stalls struct {
	mu   sync.Mutex
	most time.Duration
	long []span // those of excuse or more, and what follows until routers ask Redis again
}

// watch measures until ctx ends.
func (s *stalls) watch(ctx context.Context) {
	const every = 20 * time.Millisecond
	for began := time.Now(); pause(ctx, every); began = time.Now() {
		s.enter(began, time.Since(began)-every)
	}
}

// enter records that the machine stood still.
func (s *stalls) enter(from time.Time, late time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most = max(s.most, late)
	if late >= excuse {
		s.long = append(s.long, span{from, from.Add(late + redisTimeout)})
	}
}

func (s *stalls) longest() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.most
}

// within says whether a long stall excuses something that was between two times.
func (s *stalls) within(from, to time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.long, func(o span) bool { return to.After(o.from) && from.Before(o.to) })
}
