package leg

import (
	"bytes"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/connector"
	"github.com/cognitora/dataplane/router/fleet"
)

// debt is a prompt that P has computed and keeps until some node reads it.
type debt struct {
	owed bool    // no node is known to have read the prompt
	to   *member // the node that was to answer
}

// repayWithin bounds the time that a node gets to read the blocks of a prompt whose answer nobody
// wants any more. P's own time limit frees them if no node does.
const repayWithin = 5 * time.Second

// maxRepaid bounds the answer of such a node, in bytes.
const maxRepaid = 1 << 20

// repay asks a node for one token of the answer, in which nobody is interested, if P would keep the
// blocks otherwise. The dispatcher does so in the background. The blocks stay at P if too much is
// going on there, or if the request's body is gone.
func (h *hand) repay() {
	l := h.of
	if _, frees := h.with.(connector.Freer); !h.owed || !frees {
		return
	}
	h.owed = false
	n := h.reader()
	if n == nil || l.Request.Body() == nil {
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

// reader returns the node that shall read the blocks: the one that was to answer, or another one if
// that one seems to be out of service. reader returns nil if there is none.
func (h *hand) reader() *member {
	now := time.Now()
	well := func(n *member) bool {
		ok, _ := n.node.Eligible(now)
		return ok && !n.node.Health.FailedLately(now)
	}
	if well(h.to) {
		return h.to
	}
	for _, n := range h.of.pool.members {
		if n.connector == h.with && well(n) {
			return n
		}
	}
	return nil
}
