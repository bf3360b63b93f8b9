package books

import (
	"math"
	"os"
	"strconv"
	"time"
)

// demand is the learned time of the prompts that a node got, as a sum that decays.
type demand struct {
	seconds float64
	at      time.Time // of the last prompt
}

// demandFor is the time in which a prompt's part of the demand falls to 1/e.
var demandFor = func() float64 {
	if v, err := strconv.ParseFloat(os.Getenv("KNOBFOR"), 64); err == nil {
		return v
	}
	return 10
}() // seconds

func (d *demand) add(c *Cost, now time.Time) {
	d.seconds, d.at = d.decayed(now)+c.Learned.Seconds(), now
}

func (d *demand) decayed(now time.Time) float64 {
	return d.seconds * math.Exp(-max(now.Sub(d.at).Seconds(), 0)/demandFor)
}

// Demand returns the learned time of the prompts that the node got lately, as a share of that time.
// A Demand above 1 is more than the node can compute.
func (b *Book) Demand(now time.Time) float64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.demand.decayed(now) / demandFor
}
