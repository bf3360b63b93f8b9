package plan

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/affinity"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/trust"
)

// These constants bound a search for the node that stores a response.
const (
	maxSearches    = 64              // searches at once; a further one is refused with 503 and Retry-After
	searchNodes    = 8               // nodes that one search asks at once; the others wait for their turn
	searchNodeTime = 2 * time.Second // limit on one node's answer
	searchTime     = 4 * time.Second // limit on the whole search; a node not yet asked by then counts as silent
	searchSkim     = 16 << 10        // bytes read of an answer; a longer answer's connection is closed
	maxResponseID  = 256             // bytes; no response has a longer id

	// responsesLost is how long a node's health checks must have failed before its stored responses
	// count as lost. Engines keep responses in memory. A configured backend, unlike a node of etcd,
	// never leaves by itself.
	responsesLost = time.Minute
)

var (
	errNodeGone = &apierror.Error{
		Status: 404, Code: "response_node_gone",
		Message: "the node that stored this response has left the fleet, and the response with it",
	}
	errNodeLost = &apierror.Error{
		Status: 404, Code: "response_node_gone",
		Message: "the node that stored this response has not answered for a minute or more, " +
			"and what it stored counts as lost",
	}
	errSearches = &apierror.Error{
		Status: 503, Code: "lookups_full", RetryAfterSeconds: 1,
		Message: "too many stored responses are being searched for on the nodes",
	}
)

// holder returns the node that stores response id. If this router does not remember that node,
// holder asks the nodes of the request's model, or all nodes if the request names none. holder
// skips nodes whose responses are lost. If only one node is possible, holder returns it without a
// question. A principal with a key gets responses only that this router remembers to be his.
func (p *Planner) holder(r *request.Request, id []byte) (node string, err *apierror.Error) {
	snap, now := p.parts.Fleet.Load(), time.Now()
	made, known := p.parts.Stored.Find(id)
	if r.Who.Keyed() && !(known && owns(r.Who, made, snap)) {
		return "", leg.ErrNoResponse
	}
	if known {
		n := snap.Node(made.Node)
		switch {
		case n == nil:
			return "", errNodeGone
		case p.lost(n, now):
			return "", errNodeLost
		}
		return made.Node, nil
	}
	nodes, more := serving(snap), snap.MayCome(now)
	if len(r.Scan.PreviousResponseID) > 0 {
		view, err := leg.Resolve(snap, r.Scan.Model)
		if err != nil {
			return "", err
		}
		nodes = slices.Clone(view.Nodes)
	}
	nodes = slices.DeleteFunc(nodes, func(n *fleet.Node) bool { return p.lost(n, now) })
	switch {
	case len(nodes) == 0:
		return "", leg.ErrNoNode
	case len(nodes) == 1 && !more:
		return nodes[0].ID, nil
	case !isResponseID(id):
		return "", leg.ErrNoResponse
	}
	if p.searches.Add(1) > maxSearches {
		p.searches.Add(-1)
		p.parts.Metrics.Lookups.WithLabelValues("refused").Inc()
		return "", errSearches
	}
	defer p.searches.Add(-1)
	return p.search(r, id, nodes, more)
}

// owns says whether a response belongs to the principal's tenant, and was made by a model that the
// principal may use by one of its names.
func owns(who *trust.Principal, made affinity.Made, snap *fleet.Snapshot) bool {
	if made.Tenant != who.Tenant {
		return false
	}
	m := snap.Model([]byte(made.Model))
	return who.Uses(made.Model) || m != nil && slices.ContainsFunc(m.Aliases, who.Uses)
}

// lost says whether the responses stored by n count as lost.
func (p *Planner) lost(n *fleet.Node, now time.Time) bool {
	return n.Health.Unanswered(now) >= p.lostAfter
}

// serving returns the nodes that answer requests for some model.
func serving(s *fleet.Snapshot) (all []*fleet.Node) {
	for _, n := range s.Nodes {
		if slices.ContainsFunc(s.Models(), func(m *fleet.ModelView) bool { return slices.Contains(m.Nodes, n) }) {
			all = append(all, n)
		}
	}
	return all
}

// isResponseID says whether id is safe as one segment of a path.
func isResponseID(id []byte) bool {
	for i, c := range id {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || c != '_' && c != '-' && c != '.') {
			return false
		}
	}
	return len(id) > 0 && len(id) <= maxResponseID
}

// search is a running search. Each leg of a search asks one node and captures the answer.
type search struct {
	p       *Planner
	request *request.Request
	path    string
	until   time.Time
	partial bool          // further nodes may exist that are unknown yet
	asking  []relay.Abort // one for each node being asked

	mu     sync.Mutex
	over   bool // no further node is asked
	holder string
	silent []string // ids of nodes that did not answer
	denied int      // status with which a node refused the client
}

// search asks nodes for response id. partial says that further nodes may exist. A search does not
// count as load on the nodes, or as evidence about their health.
func (p *Planner) search(r *request.Request, id []byte, nodes []*fleet.Node, partial bool) (string, *apierror.Error) {
	s := &search{
		p: p, request: r, path: "/v1/responses/" + string(id), until: r.Before(time.Now().Add(searchTime)),
		partial: partial, asking: make([]relay.Abort, min(searchNodes, len(nodes))),
	}
	r.Life.Start()
	var next atomic.Int32
	var all sync.WaitGroup
	for i := range s.asking {
		abort := &s.asking[i]
		all.Go(func() {
			for at := int(next.Add(1)) - 1; at < len(nodes); at = int(next.Add(1)) - 1 {
				s.inquire(nodes[at], abort)
			}
		})
	}
	all.Wait()
	if r.Life.Ended() != request.None {
		return "", leg.Ended(r)
	}
	return s.found(id)
}

// found returns the result of the search.
func (s *search) found(id []byte) (string, *apierror.Error) {
	results := s.p.parts.Metrics.Lookups
	switch {
	case s.holder != "":
		results.WithLabelValues("found").Inc()
		s.p.parts.Stored.Set(id, affinity.Made{Node: s.holder, Tenant: trust.TenantOf(s.request.Who)})
		return s.holder, nil
	case len(s.silent) == 0 && !s.partial && s.denied != 0:
		results.WithLabelValues("unanswered").Inc()
		return "", &apierror.Error{
			Status: s.denied, Code: "response_denied",
			Message: "a node that may have stored this response refuses the request: its key is missing or wrong",
		}
	case len(s.silent) == 0 && !s.partial:
		results.WithLabelValues("missing").Inc()
		return "", leg.ErrNoResponse
	}
	results.WithLabelValues("unanswered").Inc()
	if s.request.Expired() {
		return "", leg.ErrDeadline
	}
	return "", &apierror.Error{
		Status: 503, Code: "response_unknown", RetryAfterSeconds: 1,
		Message: "no node that answered has stored this response, but " + s.unasked(),
	}
}

// unasked says which nodes may still have the response.
func (s *search) unasked() string {
	if len(s.silent) == 0 {
		return "some backend has not yet said what it serves"
	}
	slices.Sort(s.silent)
	const named = 3
	who := strings.Join(s.silent[:min(named, len(s.silent))], ", ")
	if n := len(s.silent) - named; n > 0 {
		who += fmt.Sprintf(" and %d more", n)
	}
	return who + " did not answer"
}

// said is a node's answer to the question for a stored response.
type said uint8

const (
	nothing said = iota
	no
	yes
	denied401 // the node does not know the client
	denied403 // the client lacks the permission
)

// inquire asks one node, and ends the search if the node has the response. After the end of the
// search inquire cancels abort and sends nothing. A panic counts as a silent node.
func (s *search) inquire(n *fleet.Node, abort *relay.Abort) {
	told := nothing
	defer func() {
		if p := recover(); p != nil {
			s.p.parts.Metrics.Bug(s.p.parts.Logger, "the search for a stored response on "+n.ID, p)
		}
		s.take(n, told)
	}()
	told = s.question(n, abort)
}

// take records a node's answer.
func (s *search) take(n *fleet.Node, told said) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.over:
	case told == yes:
		s.holder, s.over = n.ID, true
		for i := range s.asking {
			s.asking[i].Cancel()
		}
	case told == nothing:
		s.silent = append(s.silent, n.ID)
	case told == denied401:
		s.denied = http.StatusUnauthorized
	case told == denied403:
		s.denied = http.StatusForbidden
	}
}

// question is one leg of the search: one exchange with one node, whose answer is captured. question
// needs no slot or permit and is not retried, because it costs the node no work.
func (s *search) question(n *fleet.Node, abort *relay.Abort) said {
	until := time.Now().Add(searchNodeTime)
	if s.until.Before(until) {
		until = s.until
	}
	captured := answer.Memory{Limit: searchSkim}
	err := s.p.parts.Legs.Ask(s.request, n, s.path, until, abort, &captured)
	if captured.Status == 0 || err != nil && errors.Is(err, relay.ErrCanceled) {
		return nothing // the status is the complete answer
	}
	return saidBy(captured.Status, n.Pool.Target().Authorization == "")
}

// saidBy returns the meaning of a status. A missing or wrong key is the client's concern, unless
// the router uses its own key for the node.
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
