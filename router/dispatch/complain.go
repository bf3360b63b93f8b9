package dispatch

import (
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/router/fleet"
)

// complainEvery is how often one node's failures, or one model's, make a log line.
const complainEvery = 10 * time.Second

// complaints bounds the log lines on one subject: the first at once, then one in complainEvery that says for how many it
// stands.
type complaints struct {
	next atomic.Int64 // not before, Unix ns
	held atomic.Int64 // not logged yet
}

// due counts one and tells whether a line is to be written now, and for how many.
func (c *complaints) due(now time.Time) (count int64, ok bool) {
	c.held.Add(1)
	next := c.next.Load()
	if now.UnixNano() < next || !c.next.CompareAndSwap(next, now.Add(complainEvery).UnixNano()) {
		return 0, false
	}
	return c.held.Swap(0), true
}

// complain logs that an attempt has failed: a breaker tells of what repeats, this of a request that was lost.
func (d *Dispatcher) complain(j *Job, n *member, reason string, detail any) {
	count, ok := n.complaints.due(time.Now())
	if !ok {
		return
	}
	d.log.Warn("request failed on node", "node", n.ID, "reason", reason, "detail", detail, "model", j.model.name,
		"state", n.State().String(), "failures_since_last_line", count)
}

// complainOfAll logs that nodes answer alike with a server error, for which no breaker opens.
func (d *Dispatcher) complainOfAll(m *servedModel, status int) {
	if count, ok := m.complaints.due(time.Now()); ok {
		d.log.Warn("nodes answer the same request with the same server error, which is held against none of them",
			"model", m.name, "status", status, "requests_since_last_line", count)
	}
}

// cut takes note of an answer that had begun and was not finished by its node.
func (d *Dispatcher) cut(j *Job, a *attempt, o fleet.Outcome, kind string) {
	a.node.Report(o)
	d.metrics.UpstreamErrors.WithLabelValues(a.node.ID, kind).Inc()
	d.complain(j, a.node, kind, "the answer had begun")
}
