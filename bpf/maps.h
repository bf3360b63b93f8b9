// The maps that several programs use, or that Go reads; each program's file includes what it needs. The loader makes each once and gives it to all.
// No structure has padding that is not a named field: Go reads them as they are, and bpftool prints every byte.
#ifndef CGN_MAPS_H
#define CGN_MAPS_H

#include "kernel.h"

// ---- drops ----

// Facts that were lost, by what was full. Every failed insertion of a program is counted here.
struct drops {
	__u64 events_full;    // the ring: its reader is too slow, or not there
	__u64 peers_full;     // no room for a new peer, not even by eviction
	__u64 socks_full;     // no memory to remember a socket: it counts nowhere
	__u64 processes_full; // a child of a watched process is not followed
	__u64 tasks_full;     // no memory to remember a thread: it is in no group, and its moves between CPUs shorten its waits
	__u64 odd_packets;    // TCP packets of a counted socket whose headers were not understood
};

// Purpose: nothing is lost silently. Writer: all programs. Reader: Reader, Check. Key: 0. Value: counters of this CPU.
// Size: one, per CPU.
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
