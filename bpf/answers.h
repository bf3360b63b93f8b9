// Requests and answers on a connection. Sizes and times show which pieces of an answer are tokens,
// and which answers cannot be measured.
//
// A piece is a group of segments that go out together. A stream's first piece is its head alone, or
// its head with a token. The later pieces are tokens. Two later pieces show whether the head was
// alone. A lone head is not much larger than a token, or else it goes out long before a token can
// be made (early), and the gap after it is far larger than the gap between tokens (large). The
// first token is not measured if only early or only large is true and no lone head of this size is
// known.
#ifndef CGN_ANSWERS_H
#define CGN_ANSWERS_H

#include "sockets.h"

// Sizes in engines' answers: a head has 160 to 190 bytes, and 300 and more with CORS. A token's
// event has at least 110 bytes. The end of a stream has at most 71 bytes.
#define HEAD_MAX 320	  // a first piece of at most this size that is as small as the next piece contains no token
#define HEAD_MIN 80	  // no head is smaller, so a first piece that exceeds the next piece by less contains no token
#define HEAD_LEAST 40	  // fewer bytes are not the head of an answer with a body
#define HEAD_VARIES 16	  // heads of one port differ by less
#define CLOSING_MAX 80	  // smaller segments are not tokens: [DONE], the last chunk
#define CHUNK_MAX 12	  // two tokens in one chunk share the chunk's frame, which has at most this size
#define LARGE_MIN 4096	  // larger segments are not tokens
#define JOIN_NS (1 << 17) // segments that are closer than this belong to one piece
#define GAP_LARGE 3	  // a gap that is this many times as long as the next gap is not between tokens
#define VOTES_MAX 15
#define VOTES_ENOUGH 2

struct packet {
	__u32 seq;
	__u32 payload;	// bytes
	__u32 offset;	// of the payload
	__u32 window;
	__u8 flags;
};

enum kind { KIND_ODD, KIND_POST, KIND_OTHER, KIND_TLS, KIND_H2 };

// kind_of returns the kind of request that begins with the first two bytes of the payload.
static __always_inline enum kind kind_of(struct __sk_buff *skb, struct packet *p)
{
	__u8 b[2] = {};

	if (bpf_skb_load_bytes(skb, p->offset, b, 2))
		return KIND_ODD;
	if (b[0] == 'P' && b[1] == 'O')
		return KIND_POST;
	if ((b[0] == 'G' && b[1] == 'E') || (b[0] == 'P' && (b[1] == 'U' || b[1] == 'A')) || (b[0] == 'H' && b[1] == 'E') || (b[0] == 'D' && b[1] == 'E') ||
	    (b[0] == 'O' && b[1] == 'P'))
		return KIND_OTHER;
	if (b[0] == 0x16 && b[1] == 0x03)
		return KIND_TLS;
	return b[0] == 'P' && b[1] == 'R' ? KIND_H2 : KIND_ODD;
}

// request handles incoming payload.
static __always_inline void request(struct __sk_buff *skb, struct packet *p, struct sock_state *s, struct tokens *t)
{
	enum kind kind;

	if (s->phase == PHASE_REQUEST || s->phase == PHASE_UNMEASURED)
		return; // more of the same request, or not measured
	kind = kind_of(skb, p);
	if (s->phase == PHASE_INTERIM && kind == KIND_ODD) {
		s->phase = PHASE_REQUEST; // the body that 100 Continue has asked for
		return;
	}
	answer_ended(s, t);
	s->phase = PHASE_REQUEST;
	s->post = kind == KIND_POST;
	s->pieces = 0;
	switch (kind) {
	case KIND_POST:
		s->request_ns = bpf_ktime_get_ns();
		ADD(t->requests, 1);
		return;
	case KIND_OTHER:
		return;
	case KIND_TLS:
		ADD(t->unmeasured_tls, 1);
		break;
	case KIND_H2:
		ADD(t->unmeasured_h2, 1);
		break;
	default:
		ADD(t->unmeasured, 1);
	}
	s->phase = PHASE_UNMEASURED;
}

// known tells whether heads of this size have gone out alone on the port.
static __always_inline int known(struct tokens *t, __u32 size)
{
	return t->head_votes >= VOTES_ENOUGH && size - t->head_size + HEAD_VARIES <= 2 * HEAD_VARIES;
}

// vote remembers for a port whether a stream's first piece was a lone head. Votes that are lost in
// a race of two CPUs do not matter.
static __always_inline void vote(struct tokens *t, __u32 size, int alone)
{
	int same = size - t->head_size + HEAD_VARIES <= 2 * HEAD_VARIES;

	if (alone && same) {
		if (t->head_votes < VOTES_MAX)
			t->head_votes++;
	} else if (alone && !t->head_votes) {
		t->head_size = size;
		t->head_votes = 1;
	} else if ((alone || same) && t->head_votes) {
		t->head_votes--;
	}
}

enum first { FIRST_UNCLEAR, FIRST_HEAD, FIRST_TOKEN };

// first_of classifies a stream's first piece by its size, the smaller size of the next two pieces,
// the time until it went out, the gap after it, and the next gap.
static __always_inline enum first first_of(struct tokens *t, __u32 size, __u32 next, __u64 until, __u64 after, __u64 gap)
{
	__u64 least = after < gap ? after : gap;
	int early = until * 2 < least; // than a token can be made
	int large = after >= gap * GAP_LARGE;

	if (size <= HEAD_MAX && size < next + HEAD_MIN)
		return FIRST_HEAD;
	if (early == large)
		vote(t, size, early);
	if ((early && large) || known(t, size))
		return FIRST_HEAD;
	return early || large ? FIRST_UNCLEAR : FIRST_TOKEN;
}

// gap_of counts the gap before a piece. If the piece looks like several tokens, gap_of only counts
// the piece as coalesced.
static __always_inline void gap_of(struct tokens *t, __u32 size, __u32 least, __u64 gap)
{
	if (size + CHUNK_MAX >= 2 * least)
		ADD(t->coalesced, 1);
	else
		histogram_add(&t->itl, gap);
}

// stream counts an answer as a stream when its third piece goes out.
static __always_inline void stream(struct sock_state *s, struct tokens *t, __u32 size, __u64 now)
{
	__u32 least = size < s->piece_min ? size : s->piece_min;
	__u64 until = s->first_ns - s->request_ns, after = s->piece_ns - s->first_ns;
	enum first first = first_of(t, s->first_size, least, until, after, now - s->piece_ns);

	ADD(t->streams, 1);
	if (first == FIRST_UNCLEAR)
		ADD(t->unclear, 1);
	else
		histogram_add(&t->ttft, first == FIRST_HEAD ? until + after : until);
	if (first == FIRST_TOKEN)
		gap_of(t, s->piece_min, least, after);
	s->piece_min = least;
}

// begins handles the first segment of an answer.
static __always_inline void begins(struct sock_state *s, __u32 size)
{
	if (size < HEAD_LEAST) {
		s->phase = PHASE_INTERIM;
		return;
	}
	s->phase = PHASE_ANSWER;
	if (!s->post)
		return;
	s->pieces = 1;
	s->first_ns = s->segment_ns = bpf_ktime_get_ns();
	s->first_size = size;
}

// piece handles a segment that does not continue the previous piece.
static __always_inline void piece(struct sock_state *s, struct tokens *t, __u32 size, __u64 now)
{
	if (s->pieces == 1) {
		s->piece_min = size;
	} else {
		if (s->pieces == 2)
			stream(s, t, size, now);
		else if (size < s->piece_min)
			s->piece_min = size;
		gap_of(t, size, s->piece_min, now - s->piece_ns);
	}
	s->piece_ns = now;
	s->pieces++;
}

// answer handles bytes that go out for the first time. waiting means that the program has written
// more than these bytes.
static __always_inline void answer(struct sock_state *s, struct tokens *t, __u32 size, int waiting)
{
	__u64 now;
	int joined = s->waiting;

	s->waiting = waiting;
	if (s->phase == PHASE_NEW) { // the other side speaks first: not HTTP/1
		s->phase = PHASE_UNMEASURED;
		ADD(t->unmeasured, 1);
	}
	if (s->phase == PHASE_UNMEASURED)
		return;
	if (s->phase != PHASE_ANSWER) {
		begins(s, size);
		return;
	}
	if (!s->pieces || size < CLOSING_MAX)
		return;
	now = bpf_ktime_get_ns();
	joined |= now - s->segment_ns < JOIN_NS;
	s->segment_ns = now;
	if (size >= LARGE_MIN && (s->pieces == 2 || (s->pieces == 1 && !joined))) {
		answer_ended(s, t); // with large pieces it is no stream
		return;
	}
	if (joined) {
		ADD(t->joined, 1);
		if (s->pieces == 1)
			s->first_size += size;
		return;
	}
	piece(s, t, size, now);
}

// more_waits tells whether the program has written more bytes than this outgoing segment has.
static __always_inline int more_waits(struct __sk_buff *skb, struct packet *p)
{
	struct bpf_sock *sk = skb->sk;
	struct tcp_sock *tp = sk ? bpf_skc_to_tcp_sock(sk) : 0;

	return tp && (__s32)(tp->write_seq - (p->seq + p->payload)) > 0;
}

#endif
