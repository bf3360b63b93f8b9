package leg

import (
	"encoding/binary"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/cognitora/dataplane/router/health"
)

// These rules judge a node's health by its requests:
//
//  - A connection that is refused, breaks or does not speak HTTP/1.1 counts against the node. A
//    late first byte counts against the node too. A refused or broken connection causes a check at
//    once.
//  - An answer below 500 counts for the node, and so does 501 (the engine lacks the endpoint). But
//    429 counts for nothing: a busy node is well, but it has not shown that it answers.
//  - Any other 5xx may be the request's fault. A 5xx counts in full when another node answers the
//    same request below 500. A 5xx counts for neither node when another node answers the same 5xx.
//    Without another node's answer a 5xx is a doubt, which counts weakly; see
//    health.Node.ReportDoubt. No other answer comes when there is no other node, the retry budget
//    is spent, the node is pinned, or the others failed otherwise.
//  - A node out of service for server errors alone, or only returning, is asked when no other node
//    is left or has room. A breaker thus never makes things worse than the errors that opened it.

// nodeSetAside is the Cause of a request that was ended from outside while it waited on a node set
// aside.
const nodeSetAside = "node_set_aside"

// failure is a 5xx answer of a node.
type failure struct {
	member *member
	status int
}

// judge reports the end of an attempt to the node's health, and logs a failure. err is the failure;
// nil means that the node has answered.
func (l *Leg) judge(a *attempt, v verdict, err error) {
	l.tries.excused = v == late && l.excuses(a, time.Now())
	if v.blames() {
		l.d.metrics.UpstreamErrors.WithLabelValues(a.member.node.ID, v.String()).Inc()
		l.tries.cause = v.String()
		if !l.tries.excused {
			defer l.tell(a, v, err)
		}
	}
	switch v {
	case answered:
		l.judgeStatus(a.member, a.status)
	case failed500, overloaded:
		l.judgeStatus(a.member, a.ex.Status())
	case unreached:
		a.member.node.Health.Report(health.ConnectError)
	case broken, garbled:
		a.member.node.Health.Report(health.Reset)
	case stalled:
		l.gaveUp(a, time.Now())
	case overdue:
		l.gaveUp(a, time.Now())
		a.member.report(health.Timeout)
	case abandoned:
		if a.member.node.Health.State() == health.Aside {
			l.tries.cause = nodeSetAside
		}
	case late:
		if !l.tries.excused {
			l.gaveUp(a, time.Now())
			a.member.report(health.Timeout)
		}
	}
}

// hushed is the time for which a node owes an answer to every request until the requests' own
// deadlines, which end its attempts, are no excuse any more.
const hushed = 5 * time.Second

// excuses says whether the client's deadline excuses the node of an attempt that it has ended. Half
// of a deadline may be short for a prompt. It is no excuse for a node that has been silent since
// before other attempts like this one.
func (l *Leg) excuses(a *attempt, now time.Time) bool {
	return l.Request.Expired() || l.tries.rushed && l.expired() && a.member.node.missed.since(a, now) < hushed
}

// missed are a node's attempts that a client's deadline has ended since its last sign of life.
type missed struct {
	mu    sync.Mutex
	pulse time.Duration // the time of that sign
	first time.Time     // when the first of these attempts was sent
}

// since adds a, and returns the time since the first of the attempts was sent.
func (m *missed) since(a *attempt, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if at := a.member.node.pulse.At(); m.first.IsZero() || at != m.pulse {
		m.pulse, m.first = at, a.sent
	}
	return now.Sub(m.first)
}

// report passes the outcome to the node's health. If the outcome sets the node aside, report counts
// that.
func (n *member) report(o health.Outcome) {
	if n.node.Health.Report(o) {
		n.node.metrics.SetAside.Inc()
	}
}

// tell logs a failed attempt, unless the node only reported that it is busy.
func (l *Leg) tell(a *attempt, v verdict, err error) {
	switch {
	case err != nil:
		l.complain(a.member, v.String(), err)
	case a.ex == nil:
	case a.ex.Status() != http.StatusTooManyRequests:
		l.complain(a.member, v.String(), a.ex.Status())
	}
}

// judgeStatus judges the node by the status of its answer.
func (l *Leg) judgeStatus(n *member, status int) {
	switch {
	case status == http.StatusTooManyRequests:
		n.node.Health.Report(health.Busy)
	case status == http.StatusNotImplemented:
		n.node.Health.Report(health.OK)
	case status >= 500:
		l.tries.failed = append(l.tries.failed, failure{n, status})
	default:
		n.node.Health.Report(health.OK)
		for _, other := range l.tries.failed {
			other.member.node.Health.Report(health.ServerError)
		}
		l.tries.failed = l.tries.failed[:0]
	}
}

// settleFailed judges the nodes that answered 5xx, once no other node will be asked.
func (l *Leg) settleFailed() {
	alike := 0
	for i, f := range l.tries.failed {
		same := func(other failure) bool { return other.status == f.status }
		if !slices.ContainsFunc(l.tries.failed[:i], same) && !slices.ContainsFunc(l.tries.failed[i+1:], same) {
			f.member.node.Health.ReportDoubt(hash(l.Request.Path, l.Request.Body()), l.pool.doubt(f.member))
		} else {
			alike = f.status
		}
	}
	if alike != 0 {
		l.d.complainOfAll(l.model, alike)
	}
	l.tries.failed = l.tries.failed[:0]
}

// hashedBody is the number of bytes hashed at either end of a body.
const hashedBody = 16 << 10

// hash identifies a request by path, body length and the two ends of the body, where prompts
// differ.
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

// doubt returns the mean doubt about the answering nodes of the pool other than n.
func (p *pool) doubt(n *member) float64 {
	sum, nodes := 0.0, 0
	for other := range p.each {
		if ratio, ok := other.node.Health.Doubt(); ok && other.node != n.node {
			sum, nodes = sum+ratio, nodes+1
		}
	}
	return sum / float64(max(nodes, 1))
}

// A request goes to its first node and to at most retry.max_nodes further ones. The request itself
// may end engines. So after a broken connection at most one more node gets the request. If other
// requests of the first node broke at about the same time, the cause is another one and the bound
// does not apply. A node whose connection failed never had the request, so only retry.max_nodes
// bounds these nodes.

// reset is a connection that broke before the answer.
type reset struct {
	member *member
	at     time.Time
	had    int // nodes that had received the request by then, this one included
}

// further returns how many more nodes may be asked after v, at most spare. After a 500 the request
// itself may be at fault, so at most one more node is asked.
func (v verdict) further(spare int) int {
	switch v {
	case unreached, starved, silent, overloaded, overdue, broken:
		return spare
	case garbled, failed500, stalled:
		return min(spare, 1)
	}
	return 0
}

// failedWith counts an attempt with verdict v that ended at at.
func (l *Leg) failedWith(v verdict, n *member, at time.Time) {
	if v != unreached && v != starved {
		l.tries.had++
	}
	if v == broken {
		l.tries.resets = append(l.tries.resets, reset{n, at, l.tries.had})
	}
}

// suspect looks for a node that the request has ended and that broke no other request. suspect
// returns how many nodes had received the request when the first of these nodes ended; 0: there is
// no such node.
func (l *Leg) suspect() int {
	for _, r := range l.tries.resets {
		if !r.member.node.Health.BrokeForOthers(r.at) {
			return r.had
		}
	}
	return 0
}

// breath is a wait after nodes have ended. It comes before the attempt that asks the last allowed
// node, or before the request fails. After the wait the health of the nodes shows whether other
// requests broke too.
const breath = 50 * time.Millisecond

// needsBreath says whether the request should wait for breath after v. A request that may ask no
// further node does not wait, and a request close to its deadline does not wait.
func (l *Leg) needsBreath(v verdict) bool {
	if l.tries.spare == 0 || !l.Request.Deadline.IsZero() && time.Until(l.Request.Deadline) <= 2*breath {
		return false
	}
	last := l.tries.spare == 1 && len(l.tries.asked) > 1 && (v == broken || v == unreached)
	return last || l.suspected()
}

// mayGoOn says whether another node may be asked.
func (l *Leg) mayGoOn() bool {
	return l.tries.spare > 0 && !l.expired() && !l.suspected()
}

// suspected tells whether the request seems to end nodes, so that no further node may get it.
func (l *Leg) suspected() bool {
	had := l.suspect()
	return had > 0 && l.tries.had > had
}

// complainEvery is the time between two log lines about one node's failures, or one model's.
const complainEvery = 10 * time.Second

// complaints bounds the log lines on one subject. The first failure is logged at once, then one
// line in complainEvery gives the number of failures. Run writes the last line if no more failures
// follow.
type complaints struct {
	next atomic.Int64 // earliest time of the next line, Unix ns
	held atomic.Int64 // failures not logged yet
}

// due counts one failure. ok says whether to log a line now, and count is the number of failures in
// that line.
func (c *complaints) due(now time.Time) (count int64, ok bool) {
	c.held.Add(1)
	return c.rest(now)
}

// rest says whether a line for the remaining failures is due, and the number of these failures.
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

// complain logs a failed attempt. The breaker logs repeated failures; complain's line reports the
// lost request.
func (l *Leg) complain(n *member, reason string, detail any) {
	count, ok := n.node.complaints.due(time.Now())
	if !ok {
		return
	}
	l.d.log.Warn("request failed on node", "node", n.node.ID, "reason", reason, "detail", detail, "model", l.model.name,
		"state", n.node.Health.State().String(), "failures_since_last_line", count)
}

// complainOfAll logs that all nodes answer with the same server error, which opens no breaker.
func (d *Dispatcher) complainOfAll(m *servedModel, status int) {
	if count, ok := m.complaints.due(time.Now()); ok {
		d.log.Warn("nodes answer the same request with the same server error, which is held against none of them",
			"model", m.name, "status", status, "requests_since_last_line", count)
	}
}

// complainOfRest logs the failures that no later line will report.
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

// cut handles an answer that its node began and did not finish.
func (l *Leg) cut(a *attempt, o health.Outcome, kind string) {
	a.member.report(o)
	l.d.metrics.UpstreamErrors.WithLabelValues(a.member.node.ID, kind).Inc()
	l.complain(a.member, kind, "the answer had begun")
}
