//go:build linux && cgo && rdma

// The parts of libibverbs that Go cannot use: macros, inline functions, unions and chains of
// structs. No function keeps its arguments, and no structure has a Go pointer.
#ifndef CGN_VERBS_H
#define CGN_VERBS_H

#include <stddef.h>
#include <stdint.h>
#include <infiniband/verbs.h>

// Functions return 0 or an errno, unless their comment says otherwise.

struct verbs_port {
	uint32_t max_message; // bytes
	int max_wr, max_cqe;  // of a queue
	int max_mr;
	int read_init, read_resp; // reads under way, ours and the other side's
	int windows;          // the card has windows of type 2B that bound reads
	int active, ethernet;
	int mtu;              // enum ibv_mtu
};
int verbs_query(struct ibv_context *c, int port, struct verbs_port *out);

struct verbs_gid {
	uint8_t raw[16];
	uint32_t index;
	uint32_t roce_v2;
};
// verbs_gids fills in at most max GIDs of a port, and returns their number, or a negative errno.
int verbs_gids(struct ibv_context *c, int port, struct verbs_gid *out, int max);
// verbs_has_gid tells whether the port has this GID at this index.
int verbs_has_gid(struct ibv_context *c, int port, int index, const uint8_t *raw);

// verbs_event takes one event and acknowledges it, or returns EAGAIN. port, qpn and cq are 0 if the
// event is not about one. cq is only for comparison.
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

// The work requests of a chain have id, shifted by one, as wr_id. The lowest bit marks the last
// request, the only one that is signalled. After posting, verbs_post_* takes the completions that
// cq has already into done. verbs_post_* returns their number, or a negative errno. So work that
// the card does at once costs no second call.
struct verbs_read {
	uint64_t local, remote;
	uint32_t length, lkey, rkey;
};
enum { VERBS_CHAIN = 64 }; // most requests of one call
int verbs_post_reads(struct ibv_qp *qp, uint64_t id, const struct verbs_read *r, int n, struct ibv_cq *cq, struct verbs_done *done);

struct verbs_bind {
	struct ibv_mw *mw;
	struct ibv_mr *mr;
	uint64_t addr, length;
	// The key: of the window's last bind before verbs_post_binds, and of the new bind after it.
	uint32_t rkey;
};
// verbs_post_binds binds each window with its next key.
int verbs_post_binds(struct ibv_qp *qp, uint64_t id, struct verbs_bind *b, int n, struct ibv_cq *cq, struct verbs_done *done);
int verbs_post_invalidates(struct ibv_qp *qp, uint64_t id, const struct verbs_bind *b, int n, struct ibv_cq *cq, struct verbs_done *done);

// verbs_poll takes at most VERBS_DONE completions, and returns their number, or a negative errno.
int verbs_poll(struct ibv_cq *cq, struct verbs_done *done);
// verbs_arm makes the next completion send an event. verbs_arm also takes the completions that
// exist already, because they send none.
int verbs_arm(struct ibv_cq *cq, struct verbs_done *done);
// verbs_taken takes an event off the channel, and then the completions of its queue. verbs_taken
// returns -EAGAIN if there is no event.
int verbs_taken(struct ibv_comp_channel *ch, struct verbs_done *done);

// verbs_unmap replaces the mapping at this address by fresh private memory.
int verbs_unmap(uint64_t from, size_t size);

#endif
