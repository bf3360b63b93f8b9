//go:build ignore

// Sockets: the programs count connections and their ends. A counted socket has a sock_state. In
// this file only sockops makes a sock_state, and the other programs ignore a socket without one.
#include "sockets.h"

char _license[] SEC("license") = "Dual BSD/GPL";

#define TCP_SYN_SENT 2
#define TCP_CLOSE 7
#define TCP_CLOSE_WAIT 8

static __always_inline void remote_of(struct bpf_sock_ops *ctx, struct peer_key *k)
{
	__u32 *word = (__u32 *)k->addr;

	if (ctx->family == AF_INET6) {
		word[0] = ctx->remote_ip6[0];
		word[1] = ctx->remote_ip6[1];
		word[2] = ctx->remote_ip6[2];
		word[3] = ctx->remote_ip6[3];
		barrier(); // or the branches are joined into an access that the verifier refuses
	} else {
		word[2] = bpf_htonl(0xffff);
		word[3] = ctx->remote_ip4;
	}
	k->port = bpf_ntohl(ctx->remote_port);
}

static __always_inline struct sock_state *state_of(struct bpf_sock_ops *ctx, __u64 flags)
{
	struct bpf_sock *sk = ctx->sk;

	return sk ? bpf_sk_storage_get(&cgn_socks, sk, 0, flags) : 0;
}

// connecting makes the peer's counters and the socket's state.
static __always_inline void connecting(struct bpf_sock_ops *ctx)
{
	struct peer_key k = {};
	struct sockets zero = {};
	struct sock_state *s;

	remote_of(ctx, &k);
	if (!bpf_map_lookup_elem(&cgn_peers, &k) && bpf_map_update_elem(&cgn_peers, &k, &zero, BPF_NOEXIST)) {
		DROP(peers_full);
		return;
	}
	s = state_of(ctx, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!s) {
		DROP(socks_full);
		return;
	}
	s->role = ROLE_PEER;
	s->peer = k;
	s->port = ctx->local_port;
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTO_CB_FLAG);
}

static __always_inline void accepted(struct bpf_sock_ops *ctx)
{
	struct port_key port = {.port = ctx->local_port};
	struct sockets *c = bpf_map_lookup_elem(&cgn_ports, &port);
	struct sock_state *s;

	if (!c)
		return;
	s = state_of(ctx, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!s) {
		DROP(socks_full);
		return;
	}
	s->role = ROLE_PORT;
	s->port = port.port;
	if (!s->counted) {
		s->counted = 1;
		ADD(c->opened, 1);
	}
	bpf_sock_ops_cb_flags_set(ctx, ctx->bpf_sock_ops_cb_flags | BPF_SOCK_OPS_RTO_CB_FLAG);
}

static __always_inline void connected(struct bpf_sock_ops *ctx)
{
	struct sock_state *s = state_of(ctx, 0);
	struct sockets *c = s ? counts_of(s) : 0;

	if (!c || s->counted)
		return;
	s->port = ctx->local_port;
	s->counted = 1;
	ADD(c->opened, 1);
}

static __always_inline void timed_out(struct bpf_sock_ops *ctx)
{
	struct sock_state *s = state_of(ctx, 0);
	struct sockets *c = s ? counts_of(s) : 0;

	if (!c)
		return;
	s->timeouts++;
	ADD(c->timeouts, 1);
	tell(s, EVENT_TIMEOUT);
}

SEC("sockops")
int cgn_sockops(struct bpf_sock_ops *ctx)
{
	switch (ctx->op) {
	case BPF_SOCK_OPS_TCP_CONNECT_CB:
		connecting(ctx);
		break;
	case BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB:
		connected(ctx);
		break;
	case BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB:
		accepted(ctx);
		break;
	case BPF_SOCK_OPS_RTO_CB:
		timed_out(ctx);
		break;
	}
	return 1;
}

static __always_inline void attempt_failed(struct sock_state *s, struct sockets *c, int err)
{
	if (err == ECONNREFUSED || err == ECONNRESET) {
		ADD(c->refused, 1);
		tell(s, EVENT_REFUSED);
	} else if (err) {
		ADD(c->unanswered, 1);
		tell(s, EVENT_UNANSWERED);
	} else {
		ADD(c->abandoned, 1);
	}
}

static __always_inline void connection_ended(struct sock_state *s, struct sockets *c, int err)
{
	ADD(c->closed, 1);
	if (err == ECONNRESET || err == EPIPE) {
		ADD(c->resets, 1);
		tell(s, EVENT_RESET);
	} else if (err == ETIMEDOUT) {
		ADD(c->timed_out, 1);
		tell(s, EVENT_TIMED_OUT);
	}
}

// take_from calls take for programs of tracepoints.
static __always_inline void take_from(struct sock_state *s, struct sockets *c, struct sock *sk)
{
	struct tcp_sock *tp = bpf_skc_to_tcp_sock(sk);

	if (tp)
		take(s, c, tp->bytes_received, tp->total_retrans, tp->data_segs_out);
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(cgn_set_state, struct sock *sk, int old, int new)
{
	struct sock_state *s;
	struct sockets *c;
	struct tokens *t;
	struct port_key port;

	if ((new != TCP_CLOSE && new != TCP_CLOSE_WAIT) || sk->sk_protocol != IPPROTO_TCP)
		return 0;
	s = bpf_sk_storage_get(&cgn_socks, sk, 0, 0);
	if (new == TCP_CLOSE_WAIT) {
		if (s)
			tell(s, EVENT_CLOSED);
		return 0;
	}
	c = s ? counts_of(s) : 0;
	if (!c)
		return 0;
	take_from(s, c, sk);
	if (old == TCP_SYN_SENT)
		attempt_failed(s, c, sk->sk_err);
	else if (s->counted)
		connection_ended(s, c, sk->sk_err);
	if (s->role == ROLE_PORT) {
		port.port = s->port;
		t = bpf_map_lookup_elem(&cgn_tokens, &port);
		if (t)
			answer_ended(s, t);
	}
	s->role = ROLE_NONE;
	return 0;
}

SEC("tp_btf/tcp_retransmit_skb")
int BPF_PROG(cgn_retransmit, struct sock *sk)
{
	struct sock_state *s = bpf_sk_storage_get(&cgn_socks, sk, 0, 0);
	struct sockets *c = s ? counts_of(s) : 0;

	if (c)
		take_from(s, c, sk);
	return 0;
}
