// The maps that several programs use, or that Go reads. Each program's file includes the headers
// that it needs. The loader makes each map once for all programs. Padding in a structure is a named
// field, because Go reads structures as they are, and bpftool prints every byte.
#ifndef CGN_MAPS_H
#define CGN_MAPS_H

#include "kernel.h"

// ---- drops ----

// Counts of losses, by the full table or buffer. A program counts every failed insertion here.
struct drops {
	__u64 events_full;    // events that did not fit into the ring, because its reader is too slow or missing
	__u64 peers_full;     // new peers for which even eviction made no room
	__u64 socks_full;     // sockets that are not counted, because there was no memory for their state
	__u64 processes_full; // children of a watched process that are not followed
	__u64 tasks_full;     // threads without memory for their state: no group, and waits that moves between CPUs shorten
	__u64 odd_packets;    // TCP packets of a counted socket whose headers were not understood
};

// Purpose: counts losses. Writer: all programs. Reader: Reader, Check. Key: 0. Value: counters of
// this CPU. Size: one entry for each CPU.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct drops);
} cgn_drops SEC(".maps");

#define DROP(what)                                                                                                             \
	do {                                                                                                                   \
		__u32 zero_ = 0;                                                                                               \
		struct drops *drops_ = bpf_map_lookup_elem(&cgn_drops, &zero_);                                                \
		if (drops_)                                                                                                    \
			drops_->what++;                                                                                        \
	} while (0)

#define ADD(field, n) __sync_fetch_and_add(&(field), (n))

#endif
