//go:build ignore

// Tokens: every packet of a counted socket passes skb_in or skb_out. Its headers give sizes, times
// and windows. Where a request may begin, the programs look at two bytes of payload, and do not
// keep them. The two bytes distinguish POST from other methods, and HTTP/1 from TLS and HTTP/2,
// which are not measured.
#include "answers.h"

char _license[] SEC("license") = "Dual BSD/GPL";

#define FLAG_FIN 1
#define FLAG_RST 4

// parse reads the headers of skb, from the IP header on. parse returns 0 if it does not know the
// headers.
static __always_inline int parse(struct __sk_buff *skb, struct packet *p)
{
	__u8 *data = (__u8 *)(long)skb->data, *end = (__u8 *)(long)skb->data_end, *tcp;
	__u32 head, total;

	if (data + 40 > end)
		return 0;
	if (data[0] >> 4 == 4) {
		if (data[9] != IPPROTO_TCP)
			return 0;
		head = (data[0] & 15) * 4;
	} else {
		if (data[6] != IPPROTO_TCP)
			return 0;
		head = 40;
	}
	tcp = data + (head & 63);
	if (tcp + 20 > end)
		return 0;
	p->seq = bpf_ntohl(*(__be32 *)(tcp + 4));
	p->flags = tcp[13];
	p->window = *(__be16 *)(tcp + 14);
	p->offset = head + (tcp[12] >> 4) * 4;
	total = skb->len;
	p->payload = total > p->offset ? total - p->offset : 0;
	return 1;
}

#define WINDOW_MAX (1 << 26) // no connection has more bytes than this on its way

// arrives tells whether the packet brings payload that the socket has not received. The kernel has
// not accepted the packet yet. The kernel will refuse payload far from the socket's next sequence
// number. So arrives returns 0 for payload that is far away, and the programs remember nothing of
// the payload.
static __always_inline int arrives(struct packet *p, struct bpf_tcp_sock *tp)
{
	return p->payload && (__s32)(p->seq + p->payload - tp->rcv_nxt) > 0 && (__s32)(p->seq - tp->rcv_nxt) < WINDOW_MAX;
}

// leaves returns how many bytes of payload go out for the first time, and remembers the sequence
// number after them.
static __always_inline __u32 leaves(struct packet *p, struct sock_state *s)
{
	__u32 end = p->seq + p->payload;
	__s32 more = p->payload;

	if (!p->payload)
		return 0;
	if (s->out_known) {
		more = end - s->out_next;
		if (more <= 0)
			return 0;
		if (more > (__s32)p->payload)
			more = p->payload;
	}
	s->out_known = 1;
	s->out_next = end;
	return more;
}

static __always_inline struct tokens *tokens_of(struct sock_state *s)
{
	struct port_key port = {.port = s->port};

	return s->role == ROLE_PORT ? bpf_map_lookup_elem(&cgn_tokens, &port) : 0;
}

// adopt makes the state of a socket that is older than the programs, if its port is watched.
static __always_inline struct sock_state *adopt(struct bpf_sock *sk)
{
	struct port_key port = {.port = sk->src_port};
	struct sockets *c = bpf_map_lookup_elem(&cgn_ports, &port);
	struct bpf_tcp_sock *tp;
	struct sock_state *s;

	if (!c || sk->state != BPF_TCP_ESTABLISHED)
		return 0;
	s = bpf_sk_storage_get(&cgn_socks, sk, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!s) {
		DROP(socks_full);
		return 0;
	}
	s->role = ROLE_PORT;
	s->port = port.port;
	s->counted = 1;
	tp = bpf_tcp_sock(sk);
	if (tp) {
		s->in_bytes = tp->bytes_received;
		s->retransmits = tp->total_retrans;
		s->segments = tp->data_segs_out;
	}
	ADD(c->opened, 1);
	return s;
}

#define PATH_EVERY 8 // incoming packets between two samples of a connection's path

// path copies the kernel's own figures of the connection, at one in PATH_EVERY packets.
static __always_inline void path(struct sock_state *s, struct bpf_tcp_sock *tp)
{
	struct sockets *c;
	__u32 srtt_us;

	if (s->packets++ % PATH_EVERY != 1)
		return;
	c = counts_of(s);
	if (!c)
		return;
	srtt_us = tp->srtt_us >> 3;
	if (srtt_us) {
		c->srtt_us = srtt_us;
		c->rtt_min_us = tp->rtt_min;
		ADD(c->rtt_samples, 1);
		ADD(c->rtt_sum_us, srtt_us);
	}
	if (tp->rate_interval_us)
		c->delivery_rate = (__u64)tp->rate_delivered * tp->mss_cache * 1000000 / tp->rate_interval_us;
}

// counted returns the state of the packet's socket; 0 if the socket is not counted.
static __always_inline struct sock_state *counted(struct __sk_buff *skb)
{
	struct bpf_sock *sk = skb->sk;
	struct sock_state *s;

	if (!sk)
		return 0;
	s = bpf_sk_storage_get(&cgn_socks, sk, 0, 0);
	if (s)
		return s->role == ROLE_NONE ? 0 : s;
	sk = bpf_sk_fullsock(sk);
	return sk && sk->protocol == IPPROTO_TCP ? adopt(sk) : 0;
}

SEC("cgroup_skb/ingress")
int cgn_skb_in(struct __sk_buff *skb)
{
	struct packet p = {};
	struct sock_state *s = counted(skb);
	struct bpf_tcp_sock *tp;
	struct sockets *c;
	struct tokens *t;
	__u8 full;

	if (!s)
		return 1;
	tp = skb->sk ? bpf_tcp_sock(skb->sk) : 0;
	if (!tp)
		return 1;
	if (!parse(skb, &p)) {
		DROP(odd_packets);
		return 1;
	}
	if (p.flags & FLAG_RST)
		return 1;
	if (s->timeouts) {
		s->timeouts = 0;
		tell(s, EVENT_RECOVERED);
	}
	full = p.window == 0;
	if (full != s->full_there) {
		s->full_there = full;
		c = full ? counts_of(s) : 0;
		if (c)
			ADD(c->stalls_send, 1);
	}
	path(s, tp);
	if (p.flags & FLAG_FIN)
		s->fin_in = 1;
	t = arrives(&p, tp) ? tokens_of(s) : 0;
	if (t)
		request(skb, &p, s, t);
	return 1;
}

// Outgoing packets between two lookups of a connection's counters. A lookup costs more than the
// rest of the program.
#define COUNT_EVERY 8

static __always_inline int counts_are_due(struct sock_state *s, struct packet *p, struct bpf_tcp_sock *tp)
{
	return s->out_packets++ % COUNT_EVERY == 0 || tp->total_retrans != s->retransmits || (!p->window && !s->full_here);
}

SEC("cgroup_skb/egress")
int cgn_skb_out(struct __sk_buff *skb)
{
	struct packet p = {};
	struct sock_state *s = counted(skb);
	struct bpf_tcp_sock *tp;
	struct sockets *c;
	struct tokens *t;
	__u32 bytes;

	if (!s)
		return 1;
	tp = skb->sk ? bpf_tcp_sock(skb->sk) : 0;
	if (!tp)
		return 1;
	if (!parse(skb, &p)) {
		DROP(odd_packets);
		return 1;
	}
	if (p.flags & FLAG_RST)
		return 1;
	bytes = leaves(&p, s);
	s->out_bytes += bytes;
	c = counts_are_due(s, &p, tp) ? counts_of(s) : 0;
	if (c) {
		if (!p.window && !s->full_here)
			ADD(c->stalls_receive, 1);
		take(s, c, tp->bytes_received, tp->total_retrans, tp->data_segs_out); // this packet's acknowledgement included
	}
	s->full_here = !p.window;
	t = bytes ? tokens_of(s) : 0;
	if (t)
		answer(s, t, bytes, more_waits(skb, &p));
	return 1;
}
