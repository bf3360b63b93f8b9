//go:build linux && cgo && rdma

#include "verbs.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define SOFT_ROCE 0xffffff // vendor id of soft-RoCE

int verbs_query(struct ibv_context *c, int port, struct verbs_port *out)
{
	struct ibv_device_attr d;
	struct ibv_port_attr p;
	int err;

	memset(out, 0, sizeof *out);
	if ((err = ibv_query_device(c, &d)) || (err = ibv_query_port(c, port, &p)))
		return err;
	out->max_message = p.max_msg_sz;
	out->max_wr = d.max_qp_wr;
	out->max_cqe = d.max_cqe;
	out->max_mr = d.max_mr;
	out->read_init = d.max_qp_init_rd_atom;
	out->read_resp = d.max_qp_rd_atom;
	// Soft-RoCE bounds a read through a window by the window's region, not by the window (Linux
	// 6.1, rxe_resp.c, check_rkey).
	out->windows = (d.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0 && d.vendor_id != SOFT_ROCE;
	out->active = p.state == IBV_PORT_ACTIVE;
	out->ethernet = p.link_layer == IBV_LINK_LAYER_ETHERNET;
	out->mtu = p.active_mtu;
	return 0;
}

int verbs_gids(struct ibv_context *c, int port, struct verbs_gid *out, int max)
{
	struct ibv_gid_entry table[256];
	ssize_t n = ibv_query_gid_table(c, table, sizeof table / sizeof table[0], 0);
	int found = 0;

	if (n < 0)
		return (int)n;
	for (ssize_t i = 0; i < n && found < max; i++) {
		if ((int)table[i].port_num != port)
			continue;
		memcpy(out[found].raw, table[i].gid.raw, sizeof out[found].raw);
		out[found].index = table[i].gid_index;
		out[found].roce_v2 = table[i].gid_type == IBV_GID_TYPE_ROCE_V2;
		found++;
	}
	return found;
}

int verbs_has_gid(struct ibv_context *c, int port, int index, const uint8_t *raw)
{
	struct ibv_gid_entry e;

	return ibv_query_gid_ex(c, port, index, &e, 0) == 0 && memcmp(e.gid.raw, raw, sizeof e.gid.raw) == 0;
}

int verbs_event(struct ibv_context *c, int *type, int *port, uint32_t *qpn, uintptr_t *cq)
{
	struct ibv_async_event e;

	*port = *qpn = *cq = 0;
	if (ibv_get_async_event(c, &e))
		return errno ? errno : EIO;
	*type = e.event_type;
	switch (e.event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		*qpn = e.element.qp->qp_num;
		break;
	case IBV_EVENT_CQ_ERR:
		*cq = (uintptr_t)e.element.cq;
		break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_GID_CHANGE:
		*port = e.element.port_num;
		break;
	default:
		break;
	}
	ibv_ack_async_event(&e);
	return 0;
}

struct ibv_mr *verbs_reg_mr(struct ibv_pd *pd, uint64_t addr, size_t length, int remote_read)
{
	int access = remote_read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND;

	return ibv_reg_mr(pd, (void *)(uintptr_t)addr, length, access);
}

struct ibv_qp *verbs_create_qp(struct ibv_pd *pd, struct ibv_cq *cq, int depth)
{
	struct ibv_qp_init_attr a;

	memset(&a, 0, sizeof a);
	a.send_cq = a.recv_cq = cq;
	a.qp_type = IBV_QPT_RC;
	a.cap.max_send_wr = depth;
	a.cap.max_recv_wr = 1; // none is ever posted; some cards want room for one
	a.cap.max_send_sge = a.cap.max_recv_sge = 1;
	return ibv_create_qp(pd, &a);
}

int verbs_init(struct ibv_qp *qp, int port)
{
	struct ibv_qp_attr a;

	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_INIT;
	a.port_num = port;
	a.qp_access_flags = IBV_ACCESS_REMOTE_READ;
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

int verbs_ready(struct ibv_qp *qp, const struct verbs_path *p)
{
	struct ibv_qp_attr a;
	int err;

	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTR;
	a.path_mtu = p->mtu;
	a.dest_qp_num = p->qpn;
	a.rq_psn = p->remote_psn;
	a.max_dest_rd_atomic = p->reads;
	a.min_rnr_timer = 12;
	a.ah_attr.is_global = 1; // RoCE has no other addresses
	a.ah_attr.port_num = p->port;
	memcpy(a.ah_attr.grh.dgid.raw, p->gid, sizeof p->gid);
	a.ah_attr.grh.sgid_index = p->gid_index;
	a.ah_attr.grh.hop_limit = 64;
	err = ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (err)
		return err;
	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_RTS;
	a.sq_psn = p->local_psn;
	a.timeout = p->timeout;
	a.retry_cnt = p->retries;
	a.rnr_retry = 0; // nothing is sent that needs a receive
	a.max_rd_atomic = p->reads;
	return ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int verbs_fail(struct ibv_qp *qp)
{
	struct ibv_qp_attr a;

	memset(&a, 0, sizeof a);
	a.qp_state = IBV_QPS_ERR;
	return ibv_modify_qp(qp, &a, IBV_QP_STATE);
}

int verbs_state(struct ibv_qp *qp)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	int err = ibv_query_qp(qp, &a, IBV_QP_STATE, &i);

	return err ? -err : (int)a.qp_state;
}

// chain links n work requests, and marks the last.
static void chain(struct ibv_send_wr *w, uint64_t id, int n)
{
	for (int i = 0; i < n; i++) {
		w[i].wr_id = id << 1;
		w[i].next = &w[i + 1];
	}
	w[n - 1].wr_id |= 1;
	w[n - 1].send_flags |= IBV_SEND_SIGNALED;
	w[n - 1].next = NULL;
}

static int post(struct ibv_qp *qp, struct ibv_send_wr *w, struct ibv_cq *cq, struct verbs_done *done)
{
	struct ibv_send_wr *bad;
	int err = ibv_post_send(qp, w, &bad);

	return err ? -err : verbs_poll(cq, done);
}

int verbs_post_reads(struct ibv_qp *qp, uint64_t id, const struct verbs_read *r, int n, struct ibv_cq *cq, struct verbs_done *done)
{
	struct ibv_send_wr w[VERBS_CHAIN];
	struct ibv_sge s[VERBS_CHAIN];

	if (n < 1 || n > VERBS_CHAIN)
		return -EINVAL;
	memset(w, 0, n * sizeof w[0]);
	for (int i = 0; i < n; i++) {
		s[i] = (struct ibv_sge){ .addr = r[i].local, .length = r[i].length, .lkey = r[i].lkey };
		w[i].sg_list = &s[i];
		w[i].num_sge = 1;
		w[i].opcode = IBV_WR_RDMA_READ;
		w[i].wr.rdma.remote_addr = r[i].remote;
		w[i].wr.rdma.rkey = r[i].rkey;
	}
	chain(w, id, n);
	return post(qp, w, cq, done);
}

int verbs_post_binds(struct ibv_qp *qp, uint64_t id, struct verbs_bind *b, int n, struct ibv_cq *cq, struct verbs_done *done)
{
	struct ibv_send_wr w[VERBS_CHAIN];

	if (n < 1 || n > VERBS_CHAIN)
		return -EINVAL;
	memset(w, 0, n * sizeof w[0]);
	for (int i = 0; i < n; i++) {
		b[i].mw->rkey = b[i].rkey; // drivers read it, but do not set it
		b[i].rkey = ibv_inc_rkey(b[i].rkey);
		w[i].opcode = IBV_WR_BIND_MW;
		w[i].bind_mw.mw = b[i].mw;
		w[i].bind_mw.rkey = b[i].rkey;
		w[i].bind_mw.bind_info.mr = b[i].mr;
		w[i].bind_mw.bind_info.addr = b[i].addr;
		w[i].bind_mw.bind_info.length = b[i].length;
		w[i].bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_READ;
	}
	chain(w, id, n);
	return post(qp, w, cq, done);
}

int verbs_post_invalidates(struct ibv_qp *qp, uint64_t id, const struct verbs_bind *b, int n, struct ibv_cq *cq, struct verbs_done *done)
{
	struct ibv_send_wr w[VERBS_CHAIN];

	if (n < 1 || n > VERBS_CHAIN)
		return -EINVAL;
	memset(w, 0, n * sizeof w[0]);
	for (int i = 0; i < n; i++) {
		w[i].opcode = IBV_WR_LOCAL_INV;
		w[i].invalidate_rkey = b[i].rkey;
	}
	chain(w, id, n);
	return post(qp, w, cq, done);
}

int verbs_poll(struct ibv_cq *cq, struct verbs_done *done)
{
	struct ibv_wc wc[VERBS_DONE];
	int n = ibv_poll_cq(cq, VERBS_DONE, wc);

	for (int i = 0; i < n; i++)
		done[i] = (struct verbs_done){ .id = wc[i].wr_id, .status = wc[i].status };
	return n < 0 ? -EIO : n;
}

int verbs_arm(struct ibv_cq *cq, struct verbs_done *done)
{
	int err = ibv_req_notify_cq(cq, 0);

	return err ? -err : verbs_poll(cq, done);
}

int verbs_unmap(uint64_t from, size_t size)
{
	void *p = mmap((void *)(uintptr_t)from, size, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return p == MAP_FAILED ? errno : 0;
}

int verbs_taken(struct ibv_comp_channel *ch, struct verbs_done *done)
{
	struct ibv_cq *cq;
	void *context;

	if (ibv_get_cq_event(ch, &cq, &context))
		return errno ? -errno : -EIO;
	ibv_ack_cq_events(cq, 1); // without this, destroying the queue would wait for ever
	return verbs_poll(cq, done);
}
