package dispatch

import (
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/router/fleet"
)

// complainEvery is how often one node's failures, or one model's, make a log line.
const complainEvery = 10 * time.Second

// complaints bounds the log lines on one subject: the first at once, then one in complainEvery that says for how many it
// stands. Run writes it where nothing more follows.
type complaints struct {
	next atomic.Int64 // not before, Unix ns
	held atomic.Int64 // not logged yet
}

// due counts one and tells whether a line is to be written now, and for how many.
func (c *complaints) due(now time.Time) (count int64, ok bool) {
	c.held.Add(1)
	return c.rest(now)
}

// rest tells whether a line is due for what was not logged, and for how many.
func (c *complaints) rest(now time.Time) (count int64, ok bool) {
	if c.held.Load() == 0 {
		return 0, false
	}
	next := c.next.Load()
	if now.UnixNano() < next || !c.next.CompareAndSwap(next, now.Add(complainEvery).UnixNano()) {
		return 0, false
	}
	count = c.held.Swap(0)
	return count, count > 0
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

// complainOfRest logs what no later line will tell of.
func (d *Dispatcher) complainOfRest(now time.Time) {
	t := d.current()
	for _, n := range t.nodes {
		if count, ok := n.complaints.rest(now); ok {
			d.log.Warn("earlier failures on node that no line has told of yet", "node", n.ID, "state_now", n.State().String(), "failures_since_last_line", count)
		}
	}
	for _, m := range t.models {
		if count, ok := m.complaints.rest(now); ok {
			d.log.Warn("earlier requests of which no line has told yet met the same server error on several nodes, which is held against none of them",
				"model", m.name, "requests_since_last_line", count)
		}
	}
}

// cut takes note of an answer that had begun and was not finished by its node.
func (d *Dispatcher) cut(j *Job, a *attempt, o fleet.Outcome, kind string) {
	a.node.report(o)
	d.metrics.UpstreamErrors.WithLabelValues(a.node.ID, kind).Inc()
	d.complain(j, a.node, kind, "the answer had begun")
}
