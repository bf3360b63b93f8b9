// Package shares divides a bounded number of places fairly.
package shares

import "sync"

// Shares gives places to holders, of which none can take all. Shares is safe for concurrent use.
type Shares struct {
	places int

	mu   sync.Mutex
	free int
	held map[string]int // by holder; none is 0
}

// New returns Shares of that many places.
func New(places int) *Shares { return &Shares{places: places, free: places, held: map[string]int{}} }

// Take gives the holder another place, if the holder has fewer than are free. So one holder gets
// half of all places at most. Each of n greedy holders gets one in n+1, and as many stay free for
// others.
func (s *Shares) Take(holder string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[holder] >= s.free {
		return false
	}
	s.free--
	s.held[holder]++
	return true
}

// Give takes back a place that the holder got.
func (s *Shares) Give(holder string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free++
	if s.held[holder]--; s.held[holder] == 0 {
		delete(s.held, holder)
	}
}

// Held returns the number of places that holders have.
func (s *Shares) Held() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.places - s.free
}
