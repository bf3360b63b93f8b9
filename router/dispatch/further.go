package dispatch

import (
	"fmt"
	"time"

	"github.com/cognitora/dataplane/router/apierror"
)

// How many nodes are asked for one request: the first, and retry.max_nodes further ones. A request may itself be what ends
// engines, so after a connection that broke one more node gets it at most, unless other requests of that node broke at about
// the same time: then the node has ended for something else. Nodes that could not be connected to never had the request, and
// are bounded by retry.max_nodes alone.

// reset is a connection that broke before an answer.
type reset struct {
	node *member
	at   time.Time
	had  int // nodes that had the request then, this one included
}

// further is how many more nodes may be asked after v, of those spared for the request so far: after a 500 the request itself is
// a suspect, so one more must do.
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
func (j *Job) failedWith(v verdict, n *member, at time.Time) {
	if v != unreached && v != starved {
		j.had++
	}
	if v == broken {
		j.resets = append(j.resets, reset{n, at, j.had})
	}
}

// suspect is how many nodes had the request when it first ended one that it alone was on; 0 if it never has.
func (j *Job) suspect() int {
	for _, r := range j.resets {
		if !r.node.BrokeForOthers(r.at) {
			return r.had
		}
	}
	return 0
}

// breath is how long a request waits, with nothing in flight, where nodes have ended: what has ended them may have ended more,
// and for other requests too, and a moment later that is known.
const breath = 50 * time.Millisecond

// mayGoOn tells whether another node may be asked after v.
func (j *Job) mayGoOn(v verdict) bool {
	j.spare = v.further(j.spare)
	if j.spare == 0 || j.expired() {
		return false
	}
	last := j.spare == 1 && len(j.tried) > 1 && (v == broken || v == unreached)
	if (last || j.suspected()) && (j.Deadline.IsZero() || time.Until(j.Deadline) > 2*breath) {
		time.Sleep(breath)
	}
	return !j.suspected()
}

// suspected tells whether as many nodes have had the request as may, where it seems to be what ends them.
func (j *Job) suspected() bool {
	had := j.suspect()
	return had > 0 && j.had > had
}

// calm takes out of a retry's candidates the nodes that a connection has just failed to, as long as another has room: where
// several nodes end at once a request need not try each of them.
func (j *Job) calm(now time.Time) {
	if j.Attempts == 0 {
		return
	}
	room := false
	for i, at := range j.able {
		c := &j.cands[i]
		free := c.MaxConcurrent == 0 || c.InFlight < c.MaxConcurrent
		room = room || free && !j.model.nodes[at].FailedLately(now)
	}
	if room {
		j.keep(func(at int32) bool { return !j.model.nodes[at].FailedLately(now) })
	}
}

// keep leaves the candidates of which ok is true, unless there are none.
func (j *Job) keep(ok func(at int32) bool) {
	kept := 0
	for i, at := range j.able {
		if ok(at) {
			j.cands[kept], j.able[kept] = j.cands[i], at
			kept++
		}
	}
	if kept > 0 {
		j.cands, j.able = j.cands[:kept], j.able[:kept]
	}
}

// unanswered is the error for a request that no node has answered.
func (d *Dispatcher) unanswered(j *Job) *apierror.Error {
	e := *errBackend
	nodes := "1 node was"
	if len(j.tried) != 1 {
		nodes = fmt.Sprintf("%d nodes were", len(j.tried))
	}
	e.Message = fmt.Sprintf("%s asked and none answered (last: %s); retry.max_nodes allows %d further nodes, "+
		"and one after a connection that broke for this request alone", nodes, j.cause, d.options.MaxNodes)
	return &e
}
