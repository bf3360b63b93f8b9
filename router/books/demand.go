package books

import (
	"math"
	"time"
)

// DemandFor is the time that Demand looks back. A prompt's part of it fades, by 1/e in this time.
const DemandFor = 10 * time.Second

// demand is the learned time of the prompts that a node got, as a sum that fades.
type demand struct {
	seconds float64
	at      time.Time // of the last prompt
}

// add counts a prompt. A prompt of unknown time does not count.
func (d *demand) add(learned time.Duration, now time.Time) {
	if learned > 0 {
		d.seconds, d.at = d.faded(now)+learned.Seconds(), now
	}
}

func (d *demand) faded(now time.Time) float64 {
	return d.seconds * math.Exp(-max(now.Sub(d.at).Seconds(), 0)/DemandFor.Seconds())
}

// Demand returns the learned time of the prompts that the node got in the last DemandFor, in
// seconds. More than DemandFor is more than the node can compute.
func (b *Book) Demand(now time.Time) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.demand.faded(now)
}
