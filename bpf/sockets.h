// Maps and functions that the programs of sockets and of packets share.
#ifndef CGN_SOCKETS_H
#define CGN_SOCKETS_H

#include "histogram.h"
#include "maps.h"

struct port_key {
	__u16 port;
};

struct peer_key {
	__u8 addr[16]; // IPv6, IPv4 as ::ffff:a.b.c.d
	__u16 port;
	__u16 unused;
};

// Counts of the connections to a peer, or to a listening port. opened - closed connections are
// established. Until a connection ends, its byte counts can lack the bytes that its last seven
// outgoing packets carried and acknowledged.
struct sockets {
	__u64 opened;	      // connections established
	__u64 closed;	      // established connections that ended
	__u64 refused;	      // attempts that were answered with a reset
	__u64 unanswered;     // attempts that the kernel gave up, or could not send
	__u64 abandoned;      // attempts that the program gave up
	__u64 resets;	      // established connections that the other side reset
	__u64 timed_out;      // established connections that ended because nothing was acknowledged
	__u64 retransmits;    // segments sent again
	__u64 timeouts;	      // retransmission timeouts
	__u64 stalls_send;    // the other side's window became zero
	__u64 stalls_receive; // our own window became zero: the program does not read
	__u64 bytes_sent;     // payload, each byte once
	__u64 bytes_received; // payload, each byte once
	__u64 segments_sent;  // segments with payload, including retransmitted ones
	__u64 rtt_samples;    // round trip times sampled: at a connection's second incoming packet, then at each eighth
	__u64 rtt_sum_us;     // sum of the sampled smoothed round trip times
	__u64 delivery_rate;  // bytes/s, as the kernel measured last
	__u32 srtt_us;	      // the last sampled smoothed round trip time
	__u32 rtt_min_us;     // smallest recent round trip time of the same connection
};

// Purpose: the watched listening ports and their counts. Writer: Go makes the entries, and the
// programs add to them. Reader: Reader. Key: local port. Value: struct sockets. Size: more than the
// engines of a host.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct port_key);
	__type(value, struct sockets);
} cgn_ports SEC(".maps");

// Purpose: the counts of peers that this host connects to. Writer: sockops makes the entries, and
// all programs of sockets add to them. Reader: Reader. Key: remote address and port. Value: struct
// sockets. Size: 1.5 MiB. Keys come from outside, so a new key evicts the least recently used one.
// Each CPU keeps a list of free entries, for which 8192 entries leave room.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct peer_key);
	__type(value, struct sockets);
} cgn_peers SEC(".maps");

struct watch {
	__u64 id; // the caller's own number of the peer, which the events contain
};

// Purpose: peers whose events go to the ring. Writer: Go. Reader: all programs of sockets, at each
// event. Key: remote address and port. Value: struct watch. Size: the backends of a host's routers.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, struct peer_key);
	__type(value, struct watch);
} cgn_watched SEC(".maps");

enum event_kind {
	EVENT_TIMEOUT = 1,   // a retransmission timeout
	EVENT_RECOVERED = 2, // a packet came in after timeouts
	EVENT_RESET = 3,     // the peer reset an established connection
	EVENT_TIMED_OUT = 4, // the kernel gave up an established connection
	EVENT_REFUSED = 5,   // the peer refused a connection
	EVENT_UNANSWERED = 6, // the kernel gave up an attempt to connect
	EVENT_CLOSED = 7     // the peer closed an established connection before this host did
};

struct event {
	__u64 time_ns; // CLOCK_MONOTONIC
	__u64 id;      // id of struct watch
	struct peer_key peer;
	enum event_kind kind;
	__u32 timeouts;	  // retransmission timeouts in a row
	__u32 local_port;
};

// Purpose: tells Go immediately about rare events of watched peers. Writer: sockops, set_state,
// skb_in. Reader: one Events. Value: struct event. Size: at least 4096 events. cgn_drops counts the
// events that do not fit.
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
	__type(value, struct event);
} cgn_events SEC(".maps");

enum role {
	ROLE_NONE = 0,
	ROLE_PORT = 1, // accepted by a port in cgn_ports
	ROLE_PEER = 2  // connects to a peer
};

enum phase {
	PHASE_NEW = 0,	   // nothing has come in yet
	PHASE_REQUEST = 1, // a request is coming in, or has come in
	PHASE_ANSWER = 2,  // the request's answer goes out
	PHASE_UNMEASURED = 3,
	PHASE_INTERIM = 4 // fewer bytes than a head went out: 100 Continue, or an answer of one line
};

struct sock_state {
	__u64 request_ns;   // when the first byte of this request came in
	__u64 first_ns;	    // when the first piece of the answer went out
	__u64 piece_ns;	    // when the last piece began
	__u64 segment_ns;   // when the last segment of the last piece went out
	__u64 in_bytes;	    // bytes of the kernel's bytes_received that the counters include
	struct peer_key peer;
	__u32 retransmits;  // segments of the kernel's total_retrans that the counters include
	__u32 out_next;	    // sequence number after all payload that went out
	__u32 first_size;   // bytes of the first piece
	__u32 piece_min;    // bytes of the smallest piece after the first
	__u32 pieces;	    // pieces of this answer; 0: none yet, or the answer is not measured
	__u32 timeouts;	    // retransmission timeouts since the last incoming packet
	__u32 packets;	    // incoming packets
	__u32 out_bytes;    // bytes of sent payload that are not in the counters yet
	__u32 segments;	    // segments of the kernel's data_segs_out that the counters include
	__u16 port;	    // local port
	__u8 role;
	__u8 phase;
	__u8 counted;	    // opened includes this connection
	__u8 full_there;    // the other side's window is zero
	__u8 full_here;	    // our window is zero
	__u8 out_known;	    // out_next is valid
	__u8 fin_in;	    // the other side has sent its FIN
	__u8 out_packets;   // outgoing packets, modulo 256
	__u8 post;	    // this request is a POST
	__u8 waiting;	    // the program had written more bytes than the last segment had
	__u8 unused[4];
};

// Purpose: the state of each counted socket. Writer and reader: all programs of sockets and
// packets, in the socket's own order of events. Key: socket. Value: struct sock_state. Size: one
// entry for each counted socket. The entry is freed with the socket, and its memory is charged to
// the socket.
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct sock_state);
} cgn_socks SEC(".maps");

// counts_of returns the counters that a socket belongs to.
static __always_inline struct sockets *counts_of(struct sock_state *s)
{
	struct port_key port;

	if (s->role == ROLE_PEER)
		return bpf_map_lookup_elem(&cgn_peers, &s->peer);
	if (s->role != ROLE_PORT)
		return 0;
	port.port = s->port;
	return bpf_map_lookup_elem(&cgn_ports, &port);
}

// take adds to the counters the bytes that a socket has sent since the last call, and the growth of
// the kernel's own counts of the socket. Callers hold the socket's lock. skb_in does not hold this
// lock, so skb_in does not call take. Received bytes are counted when an outgoing packet
// acknowledges them, or when the socket ends. The kernel counts the other side's FIN as a byte.
static __always_inline void take(struct sock_state *s, struct sockets *c, __u64 received, __u32 retransmits, __u32 segments)
{
	if (s->out_bytes) {
		ADD(c->bytes_sent, s->out_bytes);
		s->out_bytes = 0;
	}
	received -= s->fin_in;
	if ((__s64)(received - s->in_bytes) > 0) {
		ADD(c->bytes_received, received - s->in_bytes);
		s->in_bytes = received;
	}
	if ((__s32)(retransmits - s->retransmits) > 0)
		ADD(c->retransmits, retransmits - s->retransmits);
	s->retransmits = retransmits;
	ADD(c->segments_sent, segments - s->segments);
	s->segments = segments;
}

// tell sends an event about the socket's peer, if the peer is watched now.
static __always_inline void tell(struct sock_state *s, enum event_kind kind)
{
	struct watch *w;
	struct event *e;

	if (s->role != ROLE_PEER)
		return;
	w = bpf_map_lookup_elem(&cgn_watched, &s->peer);
	if (!w)
		return;
	e = bpf_ringbuf_reserve(&cgn_events, sizeof(*e), 0);
	if (!e) {
		DROP(events_full);
		return;
	}
	e->time_ns = bpf_ktime_get_ns();
	e->id = w->id;
	e->peer = s->peer;
	e->kind = kind;
	e->timeouts = s->timeouts;
	e->local_port = s->port;
	bpf_ringbuf_submit(e, 0);
}

// Histograms of a port, and counts of its unmeasured connections, answers and gaps.
struct tokens {
	__u64 requests;	      // POST requests that began
	__u64 streams;	      // answers of at least three pieces, to which ttft and itl belong
	__u64 singles;	      // answers of one or two pieces, or of large pieces: not streams, or too short to tell
	__u64 singles_sum_ns; // sum of the singles' times from the request's first byte to the answer's first piece
	__u64 unclear;	      // streams whose first piece may have no token: the piece gives no TTFT, and no gap after it
	__u64 joined;	      // segments within 128 us of the previous one, or written before that one had gone out
	__u64 coalesced;      // pieces that look like several tokens; the gaps before them are not counted
	__u64 unmeasured_tls; // unmeasured connections with TLS
	__u64 unmeasured_h2;  // unmeasured connections with HTTP/2
	__u64 unmeasured;     // unmeasured others: not HTTP/1, or first seen in the middle of a request or an answer
	__u32 head_size;      // bytes of first pieces that were lone heads, as the gaps after them show
	__u32 head_votes;     // how many more of the last streams confirmed this size than denied it; at most 15
	struct histogram ttft; // times from a request's first byte to the answer's first token
	struct histogram itl;  // gaps between tokens
};

// Purpose: times to the first token and between tokens, as packets pass. Writer: Go makes the
// entries, and the programs add to them. Reader: Reader. Key: local port. Value: struct tokens.
// Size: as many entries as cgn_ports; 400 KiB.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct port_key);
	__type(value, struct tokens);
} cgn_tokens SEC(".maps");

// answer_ended counts an answer that was not a stream. A stream is counted at its third piece.
static __always_inline void answer_ended(struct sock_state *s, struct tokens *t)
{
	if (s->phase != PHASE_ANSWER || s->pieces == 0 || s->pieces > 2)
		return;
	ADD(t->singles, 1);
	ADD(t->singles_sum_ns, s->first_ns - s->request_ns);
	s->pieces = 0;
}

#endif
