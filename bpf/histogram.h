// Log-linear histograms of durations, in units of 1024 ns. The first 16 units have one bucket each,
// and each later octave has 16 buckets. So a bucket of an octave is at most 1/16 of its lower bound
// wide. The last bucket also counts durations of more than 137 s.
#ifndef CGN_HISTOGRAM_H
#define CGN_HISTOGRAM_H

#include "kernel.h"

#define HISTOGRAM_BUCKETS 384

struct histogram {
	__u64 count;
	__u64 sum_ns;
	__u64 buckets[HISTOGRAM_BUCKETS];
};

static __always_inline __u32 log2_of(__u32 v)
{
	__u32 n = 0;

	if (v >> 16) {
		v >>= 16;
		n += 16;
	}
	if (v >> 8) {
		v >>= 8;
		n += 8;
	}
	if (v >> 4) {
		v >>= 4;
		n += 4;
	}
	if (v >> 2) {
		v >>= 2;
		n += 2;
	}
	return n + (v >> 1);
}

static __always_inline __u32 histogram_bucket(__u64 ns)
{
	__u64 units = ns >> 10;
	__u32 octave, i;

	if (units < 16)
		return units;
	if (units >> 27)
		return HISTOGRAM_BUCKETS - 1;
	octave = log2_of(units);
	i = (octave - 3) * 16 + ((units >> (octave - 4)) & 15);
	return i < HISTOGRAM_BUCKETS ? i : HISTOGRAM_BUCKETS - 1;
}

// bounded makes the compiler compare and use i in one register, because the verifier must see the
// bound of the used value.
static __always_inline __u64 bounded(__u64 i)
{
	asm volatile("" : "+r"(i));
	return i;
}

// histogram_add is for values that several CPUs write.
static __always_inline void histogram_add(struct histogram *h, __u64 ns)
{
	__u64 i = bounded(histogram_bucket(ns));

	__sync_fetch_and_add(&h->count, 1);
	__sync_fetch_and_add(&h->sum_ns, ns);
	if (i < HISTOGRAM_BUCKETS)
		__sync_fetch_and_add(&h->buckets[i], 1);
}

// histogram_add_here is for values of one CPU.
static __always_inline void histogram_add_here(struct histogram *h, __u64 ns)
{
	__u64 i = bounded(histogram_bucket(ns));

	h->count++;
	h->sum_ns += ns;
	if (i < HISTOGRAM_BUCKETS)
		h->buckets[i]++;
}

#endif
