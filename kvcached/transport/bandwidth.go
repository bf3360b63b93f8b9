package transport

import (
	"context"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/await"
)

// direction of payloads, as seen from this host.
type direction int

const (
	inward direction = iota
	outward
)

// Bandwidth caps the payloads of a daemon over all lanes. The daemon's Server and Pool share it. A
// nil Bandwidth caps nothing.
type Bandwidth struct{ buckets [2]*bucket } // by direction; nil: no cap

// NewBandwidth returns caps in bytes per second; 0: no cap.
func NewBandwidth(in, out int64) *Bandwidth {
	return &Bandwidth{[2]*bucket{inward: newBucket(in), outward: newBucket(out)}}
}

// of returns the bucket of a direction; nil: there is no cap.
func (b *Bandwidth) of(d direction) *bucket {
	if b == nil {
		return nil
	}
	return b.buckets[d]
}

// step returns how many bytes to move at once: uncapped if there are no caps.
func (b *Bandwidth) step(uncapped int) int {
	if b.of(inward) == nil && b.of(outward) == nil {
		return uncapped
	}
	return cappedStep
}

// wait returns when n more bytes may pass. The bytes are not counted if the caller leaves.
func (b *Bandwidth) wait(ctx context.Context, d direction, n int) error {
	return b.of(d).wait(ctx, n)
}

// take reports whether n more bytes may pass at once, and then counts them. They may if the time
// for all earlier bytes is over.
func (b *Bandwidth) take(d direction, n int) bool { return b.of(d).take(n) }

// giveBack uncounts n bytes that were counted and not sent.
func (b *Bandwidth) giveBack(d direction, n int) { b.of(d).giveBack(n) }

// bucket lets rate bytes per second pass, and a burst at once after a pause.
type bucket struct {
	rate float64

	mu   sync.Mutex
	free time.Time // end of the time that the bytes so far take at rate
}

// burst bounds the pause that an idle bucket saves up.
const burst = 50 * time.Millisecond

func newBucket(rate int64) *bucket {
	if rate <= 0 {
		return nil
	}
	return &bucket{rate: float64(rate)}
}

// cost returns the time that n bytes take at rate.
func (b *bucket) cost(n int) time.Duration {
	return time.Duration(float64(n) / b.rate * float64(time.Second))
}

// add counts n bytes, and returns the time until they may pass. mu is held.
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
	if !await.For(ctx, pause) {
		b.giveBack(n)
		return context.Cause(ctx)
	}
	return nil
}
