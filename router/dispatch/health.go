package dispatch

import (
	"encoding/binary"
	"net/http"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/cognitora/dataplane/router/fleet"
)

// How a node's health is judged by the requests it gets:
//
//   - A connection that is refused or breaks, or brings no HTTP/1.1, and a first byte that does
//     not come in time, count against the node. After the first two it is checked at once.
//   - An answer below 500, and 501 (the engine does not have that endpoint), counts for it; but
//     429 counts for nothing: a busy node is well, and has not shown that it answers.
//   - Any other 5xx may be the request's fault. It counts in full when another node answers
//     the same request below 500, and for neither node when another answers the same 5xx.
//     Where no other node has told (there is none, the retry budget is spent, the node is
//     pinned, others could not be reached or failed otherwise) it is a doubt, which counts
//     weakly: fleet.Node.ReportDoubt says how.
//   - Nodes out of service for server errors alone, and those only returning, are asked when
//     no other node is left or has room, so that a breaker never makes things worse than what opened it.

// nodeSetAside is the Cause of a request that was given up from outside while it waited on a node set aside.
const nodeSetAside = "node_set_aside"

// failure is a node's answer of 5xx.
type failure struct {
	node   *member
	status int
}

// note tells the node's health how the attempt ended, and the operator if it failed. err is what it failed with, nil if
// the node has answered.
func (d *Dispatcher) note(j *Job, a *attempt, v verdict, err error) {
	if v != answered && v != abandoned && v != tooOld {
		d.metrics.UpstreamErrors.WithLabelValues(a.node.ID, v.String()).Inc()
		j.cause = v.String()
		defer d.tell(j, a, v, err)
	}
	switch v {
	case answered:
		j.judge(a.node, a.status)
	case failed500, overloaded:
		j.judge(a.node, a.ex.Status())
	case unreached:
		a.node.Report(fleet.ConnectError)
	case broken, garbled:
		a.node.Report(fleet.Reset)
	case overdue:
		a.node.report(fleet.Timeout)
	case abandoned:
		if a.node.State() == fleet.Aside {
			j.cause = nodeSetAside
		}
	case late:
		if !j.expired() {
			a.node.report(fleet.Timeout)
		}
	}
}

// report tells the node's health, and counts if that sets the node aside.
func (n *member) report(o fleet.Outcome) {
	if n.Report(o) {
		n.metrics.SetAside.Inc()
	}
}

// tell logs a failed attempt, unless the node only says that it is busy.
func (d *Dispatcher) tell(j *Job, a *attempt, v verdict, err error) {
	switch {
	case err != nil:
		d.complain(j, a.node, v.String(), err)
	case a.ex == nil:
	case a.ex.Status() != http.StatusTooManyRequests:
		d.complain(j, a.node, v.String(), a.ex.Status())
	}
}

// judge takes the status of a node's answer.
func (j *Job) judge(n *member, status int) {
	switch {
	case status == http.StatusTooManyRequests:
		n.Report(fleet.Busy)
	case status == http.StatusNotImplemented:
		n.Report(fleet.OK)
	case status >= 500:
		j.failed = append(j.failed, failure{n, status})
	default:
		n.Report(fleet.OK)
		for _, other := range j.failed {
			other.node.Report(fleet.ServerError)
		}
		j.failed = j.failed[:0]
	}
}

// settleFailed ends the judgement of nodes that answered 5xx when nobody else will be asked.
func (j *Job) settleFailed() {
	alike := 0
	for i, f := range j.failed {
		same := func(other failure) bool { return other.status == f.status }
		if !slices.ContainsFunc(j.failed[:i], same) && !slices.ContainsFunc(j.failed[i+1:], same) {
			f.node.ReportDoubt(j.hash(), j.model.doubt(f.node))
		} else {
			alike = f.status
		}
	}
	if alike != 0 {
		j.d.complainOfAll(j.model, alike)
	}
	j.failed = j.failed[:0]
}

// hashedBody is how many bytes are hashed at either end of a body.
const hashedBody = 16 << 10

// hash tells requests apart: by path, the body's length, and its two ends, which is where prompts differ.
func (j *Job) hash() uint64 {
	var h xxhash.Digest
	var lengths [16]byte
	binary.LittleEndian.PutUint64(lengths[:8], uint64(len(j.Path)))
	binary.LittleEndian.PutUint64(lengths[8:], uint64(len(j.Body)))
	h.Reset()
	h.Write(lengths[:])
	h.WriteString(j.Path)
	h.Write(j.Body[:min(len(j.Body), hashedBody)])
	h.Write(j.Body[max(0, len(j.Body)-hashedBody):])
	return h.Sum64()
}

// doubt is the mean doubt about the nodes of the model besides n that answer requests.
func (s *servedModel) doubt(n *member) float64 {
	sum, nodes := 0.0, 0
	for _, other := range s.nodes {
		if ratio, ok := other.Doubt(); ok && other != n {
			sum, nodes = sum+ratio, nodes+1
		}
	}
	return sum / float64(max(nodes, 1))
}
