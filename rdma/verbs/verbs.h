//go:build linux && cgo && rdma

// What Go cannot say of libibverbs: macros, inline functions, unions and chains of structs. Nothing here keeps what it is given, and no structure has a pointer of Go's.
#ifndef CGN_VERBS_H
#define CGN_VERBS_H

#include <stddef.h>
#include <stdint.h>
#include <infiniband/verbs.h>

// Functions return 0 or an errno, if not said otherwise.

struct verbs_port {
	uint32_t max_message; // bytes
	int max_wr, max_cqe;  // of a queue
	int max_mr;
	int read_init, read_resp; // reads under way, ours and the other side's
	int windows;          // of type 2B, which hold reads to their bounds
	int active, ethernet;
	int mtu;              // enum ibv_mtu
};
int verbs_query(struct ibv_context *c, int port, struct verbs_port *out);

struct verbs_gid {
	uint8_t raw[16];
	uint32_t index;
	uint32_t roce_v2;
};
// verbs_gids fills at most max GIDs of a port, and returns how many, or a negative errno.
int verbs_gids(struct ibv_context *c, int port, struct verbs_gid *out, int max);
// verbs_has_gid says whether the port has this GID at this index.
int verbs_has_gid(struct ibv_context *c, int port, int index, const uint8_t *raw);

// verbs_event takes one event that has come, and acknowledges it: EAGAIN without one. port, qpn and cq are 0 for events that are not about one; cq is to be
// compared with others only.
int verbs_event(struct ibv_context *c, int *type, int *port, uint32_t *qpn, uintptr_t *cq);

struct ibv_mr *verbs_reg_mr(struct ibv_pd *pd, uint64_t addr, size_t length, int remote_read);

struct ibv_qp *verbs_create_qp(struct ibv_pd *pd, struct ibv_cq *cq, int depth);
int verbs_init(struct ibv_qp *qp, int port);
struct verbs_path {
	int port, gid_index, mtu, reads, timeout, retries;
	uint32_t qpn, remote_psn, local_psn;
	uint8_t gid[16];
};
int verbs_ready(struct ibv_qp *qp, const struct verbs_path *p); // to receive, then to send
int verbs_fail(struct ibv_qp *qp);                              // to the error state
int verbs_state(struct ibv_qp *qp);                             // enum ibv_qp_state, or a negative errno

struct verbs_done {
	uint64_t id;
	int status; // enum ibv_wc_status
};
enum { VERBS_DONE = 16 }; // completions taken in one call

// The work requests of a chain have id in their wr_id, shifted by one; the lowest bit marks the last, which alone is signalled. Those that post one return how many completions there
// are right after, which they take from cq into done, or a negative errno: what a card does at once costs no other call.
struct verbs_read {
	uint64_t local, remote;
	uint32_t length, lkey, rkey;
};
enum { VERBS_CHAIN = 64 }; // at most so many in one call
int verbs_post_reads(struct ibv_qp *qp, uint64_t id, const struct verbs_read *r, int n, struct ibv_cq *cq, struct verbs_done *done);

struct verbs_bind {
	struct ibv_mw *mw;
	struct ibv_mr *mr;
	uint64_t addr, length;
	uint32_t rkey; // for binds: in, that of the window's last bind, and out, that of this one; in, for invalidations
};
// verbs_post_binds binds each window with its next key.
int verbs_post_binds(struct ibv_qp *qp, uint64_t id, struct verbs_bind *b, int n, struct ibv_cq *cq, struct verbs_done *done);
int verbs_post_invalidates(struct ibv_qp *qp, uint64_t id, const struct verbs_bind *b, int n, struct ibv_cq *cq, struct verbs_done *done);

// verbs_poll takes at most VERBS_DONE completions, and returns how many, or a negative errno.
int verbs_poll(struct ibv_cq *cq, struct verbs_done *done);
// verbs_arm has the next completion send an event, and takes those that there are already, which send none.
int verbs_arm(struct ibv_cq *cq, struct verbs_done *done);
// verbs_taken takes an event off the channel, and the completions that it tells of: -EAGAIN when none has come.
int verbs_taken(struct ibv_comp_channel *ch, struct verbs_done *done);

// verbs_unmap has memory of nobody else take the place of whatever is mapped there.
int verbs_unmap(uint64_t from, size_t size);

#endif
