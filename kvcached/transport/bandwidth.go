package transport

import (
	"context"
	"sync"
	"time"
)

// direction of payloads, as seen from this host.
type direction int

const (
	inward direction = iota
	outward
)

// Caps of bandwidth in bytes per second, of payloads, both lanes and both roles together. Zero:
// none.
type Caps struct {
	TotalIn, TotalOut int64
	PeerIn, PeerOut   int64 // of one host
}

// maxGates bounds how many hosts have a bucket of their own; hosts beyond share one.
const maxGates = 1024

// Bandwidth holds the caps of a daemon: one is given to its Server and its Pool. The buckets of a
// host that is not connected to any more go when they owe nothing, so that nobody has more by
// coming anew; it has no goroutine.
type Bandwidth struct {
	caps  Caps
	total [2]*bucket

	mu    sync.Mutex
	hosts map[string]*gates
}

// NewBandwidth returns the caps.
func NewBandwidth(c Caps) *Bandwidth {
	return &Bandwidth{caps: c, total: [2]*bucket{newBucket(c.TotalIn), newBucket(c.TotalOut)},
		hosts: map[string]*gates{}}
}

// of returns what payloads of a host pass through, until release; nil where nothing is capped.
func (b *Bandwidth) of(host string) *gates {
	if b == nil || b.caps == (Caps{}) {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	g := b.hosts[host]
	if g == nil && len(b.hosts) >= maxGates {
		b.sweep()
		if len(b.hosts) >= maxGates {
			host = ""
			g = b.hosts[host]
		}
	}
	if g == nil {
		g = &gates{buckets: [2][2]*bucket{
			inward:  {b.total[inward], newBucket(b.caps.PeerIn)},
			outward: {b.total[outward], newBucket(b.caps.PeerOut)},
		}}
		b.hosts[host] = g
	}
	g.uses++
	return g
}

// release ends a use of what of has returned.
func (b *Bandwidth) release(g *gates) {
	if g == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	g.uses--
	b.sweep()
}

// sweep removes the buckets that nobody uses and that are as good as new. The caller holds mu.
func (b *Bandwidth) sweep() {
	for host, g := range b.hosts {
		if g.uses == 0 && g.buckets[inward][1].idle() && g.buckets[outward][1].idle() {
			delete(b.hosts, host)
		}
	}
}

// gates are the buckets of one host, by direction: the daemon's and its own.
type gates struct {
	uses    int // guarded by Bandwidth.mu
	buckets [2][2]*bucket
}

// step is how much to move at once, where that much is right without caps.
func (g *gates) step(uncapped int) int {
	if g == nil {
		return uncapped
	}
	return cappedStep
}

// wait returns when n more bytes may pass.
func (g *gates) wait(ctx context.Context, d direction, n int) error {
	if g == nil {
		return nil
	}
	for i, b := range g.buckets[d] {
		if err := b.wait(ctx, n); err != nil {
			for _, passed := range g.buckets[d][:i] {
				passed.giveBack(n)
			}
			return err
		}
	}
	return nil
}

// take lets n more bytes pass where all before have been paid for; false: it does not, and who asks
// has to wait.
func (g *gates) take(d direction, n int) bool {
	if g == nil {
		return true
	}
	for i, b := range g.buckets[d] {
		if !b.take(n) {
			for _, passed := range g.buckets[d][:i] {
				passed.giveBack(n)
			}
			return false
		}
	}
	return true
}

// giveBack says that n bytes that were let pass do not.
func (g *gates) giveBack(d direction, n int) {
	if g == nil {
		return
	}
	for _, b := range g.buckets[d] {
		b.giveBack(n)
	}
}

// bucket lets rate bytes per second pass, and after a pause as many as in a twentieth of a second.
type bucket struct {
	rate float64

	mu   sync.Mutex
	free time.Time // when everything let through so far has been paid for
}

// burst is how far back an idle bucket counts.
const burst = 50 * time.Millisecond

func newBucket(rate int64) *bucket {
	if rate <= 0 {
		return nil
	}
	return &bucket{rate: float64(rate)}
}

// idle tells whether a bucket counts as far back as one can.
func (b *bucket) idle() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.free.After(time.Now().Add(-burst))
}

// cost is how long it takes to pay for n bytes.
func (b *bucket) cost(n int) time.Duration {
	return time.Duration(float64(n) / b.rate * float64(time.Second))
}

// add counts n bytes, and returns for how long nothing has been paid for then. mu is held.
func (b *bucket) add(n int, now time.Time) time.Duration {
	if earliest := now.Add(-burst); b.free.Before(earliest) {
		b.free = earliest
	}
	b.free = b.free.Add(b.cost(n))
	return b.free.Sub(now)
}

func (b *bucket) take(n int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if b.free.After(now) {
		return false
	}
	b.add(n, now)
	return true
}

func (b *bucket) giveBack(n int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free = b.free.Add(-b.cost(n))
}

// wait lets n bytes pass. Those that nobody waits for any more are not paid for.
func (b *bucket) wait(ctx context.Context, n int) error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	pause := b.add(n, time.Now())
	b.mu.Unlock()
	if pause <= 0 {
		return nil
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		b.giveBack(n)
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}
