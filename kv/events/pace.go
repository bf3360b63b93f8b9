package events

import (
	"context"
	"time"
)

// How fast one engine is read. A stored block of 16 tokens is 90 bytes, so this is 90,000 blocks a
// second, over a million tokens: an engine computes a tenth of that, and a flood takes a fifth of a
// CPU from whoever shares it with the follower. What is beyond waits in the engine's socket, which
// drops at its limit: a gap.
const (
	paceRate = 8 << 20 // bytes a second
	// bytes that may be read at once after a rest: a replay of 180,000 blocks, in a fifth of a
	// second
	paceBurst = 16 << 20
	// bytes that a message counts for besides its own: to read and report it takes a few
	// microseconds, however small it is
	paceMessage = 512
	paceLeast   = 10 * time.Millisecond
)

// pace says when to read on.
type pace struct {
	left int64 // bytes that may be read at once; less than nothing: too much was read
	at   time.Time
}

func newPace(now time.Time) pace { return pace{paceBurst, now} }

// take counts a message of n bytes, and returns for how long to read nothing.
func (p *pace) take(n int, now time.Time) time.Duration {
	passed := min(max(now.Sub(p.at), 0), time.Minute) // in which more than a burst is given back
	p.left = min(p.left+int64(passed.Seconds()*paceRate), paceBurst) - int64(n) - paceMessage
	p.at = now
	if wait := time.Duration(-p.left) * time.Second / paceRate; wait >= paceLeast {
		return wait
	}
	return 0
}

// read reads a message, and pauses where too much was read.
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
		if !pause(ctx, wait) {
			return nil, ctx.Err()
		}
	}
	return parts, nil
}
