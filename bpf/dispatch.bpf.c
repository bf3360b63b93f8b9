//go:build ignore

// Dispatchers are the programs that are attached to tracepoints. A tracepoint's link cannot be
// given another program, so it keeps a dispatcher, which only jumps to the program in its slot. An
// upgrade puts another program into the slot. The dispatcher shows the run counts and run times of
// the slot's program.
#include "kernel.h"

char _license[] SEC("license") = "Dual BSD/GPL";

// Purpose: the program of a tracepoint. Writer: Go. Reader: the dispatcher. Key: 0. Value: program.
// Size: one entry, because programs of different tracepoints may not share a map.
#define SLOT(name)                                                                                                             \
	struct {                                                                                                               \
		__uint(type, BPF_MAP_TYPE_PROG_ARRAY);                                                                         \
		__uint(max_entries, 1);                                                                                        \
		__type(key, __u32);                                                                                            \
		__type(value, __u32);                                                                                          \
	} name SEC(".maps")

SLOT(cgn_to_switch);
SLOT(cgn_to_fork);
SLOT(cgn_to_exit);
SLOT(cgn_to_state);
SLOT(cgn_to_retrans);

SEC("tp_btf/sched_switch")
int cgn_on_switch(void *ctx)
{
	bpf_tail_call(ctx, &cgn_to_switch, 0);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int cgn_on_fork(void *ctx)
{
	bpf_tail_call(ctx, &cgn_to_fork, 0);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int cgn_on_exit(void *ctx)
{
	bpf_tail_call(ctx, &cgn_to_exit, 0);
	return 0;
}

SEC("tp_btf/inet_sock_set_state")
int cgn_on_state(void *ctx)
{
	bpf_tail_call(ctx, &cgn_to_state, 0);
	return 0;
}

SEC("tp_btf/tcp_retransmit_skb")
int cgn_on_retrans(void *ctx)
{
	bpf_tail_call(ctx, &cgn_to_retrans, 0);
	return 0;
}
