package load

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// subBits is the precision: a value is exact to 1/2^subBits of itself.
const subBits = 6

// Histogram counts durations. Any number of goroutines may call Add.
type Histogram struct {
	counts [(64-subBits)<<subBits + 1<<subBits]atomic.Uint32
	max    atomic.Int64
}

func bucket(ns uint64) int {
	shift := max(bits.Len64(ns)-subBits-1, 0)
	return shift<<subBits + int(ns>>shift)
}

// upper returns the largest value of a bucket.
func upper(bucket int) uint64 {
	shift := max(bucket>>subBits-1, 0)
	return (uint64(bucket-shift<<subBits)+1)<<shift - 1
}

// Add counts d. A negative d counts as 0.
func (h *Histogram) Add(d time.Duration) {
	d = max(d, 0)
	h.counts[bucket(uint64(d))].Add(1)
	for old := h.max.Load(); int64(d) > old; old = h.max.Load() {
		if h.max.CompareAndSwap(old, int64(d)) {
			return
		}
	}
}

// Quantiles are common quantiles of a distribution, in seconds.
type Quantiles struct {
	Count uint64  `json:"count"`
	P50   float64 `json:"p50_seconds"`
	P90   float64 `json:"p90_seconds"`
	P99   float64 `json:"p99_seconds"`
	Max   float64 `json:"max_seconds"`
}

// Quantiles returns the histogram's quantiles. Each quantile is at most 1/64 too large. All
// quantiles of an empty histogram are 0.
func (h *Histogram) Quantiles() Quantiles {
	var q Quantiles
	for i := range h.counts {
		q.Count += uint64(h.counts[i].Load())
	}
	if q.Count == 0 {
		return q
	}
	largest := uint64(h.max.Load())
	at := func(p float64) float64 {
		rank, seen := uint64(p*float64(q.Count)), uint64(0)
		for i := range h.counts {
			if seen += uint64(h.counts[i].Load()); seen > rank {
				return time.Duration(min(upper(i), largest)).Seconds()
			}
		}
		return time.Duration(largest).Seconds()
	}
	q.P50, q.P90, q.P99, q.Max = at(0.50), at(0.90), at(0.99), time.Duration(largest).Seconds()
	return q
}
