package engine

import "time"

// backoff spaces restarts. The wait is first, doubles each time up to most, and is first again
// after a run that lasted at least stable.
type backoff struct {
	first, most, stable time.Duration
	next                time.Duration
}

// after returns the wait before the next restart, after a run of length ran.
func (b *backoff) after(ran time.Duration) time.Duration {
	if b.next == 0 || ran >= b.stable {
		b.next = b.first
	}
	wait := b.next
	b.next = min(2*b.next, b.most)
	return wait
}
