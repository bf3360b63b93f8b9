package dispatch

import (
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
)

// Bounds of a search for the node that holds a stored response.
const (
	maxLookups     = 64              // searches at once; one more is refused with 503 and Retry-After
	lookupNodes    = 8               // nodes that one search asks at once; the others wait for their turn
	lookupNodeTime = 2 * time.Second // for one node to answer
	lookupTime     = 4 * time.Second // for the whole search; nodes whose turn has not come by then count as silent
	lookupSkim     = 16 << 10        // bytes of an answer read to keep its connection; the connection of a longer one is closed
	maxResponseID  = 256             // bytes; a longer id is nobody's

	// responsesLost is how long a node's health checks have failed when what it stored counts as lost. Engines have that in
	// memory, and a backend that is configured, unlike a node of etcd, never leaves by itself.
	responsesLost = time.Minute
)

var (
	errNoResponse = &apierror.Error{Status: 404, Code: "response_not_found", Message: "no response with this id is stored here"}
	errNodeGone   = &apierror.Error{Status: 404, Code: "response_node_gone", Message: "the node that stored this response has left the fleet, and the response with it"}
	errNodeLost   = &apierror.Error{Status: 404, Code: "response_node_gone", Message: "the node that stored this response has not answered for a minute or more, and what it stored counts as lost"}
	errLookups    = &apierror.Error{Status: 503, Code: "lookups_full", Message: "too many stored responses are being searched for on the nodes", RetryAfterSeconds: 1}
)

// Holder is the node that stored response id. If this router does not remember it, the nodes
// are asked that serve the model of the job, where the job names one, or else all of them; those
// whose responses are lost are not. A node that is the only one there can be is it without a question.
func (d *Dispatcher) Holder(j *Job, id []byte) (node string, err *apierror.Error) {
	t := d.current()
	if node, known := d.stored.Node(id); known {
		n := t.snap.Node(node)
		switch {
		case n == nil:
			return "", errNodeGone
		case d.lost(n, time.Now()):
			return "", errNodeLost
		}
		return node, nil
	}
	nodes, more := t.serving(), t.snap.MayCome(time.Now())
	if len(j.Scan.PreviousResponseID) > 0 {
		if err := d.resolve(j); err != nil {
			return "", err
		}
		nodes = j.model.states()
	}
	now := time.Now()
	nodes = slices.DeleteFunc(nodes, func(n *nodeState) bool { return d.lost(n.Node, now) })
	switch {
	case len(nodes) == 0:
		return "", errNoNode
	case len(nodes) == 1 && !more:
		return nodes[0].ID, nil
	case !isResponseID(id):
		return "", errNoResponse
	}
	if d.lookups.Add(1) > maxLookups {
		d.lookups.Add(-1)
		d.metrics.Lookups.WithLabelValues("refused").Inc()
		return "", errLookups
	}
	defer d.lookups.Add(-1)
	return d.lookUp(j, id, nodes, more)
}

// lost tells whether what n has stored counts as lost.
func (d *Dispatcher) lost(n *fleet.Node, now time.Time) bool { return n.Unanswered(now) >= d.lostAfter }

// errHolder says of the node that alone can answer a request, because it stored a response, what keeps it from that.
func errHolder(node, why string) *apierror.Error {
	return &apierror.Error{
		Status: 503, Code: "response_node_unavailable", RetryAfterSeconds: 1,
		Message: "the node that stored this response (" + node + ") " + why,
	}
}

// holderOut is errHolder for the node that j is pinned to, which the pick has not taken.
func (j *Job) holderOut(now time.Time) *apierror.Error {
	for _, n := range j.model.nodes {
		if n.ID != string(j.Pin) {
			continue
		}
		if ok, why := n.Eligible(now); !ok {
			return errHolder(n.ID, "takes no requests now: "+why)
		}
		return errHolder(n.ID, "is at its limit")
	}
	return errNoResponse // that node serves other models
}

// serving are the nodes that serve some model.
func (t *table) serving() (all []*nodeState) {
	for _, n := range t.snap.Nodes {
		if state := t.nodes[n]; state != nil && t.serves(n) {
			all = append(all, state)
		}
	}
	return all
}

func (t *table) serves(n *fleet.Node) bool {
	for _, m := range t.models {
		if m.member(n) != nil {
			return true
		}
	}
	return false
}

func (s *servedModel) states() (all []*nodeState) {
	for _, m := range s.nodes {
		all = append(all, m.nodeState)
	}
	return all
}

// isResponseID tells whether id may stand in a path as a part that means nothing but itself.
func isResponseID(id []byte) bool {
	for i, c := range id {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '_' && c != '-' && c != '.') {
			return false
		}
	}
	return len(id) > 0 && len(id) <= maxResponseID
}

// lookup is a search under way.
type lookup struct {
	job     *Job
	path    string
	until   time.Time
	partial bool          // there may be nodes that are not known yet
	asking  []relay.Abort // one for each node that is asked at once

	mu     sync.Mutex
	over   bool // nobody is asked any more
	holder *nodeState
	silent []string // ids of nodes that did not answer
	denied int      // the status with which a node refuses the client
}

// lookUp asks nodes for response id; partial says that there may be others. It counts neither
// as load on them nor for or against their health.
func (d *Dispatcher) lookUp(j *Job, id []byte, nodes []*nodeState, partial bool) (string, *apierror.Error) {
	l := &lookup{
		job: j, path: "/v1/responses/" + string(id), until: j.bound(time.Now().Add(lookupTime)),
		partial: partial, asking: make([]relay.Abort, min(lookupNodes, len(nodes))),
	}
	j.pick()
	if !j.search(l) {
		return "", j.gone()
	}
	var next atomic.Int32
	var all sync.WaitGroup
	for i := range l.asking {
		a := &l.asking[i]
		all.Go(func() {
			for at := int(next.Add(1)) - 1; at < len(nodes); at = int(next.Add(1)) - 1 {
				d.inquire(l, nodes[at], a)
			}
		})
	}
	all.Wait()
	if !j.search(nil) {
		return "", j.gone()
	}
	return d.found(l, id)
}

// found is what the search has come to.
func (d *Dispatcher) found(l *lookup, id []byte) (string, *apierror.Error) {
	switch {
	case l.holder != nil:
		d.metrics.Lookups.WithLabelValues("found").Inc()
		d.stored.Set(id, l.holder.ID)
		return l.holder.ID, nil
	case len(l.silent) == 0 && !l.partial && l.denied != 0:
		d.metrics.Lookups.WithLabelValues("unanswered").Inc()
		return "", &apierror.Error{Status: l.denied, Code: "response_denied", Message: "a node that may have stored this response refuses the request: its key is missing or wrong"}
	case len(l.silent) == 0 && !l.partial:
		d.metrics.Lookups.WithLabelValues("missing").Inc()
		return "", errNoResponse
	}
	d.metrics.Lookups.WithLabelValues("unanswered").Inc()
	if l.job.expired() {
		return "", errDeadline
	}
	return "", &apierror.Error{
		Status: 503, Code: "response_unknown", RetryAfterSeconds: 1,
		Message: "no node that answered has stored this response, but " + l.unasked(),
	}
}

// unasked says who may yet have the response.
func (l *lookup) unasked() string {
	if len(l.silent) == 0 {
		return "some backend has not yet said what it serves"
	}
	slices.Sort(l.silent)
	const named = 3
	who := strings.Join(l.silent[:min(named, len(l.silent))], ", ")
	if n := len(l.silent) - named; n > 0 {
		who += fmt.Sprintf(" and %d more", n)
	}
	return who + " did not answer"
}

// said is what a node says when it is asked for a stored response.
type said uint8

const (
	nothing said = iota
	no
	yes
	denied401 // it does not know the client
	denied403 // the client may not know
)

// inquire asks one node, unless the search is over, and ends the search if the node has it. A bug in that is a node that
// says nothing.
func (d *Dispatcher) inquire(l *lookup, n *nodeState, a *relay.Abort) {
	answer := nothing
	defer func() {
		if p := recover(); p != nil {
			d.log.Error("the search for a stored response failed, this is a bug", "node", n.ID, "panic", p, "stack", string(debug.Stack()))
			d.metrics.Panics.Inc()
		}
		l.take(n, answer)
	}()
	answer = l.question(n, a)
}

// take notes what a node has said.
func (l *lookup) take(n *nodeState, answer said) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.over:
	case answer == yes:
		l.holder = n
		l.end()
	case answer == nothing:
		l.silent = append(l.silent, n.ID)
	case answer == denied401:
		l.denied = http.StatusUnauthorized
	case answer == denied403:
		l.denied = http.StatusForbidden
	}
}

// question sends the request.
func (l *lookup) question(n *nodeState, a *relay.Abort) said {
	deadline := time.Now().Add(lookupNodeTime)
	if l.until.Before(deadline) {
		deadline = l.until
	}
	r := relay.Request{Method: "GET", Path: l.path, Header: l.job.Header, Abort: a, Once: n.holdsThreads()}
	if n.Pool.Target().Authorization == "" {
		r.ForwardAuthorization = l.job.Auth
	}
	ex, err := n.Pool.Send(&r, deadline)
	if err != nil {
		return nothing
	}
	defer ex.Close()
	if err := ex.ReadHead(deadline); err != nil {
		return nothing
	}
	if ex.Status() >= 300 {
		ex.SetReadDeadline(deadline)
		io.CopyN(io.Discard, ex, lookupSkim) // whatever comes of it: the head has said all
	}
	return saidBy(ex.Status(), n.Pool.Target().Authorization == "")
}

// saidBy is what a status says. That a key is missing or wrong is for the client to know, unless the node has one of the
// router's.
func saidBy(status int, clientsKey bool) said {
	switch {
	case status < 300:
		return yes
	case status == http.StatusUnauthorized && clientsKey:
		return denied401
	case status == http.StatusForbidden && clientsKey:
		return denied403
	case status == http.StatusNotImplemented: // an engine without stored responses
		return no
	case status == 401, status == 403, status == 408, status == 429, status >= 500:
		return nothing
	}
	return no
}

// end makes all questions end. It is called with mu held.
func (l *lookup) end() {
	l.over = true
	for i := range l.asking {
		l.asking[i].Cancel()
	}
}

// stop ends the search from outside.
func (l *lookup) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.end()
}
