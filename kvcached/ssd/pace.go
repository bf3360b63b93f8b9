package ssd

import (
	"context"
	"time"
)

// pace bounds bytes per second.
type pace struct {
	rate int64 // 0: no bound
	next time.Time
}

// wait returns when n more bytes may pass, or stop ends.
func (p *pace) wait(stop context.Context, n int64) {
	if p.rate <= 0 {
		return
	}
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	p.next = p.next.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
	timer := time.NewTimer(time.Until(p.next))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-stop.Done():
	}
}
