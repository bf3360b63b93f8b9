package holdings

import "sync"

// turns lets one promotion of a cache run at a time.
type turns struct {
	mu      sync.Mutex
	running bool
	waiting []*Promotion // at most promoteLater
}

// turn says when a promotion runs.
type turn uint8

const (
	runs    turn = iota
	waits        // next returns it later
	tooMany      // wait already
)

// take begins p or puts it in line.
func (t *turns) take(p *Promotion) turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !t.running:
		t.running = true
		return runs
	case len(t.waiting) == promoteLater:
		return tooMany
	}
	t.waiting = append(t.waiting, p)
	return waits
}

// next ends the running promotion and begins the next one, or returns nil.
func (t *turns) next() *Promotion {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.running = len(t.waiting) > 0; !t.running {
		return nil
	}
	p := t.waiting[0]
	t.waiting = append(t.waiting[:0], t.waiting[1:]...)
	return p
}
