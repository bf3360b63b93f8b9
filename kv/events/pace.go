package events

import (
	"context"
	"time"

	"github.com/cognitora/dataplane/internal/await"
)

// Bounds on reading from one engine. A stored block of 16 tokens has 90 bytes, so the rate is
// 90,000 blocks a second, over a million tokens. An engine computes a tenth of that. At the full
// rate, reading takes a fifth of a CPU. Surplus bytes wait in the engine's socket, which drops
// messages at its limit; dropped messages are a gap.
const (
	paceRate = 8 << 20 // bytes per second
	// paceBurst is how many bytes may be read at once after a pause: a replay of 180,000 blocks, in
	// a fifth of a second.
	paceBurst = 16 << 20
	// paceMessage is added to the bytes of each message, because reading and reporting the smallest
	// message takes a few microseconds.
	paceMessage = 512
	paceLeast   = 10 * time.Millisecond
)

// pace decides when to read on.
type pace struct {
	left int64 // bytes that may be read now; negative: too many were read
	at   time.Time
}

func newPace(now time.Time) pace { return pace{paceBurst, now} }

// take counts a message of n bytes, and returns the pause before the next read.
func (p *pace) take(n int, now time.Time) time.Duration {
	passed := min(max(now.Sub(p.at), 0), time.Minute) // a minute restores more than a burst
	p.left = min(p.left+int64(passed.Seconds()*paceRate), paceBurst) - int64(n) - paceMessage
	p.at = now
	if wait := time.Duration(-p.left) * time.Second / paceRate; wait >= paceLeast {
		return wait
	}
	return 0
}

// read reads a message. It pauses if too much was read before.
func (f *Follower) read(ctx context.Context, s *socket) ([][]byte, error) {
	parts, err := s.message()
	if err != nil {
		return nil, err
	}
	n := 0
	for _, part := range parts {
		n += len(part)
	}
	if wait := f.pace.take(n, time.Now()); wait > 0 {
		f.counts.paused.Add(1)
		if !await.For(ctx, wait) {
			return nil, ctx.Err()
		}
	}
	return parts, nil
}
