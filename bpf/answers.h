// Requests and answers on a connection, by sizes and times: which pieces of an answer are tokens, and what cannot be told.
//
// A piece is what goes out at once. The first one of a stream is its head alone, or its head with a token, and the rest are tokens. Which it is, two later
// pieces tell: a head that goes out alone is not much larger than a token, or it went out long before the first token could be made and the gap after it is
// far larger than the one between tokens. Where neither is so and the tokens do not simply go on from the first piece, the first token is not measured.
#ifndef CGN_ANSWERS_H
#define CGN_ANSWERS_H

#include "sockets.h"

// Of the answers of engines: heads are 160 to 190 bytes, and 300 and more with CORS; the events of a token 110 and more, and what closes a stream up to 71.
#define HEAD_MAX 320	  // no first piece with a token is of this size and as small as the next
#define HEAD_MIN 80	  // no head is smaller: a first piece that exceeds the next by less has no token
#define HEAD_LEAST 40	  // less is no head of an answer with a body
#define HEAD_VARIES 16	  // heads of a port differ by less
#define CLOSING_MAX 80	  // smaller segments are no tokens: [DONE], the last chunk
#define CHUNK_MAX 12	  // two tokens in one chunk have its frame once
#define LARGE_MIN 4096	  // larger segments are no tokens
#define JOIN_NS (1 << 17) // segments closer than this are one piece
#define GAP_LARGE 3	  // a gap of as many others is none between tokens
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

// kind_of tells what begins with the first two bytes of the payload.
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

// request is called with payload that comes in.
static __always_inline void request(struct __sk_buff *skb, struct packet *p, struct sock_state *s, struct tokens *t)
{
	enum kind kind;

	if (s->phase == PHASE_REQUEST || s->phase == PHASE_UNMEASURED)
		return; // more of the same request, or not measured
	kind = kind_of(skb, p);
	if (s->phase == PHASE_INTERIM && kind == KIND_ODD) {
		s->phase = PHASE_REQUEST; // what 100 Continue has asked for
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

// vote remembers of a port what a stream said about its first piece. Votes that are lost in a race of two CPUs do not matter.
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

// first_of tells what the first piece of a stream was, by the smaller one of the next two, the time until it went out, and the gap after it and the next gap.
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

// gap_of counts the gap before a piece, unless that looks like several tokens.
static __always_inline void gap_of(struct tokens *t, __u32 size, __u32 least, __u64 gap)
{
	if (size + CHUNK_MAX >= 2 * least)
		ADD(t->coalesced, 1);
	else
		histogram_add(&t->itl, gap);
}

// stream counts the three pieces that an answer has with this one.
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

// begins is called with the first segment of an answer.
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

// piece is called with a segment that does not continue the piece before.
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

// answer is called with bytes that go out for the first time; waiting: the program has written more than these.
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

// more_waits tells whether the program has written more than this segment, which goes out, has.
static __always_inline int more_waits(struct __sk_buff *skb, struct packet *p)
{
	struct bpf_sock *sk = skb->sk;
	struct tcp_sock *tp = sk ? bpf_skc_to_tcp_sock(sk) : 0;

	return tp && (__s32)(tp->write_seq - (p->seq + p->payload)) > 0;
}

#endif
