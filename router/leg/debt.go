package leg

import (
	"bytes"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/connector"
	"github.com/cognitora/dataplane/router/fleet"
)

// repayWithin bounds the time that a node gets to read the blocks of a prompt whose answer nobody
// wants any more. P's own time limit frees them if no node does.
const repayWithin = 5 * time.Second

// maxRepaid bounds the answer of such a node, in bytes.
const maxRepaid = 1 << 20

// repay gives up the blocks that P keeps for a D. If P would go on keeping them, repay asks a node
// for one token of the answer, in which nobody is interested. The dispatcher does so in the
// background. The blocks stay at P if too much is going on there, or if the request's body is gone.
func (h *hand) repay() {
	l, was := h.of, h.stage
	if was != fresh && was != spent {
		return
	}
	h.stage = unasked
	if _, frees := h.with.(connector.Freer); !frees || l.Request.Body() == nil {
		return
	}
	n := h.freer()
	if n == nil {
		return
	}
	out, err := l.prepare(&attempt{member: n, split: true, frees: true})
	if err != nil {
		return
	}
	size := 0
	for _, part := range out.Body {
		size += len(part)
	}
	d := l.d // the leg ends before the errand does
	if !d.errands.reserve(size) {
		return
	}
	now := time.Now()
	q, until := repayment(n, out, now), now.Add(repayWithin)
	d.errands.run(size, func() {
		if _, _, err := n.exchange(q, until, maxRepaid); err != nil {
			d.log.Debug("blocks of a prompt may stay at the node that computed it", "node", n.node.ID, "error", err)
		}
	})
}

// repayment returns a copy of out that shares no memory with the request. Its deadline at an agent
// is that of the errand, because the client's own may have passed.
func repayment(n *member, out *relay.Request, now time.Time) *relay.Request {
	more := bytes.Clone(n.rank.Header)
	if n.node.Source == fleet.Etcd {
		more = relay.AppendDeadline(more, now.Add(repayWithin), now)
	}
	return &relay.Request{
		Method: strings.Clone(out.Method), Path: strings.Clone(out.Path), Header: bytes.Clone(out.Header), More: more,
		Body: [][]byte{bytes.Join(out.Body, nil)}, ForwardAuthorization: bytes.Clone(out.ForwardAuthorization),
		Once: out.Once, Unrepeatable: true,
	}
}

// freer returns the node that shall read the blocks: the one that was to answer, or another one if
// that one seems to be out of service. The other one is one that the leg may ask, because it gets
// the whole prompt, and is not P. freer returns nil if there is none.
func (h *hand) freer() *member {
	now := time.Now()
	well := func(n *member) bool {
		ok, _ := n.node.Eligible(now)
		return ok && !n.node.Health.FailedLately(now)
	}
	if well(h.reader) {
		return h.reader
	}
	for _, n := range h.of.pool.members {
		if n.connector == h.with && n.node != h.partner.node && well(n) && h.of.permits(n) {
			return n
		}
	}
	return nil
}
