package dispatch

import (
	"errors"
	"slices"
	"time"

	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/holdings"
)

// The errors that the router makes itself once a body has been read.
var (
	errNoNode       = &apierror.Error{Status: 503, Code: "no_eligible_node", Message: "no node that serves this model can take requests now", RetryAfterSeconds: 1}
	errAllBusy      = &apierror.Error{Status: 503, Code: "all_nodes_busy", Message: "every node that serves this model is at its limit or on trial after a failure", RetryAfterSeconds: 1}
	errPinnedNode   = &apierror.Error{Status: 404, Code: "node_not_found", Param: "x-cgn-node", Message: "the node named in x-cgn-node does not serve this model"}
	errModelFull    = &apierror.Error{Status: 503, Code: "queue_full", Message: "too many requests in flight for this model", RetryAfterSeconds: admission.RetryAfterSeconds}
	errGlobalFull   = &apierror.Error{Status: 429, Code: "router_full", Message: "too many requests in flight in this router", RetryAfterSeconds: admission.RetryAfterSeconds}
	errDeadline     = &apierror.Error{Status: 504, Code: "deadline_exceeded", Message: "no answer came within the deadline"}
	errBackend      = &apierror.Error{Status: 503, Code: "backend_failed", Message: "no node answered", RetryAfterSeconds: 1}
	errShutdown     = &apierror.Error{Status: 503, Code: "shutting_down", Message: "the router is shutting down", RetryAfterSeconds: 1}
	errTooOld       = &apierror.Error{Status: 400, Code: "http_version", Message: "the answer has no length and is too long to be kept for an HTTP/1.0 client; use HTTP/1.1"}
	errNotKnownYet  = &apierror.Error{Status: 503, Code: "model_not_known_yet", Message: "no node is known to serve this model, and some backend has not yet said what it serves", RetryAfterSeconds: 1}
	errModelMissing = &apierror.Error{Status: 400, Param: "model", Message: "`model` is missing; this router serves several models, name one of them"}
)

// ErrFleetUnknown is the error for whatever needs a node while none is known, because etcd has never answered.
var ErrFleetUnknown = &apierror.Error{Status: 503, Code: "fleet_not_known_yet", Message: "the fleet is not known yet: etcd has not been reached", RetryAfterSeconds: 1}

// ErrClientLeft is what Do returns when there is nobody left to answer.
var ErrClientLeft = &apierror.Error{Status: 499, Code: "client_left", Message: "the client closed its connection"}

// Do finds the node that answers the job and waits for the first sign of its answer: the
// head and, for a stream, the first body event. It returns nil when there is an answer to
// relay, an engine's own error among them, or the error that the router gives itself.
// Finish must follow in either case.
func (d *Dispatcher) Do(j *Job) *apierror.Error {
	d.budget.Request()
	if err := d.admit(j); err != nil {
		return err
	}
	d.match(j)
	j.spare = d.options.MaxNodes
	at, err := d.choose(j, j.Received)
	d.metrics.Pick.Observe(time.Since(j.Received).Seconds())
	if err != nil {
		return err
	}
	j.pick()
	for {
		d.promote(j, at)
		v := d.try(j, at)
		if v == answered {
			j.settleFailed()
			j.drop(j.kept)
			return nil
		}
		next, ok := d.another(j, v)
		if !ok {
			return d.giveIn(j, v)
		}
		at = next
	}
}

// Forward sends the job to one node, whatever its state, because only that node can know
// what it asks for. Otherwise it is Do.
func (d *Dispatcher) Forward(j *Job, node string) *apierror.Error {
	d.budget.Request()
	at := d.current().place(j, node)
	if at < 0 {
		return errHolder(node, "serves no model now")
	}
	if err := j.enter(j.model.nodes[at]); err != nil {
		return err
	}
	j.Stored = true
	j.matched = slices.Grow(j.matched[:0], at+1)[:at+1]
	j.matched[at] = 0
	j.coming = slices.Grow(j.coming[:0], at+1)[:at+1]
	j.coming[at] = 0
	j.reach = slices.Grow(j.reach[:0], at+1)[:at+1]
	j.reach[at] = holdings.Reach{}
	j.model.nodes[at].AcquireAlways()
	j.pick()
	v := d.try(j, at)
	if v == answered {
		j.settleFailed()
		return nil
	}
	return d.giveIn(j, v)
}

// admit resolves the model and refuses at once what no pool of its nodes has room for.
func (d *Dispatcher) admit(j *Job) *apierror.Error {
	if err := d.resolve(j); err != nil {
		return err
	}
	if d.gate.Full() {
		return errGlobalFull
	}
	for _, n := range j.model.nodes {
		if !n.gate.Full() {
			return nil
		}
	}
	if len(j.model.nodes) > 0 {
		return errModelFull
	}
	return nil
}

func (d *Dispatcher) resolve(j *Job) *apierror.Error {
	t := d.current()
	var view *fleet.ModelView
	if len(j.Scan.Model) == 0 {
		view = t.snap.Sole()
	} else {
		view = t.snap.Model(j.Scan.Model)
	}
	if view == nil {
		return unknownModel(t.snap, j.Scan.Model)
	}
	j.model = t.models[view.Name]
	return nil
}

// enter takes the request's permit for the pool of n, or moves it there from another node's.
func (j *Job) enter(n *member) *apierror.Error {
	var err error
	if j.permit.Out() {
		err = j.permit.Move(n.gate)
	} else {
		j.permit, err = n.gate.Admit()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, admission.ErrGlobalFull):
		return errGlobalFull
	}
	return errModelFull
}

// fits tells whether the pool of n has room for the request, or counts it already.
func (j *Job) fits(n *member) bool { return !n.gate.Full() || j.permit.On(n.gate) }

// Served finds the model of that name or alias in s. The error is that of a request for a model that is not known, or
// that no node serves now.
func Served(s *fleet.Snapshot, name []byte) (*fleet.ModelView, *apierror.Error) {
	view := s.Model(name)
	switch {
	case view == nil:
		return nil, unknownModel(s, name)
	case len(view.Nodes) == 0:
		return nil, errNoNode
	}
	return view, nil
}

// unknownModel is not the client's mistake while a backend may still say that it serves the model.
func unknownModel(s *fleet.Snapshot, name []byte) *apierror.Error {
	switch {
	case s.Unheard():
		return ErrFleetUnknown
	case (len(name) > 0 || len(s.Models()) == 0) && s.MayCome(time.Now()):
		return errNotKnownYet
	case len(name) == 0:
		return errModelMissing
	}
	const longest = 256 // of a name that is echoed
	return apierror.ModelNotFound(name[:min(len(name), longest)])
}

// another picks the node to ask after v, if one may be asked.
func (d *Dispatcher) another(j *Job, v verdict) (at int, ok bool) {
	if !j.mayGoOn(v) {
		return 0, false
	}
	if !j.paid && !d.budget.Allow() {
		d.metrics.RetriesRefused.Inc()
		return 0, false
	}
	j.paid = false
	at, err := d.choose(j, time.Now())
	if err != nil {
		return 0, false
	}
	j.spare--
	d.metrics.Retries.WithLabelValues(v.String()).Inc()
	return at, true
}

func (j *Job) expired() bool {
	return !j.Deadline.IsZero() && !time.Now().Before(j.Deadline)
}

// giveIn passes on the last answer that an engine gave, or else says what happened. The error of a node that is not
// well is not passed on where the others are full: ours tells the client that it is worth another try, and when.
func (d *Dispatcher) giveIn(j *Job, v verdict) *apierror.Error {
	j.settleFailed()
	if (v == failed500 || v == overloaded) && j.crowded(time.Now()) {
		return errAllBusy
	}
	if v != abandoned && v != tooOld && j.kept != nil {
		return d.fallBack(j)
	}
	switch {
	case v == abandoned:
		return j.gone()
	case v == tooOld:
		return errTooOld
	case v == late || j.expired():
		return errDeadline
	case j.Stored:
		return errHolder(j.Asked(), "does not answer")
	}
	return d.unanswered(j)
}
