// Package await waits for a time, a channel or the end of a context, and wakes goroutines.
package await

import (
	"context"
	"math/rand/v2"
	"time"
)

// For waits for d. For returns false if ctx ends before.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Closed waits until done is closed. Closed returns the error of ctx if ctx ends before.
func Closed(ctx context.Context, done <-chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// About waits for half of d at least and d at most, like For. Clients that lost their server at the
// same time then come back one by one.
func About(ctx context.Context, d time.Duration) bool { return For(ctx, d/2+rand.N(d/2)) }

// Wake makes the goroutine that reads c go on. c has room for one value, so that a Wake before the
// read is not lost.
func Wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
