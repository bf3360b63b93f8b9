// What the programs of sockets and of packets share.
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

// Counts of the connections to a peer, or to a listening port. Established ones are opened - closed. The bytes of a connection are behind by what its last
// seven packets out had and acknowledged, until it ends.
struct sockets {
	__u64 opened;	      // connections established
	__u64 closed;	      // of these, ended
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
	__u64 bytes_received; // likewise
	__u64 segments_sent;  // segments with payload, retransmitted ones included
	__u64 rtt_samples;    // looks at a round trip time: at the second packet of a connection that comes in, and each eighth after it
	__u64 rtt_sum_us;     // smoothed round trip times that were seen
	__u64 delivery_rate;  // bytes/s, the last that the kernel measured
	__u32 srtt_us;	      // the last of these
	__u32 rtt_min_us;     // smallest recent one of the same connection
};

// Purpose: which listening ports are counted, and what they count. Writer: Go makes the entries, the programs add. Reader: Reader.
// Key: local port. Value: struct sockets. Size: the engines of a host, and room.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct port_key);
	__type(value, struct sockets);
} cgn_ports SEC(".maps");

// Purpose: what is known of peers that this host connects to. Writer: sockops makes the entries, all programs of sockets add. Reader: Reader.
// Key: remote address and port. Value: struct sockets. Size: keys come from outside, so the least recently used goes; 8192 leaves
// room for the lists of free entries that each CPU keeps. 1.5 MiB.
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct peer_key);
	__type(value, struct sockets);
} cgn_peers SEC(".maps");

struct watch {
	__u64 id; // the caller's own number of the peer; it is in the events
};

// Purpose: peers whose rare facts go to the ring. Writer: Go. Reader: all programs of sockets, when there is such a fact. Key: remote address and port.
// Value: struct watch. Size: the backends of a host's routers.
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
	EVENT_TIMED_OUT = 4, // the kernel gave an established connection up
	EVENT_REFUSED = 5,   // the peer refused a connection
	EVENT_UNANSWERED = 6, // the kernel gave an attempt up
	EVENT_CLOSED = 7     // the peer closed an established connection before this host did
};

struct event {
	__u64 time_ns; // CLOCK_MONOTONIC
	__u64 id;      // struct watch
	struct peer_key peer;
	enum event_kind kind;
	__u32 timeouts;	  // retransmission timeouts in a row
	__u32 local_port;
};

// Purpose: rare facts about watched peers, at once. Writer: sockops, set_state, skb_in. Reader: one Events. Value: struct event.
// Size: 4096 events and more; what does not fit is counted in cgn_drops.
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
	__type(value, struct event);
} cgn_events SEC(".maps");

enum role {
	ROLE_NONE = 0,
	ROLE_PORT = 1, // accepted, by a port in cgn_ports
	ROLE_PEER = 2  // connects to a peer
};

enum phase {
	PHASE_NEW = 0,	   // nothing has come in yet
	PHASE_REQUEST = 1, // a request comes in, or has
	PHASE_ANSWER = 2,  // its answer goes out
	PHASE_UNMEASURED = 3,
	PHASE_INTERIM = 4 // less than a head went out: 100 Continue, or an answer of a line
};

struct sock_state {
	__u64 request_ns;   // when the first byte of this request came in
	__u64 first_ns;	    // when the first piece of its answer went out
	__u64 piece_ns;	    // when the last piece began
	__u64 segment_ns;   // when its last segment went out
	__u64 in_bytes;	    // of the kernel's bytes_received, those that are in the counters
	struct peer_key peer;
	__u32 retransmits;  // likewise of its total_retrans
	__u32 out_next;	    // sequence number after all payload that went out
	__u32 first_size;   // bytes of the first piece
	__u32 piece_min;    // bytes of the smallest piece after it
	__u32 pieces;	    // pieces of this answer; 0: none yet, or it is not measured
	__u32 timeouts;	    // retransmission timeouts since a packet came in
	__u32 packets;	    // that came in
	__u32 out_bytes;    // payload that went out and is not in the counters yet
	__u32 segments;	    // of the kernel's data_segs_out, those that are in the counters
	__u16 port;	    // local, for ROLE_PORT
	__u8 role;
	__u8 phase;
	__u8 counted;	    // it is in opened
	__u8 full_there;    // the other side's window is zero
	__u8 full_here;	    // our window is zero
	__u8 out_known;	    // out_next is valid
	__u8 fin_in;	    // the other side has sent all
	__u8 out_packets;   // that went out, modulo 256
	__u8 post;	    // this request is a POST
	__u8 waiting;	    // the program had written more than the last segment had
	__u8 unused[4];
};

// Purpose: what has to be remembered of a counted socket. Writer: sockops, skb_in and skb_out (under the socket's own order of events). Reader: these.
// Key: socket. Value: struct sock_state. Size: one for each counted socket, freed with it, charged to it.
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

// take counts what has been sent, and what the kernel has counted of a socket, since the last time. Callers have the socket's lock, which skb_in has not; what came in is acknowledged
// by a packet that goes out, or the socket ends. The kernel counts the other side's FIN as a byte.
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

// tell sends an event about the socket's peer, if that is watched now.
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

// Histograms of a port, and what was not measured on it.
struct tokens {
	__u64 requests;	      // POST requests that began
	__u64 streams;	      // answers of at least three pieces: their TTFT and ITL are below
	__u64 singles;	      // answers of one or two pieces, or of large ones: no streams, or too short to tell
	__u64 singles_sum_ns; // their time from first byte in to first piece out
	__u64 unclear;	      // streams whose first piece may be a head or have a token: their TTFT, and the gap after it, were not counted
	__u64 joined;	      // segments that continue a piece: within 128 us of the one before, or written before that had gone out
	__u64 coalesced;      // pieces as large as two of the smallest of their answer: gaps that were not counted
	__u64 unmeasured_tls; // connections that were not measured, because they are TLS
	__u64 unmeasured_h2;  // because they are HTTP/2
	__u64 unmeasured;     // because they are neither of these nor HTTP/1, or were in the middle of something
	__u32 head_size;      // bytes of first pieces that were heads alone, by the gap after them
	__u32 head_votes;     // how many more of the last streams said so of this size than did not; at most 15
	struct histogram ttft; // first byte of a request in, to first token out
	struct histogram itl;  // gaps between tokens
};

// Purpose: time to first token, and between tokens, as the wire sees them. Writer: Go makes the entries, skb_in and skb_out add. Reader: Reader.
// Key: local port. Value: struct tokens. Size: as cgn_ports; 400 KiB.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct port_key);
	__type(value, struct tokens);
} cgn_tokens SEC(".maps");

// answer_ended counts an answer that was no stream. A stream has been counted with its third piece.
static __always_inline void answer_ended(struct sock_state *s, struct tokens *t)
{
	if (s->phase != PHASE_ANSWER || s->pieces == 0 || s->pieces > 2)
		return;
	ADD(t->singles, 1);
	ADD(t->singles_sum_ns, s->first_ns - s->request_ns);
	s->pieces = 0;
}

#endif
