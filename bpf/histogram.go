package bpf

import (
	"slices"
	"time"
)

// histogramBuckets is HISTOGRAM_BUCKETS of histogram.h.
const histogramBuckets = 384

// A bucket's unit is 1024 ns.
const unitShift = 10

// Histogram counts durations in log-linear buckets. From 16.4 us on, a bucket is at most 1/16 of
// its lower bound wide; below, it is 1024 ns wide. Durations above 137 s are in the last bucket.
// Sum is exact. The zero value is empty.
type Histogram struct {
	Count   uint64
	Sum     time.Duration
	Buckets []uint64 // 384, or none in an empty histogram
}

// Bounds returns the bounds of bucket i. The lower bound belongs to the bucket.
func Bounds(i int) (lower, upper time.Duration) {
	at := func(i int) time.Duration {
		if i < 16 {
			return time.Duration(i) << unitShift
		}
		return time.Duration(16+i%16) << (i/16 - 1) << unitShift
	}
	return at(i), at(i + 1)
}

// Quantile returns the duration below which the share q (0 to 1) of the counts lies, interpolated
// inside its bucket. The quantile is 0 if the histogram is empty.
func (h Histogram) Quantile(q float64) time.Duration {
	total := uint64(0)
	for _, n := range h.Buckets {
		total += n
	}
	if total == 0 {
		return 0
	}
	rank := min(max(q, 0), 1) * float64(total)
	below, last := 0.0, 0
	for i, n := range h.Buckets {
		if n == 0 {
			continue
		}
		lower, upper := Bounds(i)
		if below+float64(n) >= rank {
			return lower + time.Duration((rank-below)/float64(n)*float64(upper-lower))
		}
		below, last = below+float64(n), i
	}
	_, upper := Bounds(last)
	return upper
}

// Mean returns the exact mean; 0 if the histogram is empty.
func (h Histogram) Mean() time.Duration {
	if h.Count == 0 {
		return 0
	}
	return h.Sum / time.Duration(h.Count)
}

// Since returns the counts after earlier. Wrapped counters give the right difference. Counters that
// were set back, because programs were removed and loaded again, count from 0.
func (h Histogram) Since(earlier Histogram) Histogram {
	var d Histogram
	d.Subtract(&h, &earlier)
	return d
}

// Subtract sets d to h.Since(earlier). Subtract reuses the memory of d's buckets, and shares none
// with h and earlier.
func (d *Histogram) Subtract(h, earlier *Histogram) {
	d.Count, d.Sum, d.Buckets = h.Count, h.Sum, append(d.Buckets[:0], h.Buckets...)
	if int64(h.Count-earlier.Count) < 0 || len(h.Buckets) != len(earlier.Buckets) {
		return
	}
	d.Count -= earlier.Count
	d.Sum -= earlier.Sum
	for i, n := range earlier.Buckets {
		d.Buckets[i] -= n
		if int64(d.Buckets[i]) < 0 {
			d.Buckets[i] = 0
		}
	}
}

// reset empties h and keeps its memory.
func (h *Histogram) reset() {
	h.Count, h.Sum = 0, 0
	h.Buckets = h.Buckets[:0]
}

// add adds the counts of a kernel histogram to h.
func (h *Histogram) add(count, sum uint64, buckets *[histogramBuckets]uint64) {
	if count == 0 {
		return
	}
	if len(h.Buckets) == 0 {
		h.Buckets = slices.Grow(h.Buckets, histogramBuckets)[:histogramBuckets]
		clear(h.Buckets)
	}
	h.Count += count
	h.Sum += time.Duration(sum)
	for i, n := range buckets {
		h.Buckets[i] += n
	}
}
