package bpf

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// bucketOf is histogram_bucket of histogram.h in Go.
func bucketOf(d time.Duration) int {
	units := uint64(d) >> unitShift
	if units < 16 {
		return int(units)
	}
	if units>>27 != 0 {
		return histogramBuckets - 1
	}
	octave := bits.Len64(units) - 1
	return min((octave-3)*16+int(units>>(octave-4)&15), histogramBuckets-1)
}

// TestBuckets: buckets follow each other without gaps, each value is inside the bounds of its
// bucket, and no bucket is wider than the documentation says.
func TestBuckets(t *testing.T) {
	for i := range histogramBuckets - 1 {
		lower, upper := Bounds(i)
		if next, _ := Bounds(i + 1); next != upper {
			t.Fatalf("bucket %d ends at %v, the next begins at %v", i, upper, next)
		}
		if bucketOf(lower) != i || bucketOf(upper-1) != i {
			t.Fatalf("bucket %d [%v, %v): %d %d", i, lower, upper, bucketOf(lower), bucketOf(upper-1))
		}
		if i >= 16 && (upper-lower)*16 > lower {
			t.Fatalf("bucket %d [%v, %v) is too wide", i, lower, upper)
		}
	}
	if bucketOf(time.Hour) != histogramBuckets-1 {
		t.Error("an hour is in no bucket")
	}
}

func TestQuantile(t *testing.T) {
	h := Histogram{}
	if h.Quantile(0.5) != 0 || h.Mean() != 0 {
		t.Error("an empty histogram has values")
	}
	r := rand.New(rand.NewPCG(1, 2))
	var all []time.Duration
	var buckets [histogramBuckets]uint64
	sum := uint64(0)
	for range 10000 {
		d := time.Duration(r.ExpFloat64() * float64(20*time.Millisecond))
		all, sum = append(all, d), sum+uint64(d)
		buckets[bucketOf(d)]++
	}
	h.add(10000, sum, &buckets)
	slices.Sort(all)
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 0.999} {
		want := all[int(q*10000)]
		got := h.Quantile(q)
		if lower, upper := Bounds(bucketOf(want)); got < lower-lower/16-1024 || got > upper+upper/16+1024 {
			t.Errorf("quantile %v is %v, not %v", q, got, want)
		}
	}
	if h.Quantile(0) > h.Quantile(1) || h.Quantile(-1) != h.Quantile(0) || h.Quantile(2) != h.Quantile(1) {
		t.Error("quantiles outside 0 to 1")
	}
	if h.Mean() != time.Duration(sum/10000) {
		t.Errorf("mean %v", h.Mean())
	}
}

// TestSince: differences are right over a wrapped counter, and after counting has begun anew.
func TestSince(t *testing.T) {
	one := func(count uint64, at int) Histogram {
		h := Histogram{Count: count, Sum: time.Duration(count), Buckets: make([]uint64, histogramBuckets)}
		h.Buckets[at] = count
		return h
	}
	if d := one(7, 3).Since(one(5, 3)); d.Count != 2 || d.Buckets[3] != 2 || d.Sum != 2 {
		t.Errorf("%+v", d)
	}
	if d := one(4, 3).Since(one(^uint64(0)-1, 3)); d.Count != 6 || d.Buckets[3] != 6 {
		t.Errorf("wrapped: %d %d", d.Count, d.Buckets[3])
	}
	if d := one(4, 3).Since(one(9, 3)); d.Count != 4 {
		t.Errorf("begun anew: %+v", d.Count)
	}
	if d := one(4, 3).Since(Histogram{}); d.Count != 4 {
		t.Errorf("from nothing: %+v", d.Count)
	}
}
