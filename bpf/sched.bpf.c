//go:build ignore

// Utilisation of each CPU, waits of threads for a CPU, and CPU time of groups of processes. The
// programs run at three tracepoints: switch, fork and exit. No program runs at wakeups, because the
// kernel notes when a thread begins to wait (sched_info), and the program at switches reads that
// time.
#include "histogram.h"
#include "maps.h"

char _license[] SEC("license") = "Dual BSD/GPL";

// start_ns + busy_ns + idle_ns is the time of a CPU's last switch. The time since then belongs to
// the process in running. All times are from the clock of the CPU's run queue, which the kernel has
// just read. Reading another clock would be the most expensive part of the program.
struct cpu {
	__u64 start_ns;	  // time of the first switch that was seen; 0: none yet
	__u64 busy_ns;	  // time in which something ran
	__u64 idle_ns;	  // time in which nothing ran
	__u64 switches;	  // context switches
	__u64 ahead_ns;	  // CLOCK_MONOTONIC minus the run queue's clock, modulo 2^64; read at every 1024th switch
	__u64 generation; // generation of the settings at the last switch
	__u32 running;	  // process that runs; 0: idle
	__u32 group;	  // the group of that process; 0: none
};

// Purpose: utilisation of each CPU. Writer: sched_switch, of its own CPU. Reader: Reader. Key: 0.
// Value: struct cpu. Size: one entry for each CPU.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cpu);
} cgn_cpus SEC(".maps");

// Purpose: the waits of runnable threads for a CPU. Writer: sched_switch. Reader: Reader. Key: 0.
// Value: a histogram of waits. Size: one entry of 3 KiB for each CPU.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct histogram);
} cgn_run_delay SEC(".maps");

#define MAX_GROUPS 64

struct group {
	__u64 cpu_ns;	// CPU time of its threads, up to their last switch
	__u64 delay_ns; // time in which its threads waited for a CPU
	__u64 runs;	// waits that ended: how often one of its threads got a CPU
	__u64 root;	// the process that is watched with its descendants; 0: the group is free. Go writes root
};

// Purpose: CPU time of watched process trees. Writer: sched_switch; Go writes root. Reader: Reader.
// Key: number of the group; 0 is not used. Value: struct group. Size: 63 groups, because a host has
// only a few engines.
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_GROUPS);
	__type(key, __u32);
	__type(value, struct group);
} cgn_groups SEC(".maps");

// Purpose: the processes of groups. Writer: Go for processes that exist when a group is made, then
// fork and exit. Reader: fork, and sched_switch for a thread whose group it does not know. Key:
// process. Value: number of the group. Size: 63 engines with 64 processes each. A child that does
// not fit is counted and not followed.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} cgn_processes SEC(".maps");

struct settings {
	__u64 generation; // Go increments generation after each change of cgn_processes
};

// Purpose: tells sched_switch that groups have changed. Writer: Go. Reader: sched_switch. Key: 0.
// Value: struct settings. Size: one.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct settings);
} cgn_settings SEC(".maps");

struct task {
	__u64 delay_seen; // run_delay of the thread after its previous wait; its growth is the wait that ends now
	__u64 generation; // generation of the settings when group was looked up
	__u32 group;	  // 0: none
	__u32 unused;
};

// Purpose: a thread's group, and its whole waits, even if the kernel moves it between CPUs. Writer:
// fork and cgn_prime make an entry, and sched_switch updates it. Reader: sched_switch. Key: thread.
// Value: struct task. Size: one entry for each thread, freed with the thread. sched_switch must not
// allocate, so it makes no entry.
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct task);
} cgn_tasks SEC(".maps");

// group_of returns the group of a thread that runs or has just run.
static __always_inline __u32 group_of(struct task *t, struct task_struct *p, __u64 generation)
{
	__u32 tgid, *group;

	if (t->generation != generation) {
		tgid = p->tgid;
		group = bpf_map_lookup_elem(&cgn_processes, &tgid);
		t->group = group ? *group : 0;
		t->generation = generation;
	}
	return t->group;
}

static __always_inline int has_clock(void) { return bpf_core_field_exists(struct cfs_rq, rq) && bpf_core_field_exists(struct rq, clock); }

// notes_waits tells whether the kernel notes when waits begin (sched_info). If not, there is no run
// delay, and the loader reports it as missing.
static __always_inline int notes_waits(void)
{
	return has_clock() && bpf_core_field_exists(struct sched_info, last_queued) && bpf_core_field_exists(struct sched_info, run_delay);
}

// all_waits returns how long p, which gets a CPU at now, has waited in its life. sched_info has
// this value once the switch is done.
static __always_inline __u64 all_waits(struct task_struct *p, __u64 now)
{
	__u64 queued = p->sched_info.last_queued;

	return p->sched_info.run_delay + (queued && now > queued ? now - queued : 0);
}

// gets_cpu counts the wait of p that ends now.
static __always_inline void gets_cpu(struct cpu *c, struct task_struct *p, __u64 now)
{
	struct task *t = bpf_task_storage_get(&cgn_tasks, p, 0, 0);
	__u64 delay = 0, seen;
	__u32 zero = 0, number;
	struct histogram *h;
	struct group *g;

	if (!t)
		return;
	if (notes_waits()) {
		seen = all_waits(p, now);
		delay = seen - t->delay_seen;
		t->delay_seen = seen;
		h = bpf_map_lookup_elem(&cgn_run_delay, &zero);
		if (h)
			histogram_add_here(h, delay);
	}
	number = group_of(t, p, c->generation);
	c->group = number;
	if (!number)
		return;
	g = bpf_map_lookup_elem(&cgn_groups, &number);
	if (g) {
		g->delay_ns += delay;
		g->runs++;
	}
}

// ends_run counts the CPU time that p has used since the previous switch.
static __always_inline void ends_run(struct cpu *c, struct task_struct *p, __u64 ran, __u64 generation)
{
	struct task *t;
	struct group *g;

	c->busy_ns += ran;
	if (c->generation != generation) {
		t = bpf_task_storage_get(&cgn_tasks, p, 0, 0);
		c->group = t ? group_of(t, p, generation) : 0;
	}
	if (!c->group)
		return;
	g = bpf_map_lookup_elem(&cgn_groups, &c->group);
	if (g)
		g->cpu_ns += ran;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(cgn_switch, __u8 preempt, struct task_struct *prev, struct task_struct *next)
{
	__u32 zero = 0;
	struct cpu *c = bpf_map_lookup_elem(&cgn_cpus, &zero);
	struct settings *s = bpf_map_lookup_elem(&cgn_settings, &zero);
	__u64 now, last;

	if (!c || !s)
		return 0;
	now = has_clock() ? next->se.cfs_rq->rq->clock : bpf_ktime_get_ns();
	if (!(c->switches++ & 1023)) {
		c->ahead_ns = bpf_ktime_get_ns() - now;
		if (!c->start_ns)
			c->start_ns = now;
	}
	last = c->start_ns + c->busy_ns + c->idle_ns;
	if (now < last)
		now = last;
	if (prev->pid)
		ends_run(c, prev, now - last, s->generation);
	else
		c->idle_ns += now - last;
	c->generation = s->generation;
	c->running = next->tgid;
	c->group = 0;
	if (next->pid)
		gets_cpu(c, next, now);
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(cgn_fork, struct task_struct *parent, struct task_struct *child)
{
	__u32 zero = 0, from = parent->tgid, to = child->tgid, *group, number = 0;
	struct settings *s = bpf_map_lookup_elem(&cgn_settings, &zero);
	struct task *t = bpf_task_storage_get(&cgn_tasks, child, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	group = bpf_map_lookup_elem(&cgn_processes, &from);
	if (group)
		number = *group;
	if (number && from != to && bpf_map_update_elem(&cgn_processes, &to, &number, BPF_ANY))
		DROP(processes_full);
	if (!t) {
		DROP(tasks_full);
		return 0;
	}
	t->group = number;
	if (s)
		t->generation = s->generation;
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(cgn_exit, struct task_struct *p)
{
	__u32 tgid = p->tgid;

	if (p->signal->live.counter == 0)
		bpf_map_delete_elem(&cgn_processes, &tgid);
	return 0;
}

// cgn_prime makes the entries of existing threads in cgn_tasks. The loader runs cgn_prime once
// after the first attachment.
SEC("iter/task")
int cgn_prime(struct bpf_iter__task *ctx)
{
	struct task_struct *p = ctx->task;
	struct task *t;

	if (!p)
		return 0;
	if (bpf_task_storage_get(&cgn_tasks, p, 0, 0))
		return 0;
	t = bpf_task_storage_get(&cgn_tasks, p, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!t)
		DROP(tasks_full);
	else if (notes_waits())
		t->delay_seen = p->sched_info.run_delay;
	return 0;
}
