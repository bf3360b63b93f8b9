package leg

import (
	"encoding/binary"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/cognitora/dataplane/router/health"
)

// How a node's health is judged by the requests it gets:
//
//   - A connection that is refused or breaks, or brings no HTTP/1.1, and a first byte that does not
//     come in time, count against the node. After the first two it is checked at once.
//   - An answer below 500, and 501 (the engine does not have that endpoint), counts for it; but 429
//     counts for nothing: a busy node is well, and has not shown that it answers.
//   - Any other 5xx may be the request's fault. It counts in full when another node answers the
//     same request below 500, and for neither node when another answers the same 5xx. Where no
//     other node has told (there is none, the retry budget is spent, the node is pinned, others
//     could not be reached or failed otherwise) it is a doubt, which counts weakly:
//     fleet.Node.ReportDoubt says how.
//   - Nodes out of service for server errors alone, and those only returning, are asked when no
//     other node is left or has room, so that a breaker never makes things worse than what
//     opened it.

// nodeSetAside is the Cause of a request that was given up from outside while it waited on a node
// set aside.
const nodeSetAside = "node_set_aside"

// failure is a node's answer of 5xx.
type failure struct {
	node   *member
	status int
}

// judge tells the node's health how the attempt ended, and the operator if it failed. err is the
// failure, nil if the node has answered.
func (l *Leg) judge(a *attempt, v verdict, err error) {
	if v.blames() {
		l.d.metrics.UpstreamErrors.WithLabelValues(a.node.ID, v.String()).Inc()
		l.tries.cause = v.String()
		defer l.tell(a, v, err)
	}
	switch v {
	case answered:
		l.judgeStatus(a.node, a.status)
	case failed500, overloaded:
		l.judgeStatus(a.node, a.ex.Status())
	case unreached:
		a.node.Health.Report(health.ConnectError)
	case broken, garbled:
		a.node.Health.Report(health.Reset)
	case overdue:
		a.node.report(health.Timeout)
	case abandoned:
		if a.node.Health.State() == health.Aside {
			l.tries.cause = nodeSetAside
		}
	case late:
		if !l.Request.Expired() {
			a.node.report(health.Timeout)
		}
	}
}

// report tells the node's health, and counts if that sets the node aside.
func (n *member) report(o health.Outcome) {
	if n.Health.Report(o) {
		n.metrics.SetAside.Inc()
	}
}

// tell logs a failed attempt, unless the node only says that it is busy.
func (l *Leg) tell(a *attempt, v verdict, err error) {
	switch {
	case err != nil:
		l.complain(a.node, v.String(), err)
	case a.ex == nil:
	case a.ex.Status() != http.StatusTooManyRequests:
		l.complain(a.node, v.String(), a.ex.Status())
	}
}

// judgeStatus takes the status of a node's answer.
func (l *Leg) judgeStatus(n *member, status int) {
	switch {
	case status == http.StatusTooManyRequests:
		n.Health.Report(health.Busy)
	case status == http.StatusNotImplemented:
		n.Health.Report(health.OK)
	case status >= 500:
		l.tries.failed = append(l.tries.failed, failure{n, status})
	default:
		n.Health.Report(health.OK)
		for _, other := range l.tries.failed {
			other.node.Health.Report(health.ServerError)
		}
		l.tries.failed = l.tries.failed[:0]
	}
}

// settleFailed ends the judgement of nodes that answered 5xx when nobody else will be asked.
func (l *Leg) settleFailed() {
	alike := 0
	for i, f := range l.tries.failed {
		same := func(other failure) bool { return other.status == f.status }
		if !slices.ContainsFunc(l.tries.failed[:i], same) && !slices.ContainsFunc(l.tries.failed[i+1:], same) {
			f.node.Health.ReportDoubt(hash(l.Request.Path, l.Request.Body()), l.pool.doubt(f.node))
		} else {
			alike = f.status
		}
	}
	if alike != 0 {
		l.d.complainOfAll(l.model, alike)
	}
	l.tries.failed = l.tries.failed[:0]
}

// hashedBody is how many bytes are hashed at either end of a body.
const hashedBody = 16 << 10

// hash tells requests apart: by path, the body's length, and its two ends, where prompts differ.
func hash(path string, body []byte) uint64 {
	var h xxhash.Digest
	var lengths [16]byte
	binary.LittleEndian.PutUint64(lengths[:8], uint64(len(path)))
	binary.LittleEndian.PutUint64(lengths[8:], uint64(len(body)))
	h.Reset()
	h.Write(lengths[:])
	h.WriteString(path)
	h.Write(body[:min(len(body), hashedBody)])
	h.Write(body[max(0, len(body)-hashedBody):])
	return h.Sum64()
}

// doubt is the mean doubt about the nodes of the pool besides n that answer requests.
func (p *pool) doubt(n *member) float64 {
	sum, nodes := 0.0, 0
	for _, other := range p.members {
		if ratio, ok := other.Health.Doubt(); ok && other != n {
			sum, nodes = sum+ratio, nodes+1
		}
	}
	return sum / float64(max(nodes, 1))
}

// How many nodes are asked for one request: the first, and retry.max_nodes further ones. A request
// may itself be what ends engines, so after a connection that broke one more node gets it at most,
// unless other requests of that node broke at about the same time: then the node has ended for
// something else. Nodes that could not be connected to never had the request, and are bounded by
// retry.max_nodes alone.

// reset is a connection that broke before an answer.
type reset struct {
	node *member
	at   time.Time
	had  int // nodes that had the request then, this one included
}

// further is how many more nodes may be asked after v, of those spared for the request so far:
// after a 500 the request itself is a suspect, so one more must do.
func (v verdict) further(spare int) int {
	switch v {
	case unreached, starved, silent, overloaded, overdue, broken:
		return spare
	case garbled, failed500, stalled:
		return min(spare, 1)
	}
	return 0
}

// failedWith counts an attempt that came to v: at is when.
func (l *Leg) failedWith(v verdict, n *member, at time.Time) {
	if v != unreached && v != starved {
		l.tries.had++
	}
	if v == broken {
		l.tries.resets = append(l.tries.resets, reset{n, at, l.tries.had})
	}
}

// suspect is how many nodes had the request when it first ended one that it alone was on; 0 if it
// never has.
func (l *Leg) suspect() int {
	for _, r := range l.tries.resets {
		if !r.node.Health.BrokeForOthers(r.at) {
			return r.had
		}
	}
	return 0
}

// breath is how long a request waits, with nothing in flight, where nodes have ended: what has
// ended them may have ended more, and for other requests too, and a moment later that is known.
const breath = 50 * time.Millisecond

// mayGoOn tells whether another node may be asked after v.
func (l *Leg) mayGoOn(v verdict) bool {
	l.tries.spare = v.further(l.tries.spare)
	if l.tries.spare == 0 || l.Request.Expired() {
		return false
	}
	last := l.tries.spare == 1 && len(l.tries.asked) > 1 && (v == broken || v == unreached)
	if (last || l.suspected()) && (l.Request.Deadline.IsZero() || time.Until(l.Request.Deadline) > 2*breath) {
		time.Sleep(breath)
	}
	return !l.suspected()
}

// suspected tells whether as many nodes have had the request as may, where it seems to be what ends
// them.
func (l *Leg) suspected() bool {
	had := l.suspect()
	return had > 0 && l.tries.had > had
}

// complainEvery is how often one node's failures, or one model's, make a log line.
const complainEvery = 10 * time.Second

// complaints bounds the log lines on one subject: the first at once, then one in complainEvery that
// says for how many it stands. Run writes it where nothing more follows.
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

// complain logs that an attempt has failed: a breaker tells of what repeats, this of a request that
// was lost.
func (l *Leg) complain(n *member, reason string, detail any) {
	count, ok := n.complaints.due(time.Now())
	if !ok {
		return
	}
	l.d.log.Warn("request failed on node", "node", n.ID, "reason", reason, "detail", detail, "model", l.model.name,
		"state", n.Health.State().String(), "failures_since_last_line", count)
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
			d.log.Warn("earlier failures on node that no line has told of yet",
				"node", n.ID, "state_now", n.Health.State().String(), "failures_since_last_line", count)
		}
	}
	for _, m := range t.models {
		if count, ok := m.complaints.rest(now); ok {
			d.log.Warn("earlier requests of which no line has told yet met the same server error on several nodes, "+
				"which is held against none of them",
				"model", m.name, "requests_since_last_line", count)
		}
	}
}

// cut takes note of an answer that had begun and was not finished by its node.
func (l *Leg) cut(a *attempt, o health.Outcome, kind string) {
	a.node.report(o)
	l.d.metrics.UpstreamErrors.WithLabelValues(a.node.ID, kind).Inc()
	l.complain(a.node, kind, "the answer had begun")
}
