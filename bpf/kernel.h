// The kernel's fields that the programs read. The loader finds the fields by name on the running
// kernel (CO-RE), so that no vmlinux.h is needed. Programs read the fields directly, because the
// verifier checks pointers of tp_btf arguments.
#ifndef CGN_KERNEL_H
#define CGN_KERNEL_H

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define AF_INET 2
#define AF_INET6 10
#define IPPROTO_TCP 6
#define SOL_TCP 6

// Values of errno in sk_err.
#define EPIPE 32
#define ECONNRESET 104
#define ETIMEDOUT 110
#define ECONNREFUSED 111

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct rq {
	__u64 clock; // ns; schedstat uses the same clock
};

struct cfs_rq {
	struct rq *rq;
};

struct sched_entity {
	struct cfs_rq *cfs_rq;
};

struct sched_info {
	unsigned long long run_delay;	// ns in which the thread waited for a CPU, in all waits that have ended
	unsigned long long last_queued; // the run queue's clock when the present wait began; 0: the thread does not wait
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live; // threads that have not ended
};

struct task_struct {
	int pid;  // of the thread; 0: idle
	int tgid; // of the process
	struct signal_struct *signal;
	struct sched_entity se;
	struct sched_info sched_info;
};

struct sock_common {
	unsigned short skc_family;
};

struct sock {
	struct sock_common __sk_common;
	int sk_err;
	__u16 sk_protocol;
};

struct tcp_sock {
	__u64 bytes_received; // bytes received in order
	__u32 total_retrans;  // retransmitted segments
	__u32 data_segs_out;  // segments with payload, including retransmitted ones
	__u32 write_seq;      // sequence number after all bytes that the program has written
};

struct bpf_iter_meta;

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#pragma clang attribute pop

#endif
