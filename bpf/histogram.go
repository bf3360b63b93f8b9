package bpf

import "time"

// histogramBuckets is HISTOGRAM_BUCKETS of histogram.h.
const histogramBuckets = 384

// unit of the buckets: 1024 ns.
const unitShift = 10

// Histogram counts durations in log-linear buckets: each is at most 1/16 of its lower bound wide, from 16.4 us on; below that, 1024 ns. What is
// longer than 137 s is in the last one. Sum is exact. The zero value is empty.
type Histogram struct {
	Count   uint64
	Sum     time.Duration
	Buckets []uint64 // 384, or none when empty
}

// Bounds returns the lower and the upper bound of bucket i. What lies at the lower bound belongs to it.
func Bounds(i int) (lower, upper time.Duration) {
	at := func(i int) time.Duration {
		if i < 16 {
			return time.Duration(i) << unitShift
		}
		return time.Duration(16+i%16) << (i/16 - 1) << unitShift
	}
	return at(i), at(i + 1)
}

// Quantile returns the duration below which the share q (0 to 1) of the counts lies, interpolated inside its bucket; 0 if the histogram is empty.
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

// Since returns what was counted after earlier. Counters that wrapped are right; those that were set back (programs removed and loaded again) count from 0.
func (h Histogram) Since(earlier Histogram) Histogram {
	if int64(h.Count-earlier.Count) < 0 || len(h.Buckets) != len(earlier.Buckets) {
		return h
	}
	d := Histogram{Count: h.Count - earlier.Count, Sum: h.Sum - earlier.Sum, Buckets: make([]uint64, len(h.Buckets))}
	for i := range h.Buckets {
		if n := h.Buckets[i] - earlier.Buckets[i]; int64(n) > 0 {
			d.Buckets[i] = n
		}
	}
	return d
}

// add adds the counts of a kernel histogram to h.
func (h *Histogram) add(count, sum uint64, buckets *[histogramBuckets]uint64) {
	if count == 0 {
		return
	}
	if h.Buckets == nil {
		h.Buckets = make([]uint64, histogramBuckets)
	}
	h.Count += count
	h.Sum += time.Duration(sum)
	for i, n := range buckets {
		h.Buckets[i] += n
	}
}
