//go:build !linux

package relay

import "sync"

// poller does nothing on this system; see Watcher.
type poller struct {
	once   sync.Once
	closed chan struct{}
}

func newPoller() (*poller, error) { return &poller{closed: make(chan struct{})}, nil }

func (p *poller) add(int, uint64) error { return nil }

func (p *poller) remove(int) {}

func (p *poller) run(func(id uint64)) error { <-p.closed; return nil }

func (p *poller) close() { p.once.Do(func() { close(p.closed) }) }
