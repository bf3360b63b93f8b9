package leg

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/nvext"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/trust"
)

// unavailable is an error that may disappear at another try.
func unavailable(code, message string) *apierror.Error {
	return &apierror.Error{Status: 503, Code: code, Message: message, RetryAfterSeconds: 1}
}

// These are the router's own errors after a body has been read.
var (
	ErrNoNode  = unavailable("no_eligible_node", "no node that serves this model can take requests now")
	errAllBusy = unavailable("all_nodes_busy",
		"every node that serves this model is at its limit or on trial after a failure")
	errNotPinned = &apierror.Error{
		Status: 400, Code: "node_missing", Param: "x-cgn-node",
		Message: "the routing policy of this model is direct: name a node in x-cgn-node or nvext.backend_instance_id",
	}
	errGlobalFull = &apierror.Error{
		Status: 429, Code: "router_full", RetryAfterSeconds: admission.RetryAfterSeconds,
		Message: "too many requests in flight in this router; router.admission.global bounds them",
	}
	ErrDeadline = &apierror.Error{Status: 504, Code: "deadline_exceeded", Message: "no answer came within the deadline"}
	errBackend  = unavailable("backend_failed", "no node answered")
	errShutdown = unavailable("shutting_down", "the router is shutting down")
	errRevoked  = &apierror.Error{
		Status: 401, Type: "invalid_request_error", Code: "key_revoked", Message: "the API key has been revoked",
	}
	errTooOld = &apierror.Error{
		Status: 400, Code: "http_version",
		Message: "the answer has no length and is too long to be kept for an HTTP/1.0 client; use HTTP/1.1",
	}
	errTooLong = &apierror.Error{
		Status: 502, Code: "answer_too_long",
		Message: "a node's answer is longer than what the router keeps of one",
	}
	errBody = &apierror.Error{
		Status: 400, Code: "body_not_editable",
		Message: "the request's body cannot be changed as its plan needs; send JSON without a form",
	}
	errNotKnownYet = unavailable("model_not_known_yet",
		"no node is known to serve this model, and some backend has not yet said what it serves; "+
			"GET /readyz at the router's admin port says which and why")
	errModelMissing = &apierror.Error{
		Status: 400, Code: scan.CodeMissing, Param: "model",
		Message: "`model` is missing; this router serves several models, name one of them",
	}
	ErrNoResponse = &apierror.Error{
		Status: 404, Code: "response_not_found",
		Message: "no response with this id is stored here",
	}
)

// errModelFull returns the error of a request beyond the cap that a setting sets.
func errModelFull(setting string) *apierror.Error {
	return &apierror.Error{
		Status: 503, Code: "queue_full", RetryAfterSeconds: admission.RetryAfterSeconds,
		Message: "too many requests in flight for this model; " + setting + " bounds them",
	}
}

// errPinned returns the error for a named node that serves the model and takes no requests now. by
// is the field or header that names the node, and why the reason.
func errPinned(node, by, why string) *apierror.Error {
	return unavailable("pinned_node_unavailable",
		"the node "+shortened(node)+", named in "+by+", takes no requests now: "+why)
}

// errNoSuchNode returns the error for a named node that does not serve the model. nodes are the
// nodes that do.
func errNoSuchNode(node, by string, nodes []string) *apierror.Error {
	return &apierror.Error{
		Status: 404, Code: "node_not_found", Param: by,
		Message: "the node " + shortened(node) + ", named in " + by + ", does not serve this model" + theseDo(nodes),
	}
}

// errPrefillNode returns the error for a named node that gets no requests for the model, being one
// of its prefill nodes. why is the reason, and nodes are the nodes that get requests.
func errPrefillNode(node, by, why string, nodes []string) *apierror.Error {
	return &apierror.Error{
		Status: 404, Code: "node_not_found", Param: by,
		Message: "the node " + shortened(node) + ", named in " + by + ", does not answer requests for this model: " +
			why + theseDo(nodes),
	}
}

// errNoPrefill returns the error for a node that a client names to compute the prompt, and that
// computes no prompts for others. pool has the nodes that do.
func errNoPrefill(named nvext.Worker, pool *pool) *apierror.Error {
	var nodes []string
	for m := range pool.each {
		nodes = append(nodes, m.node.ID)
	}
	return &apierror.Error{
		Status: 404, Code: "node_not_found", Param: named.By,
		Message: "the node " + shortened(named.ID) + ", named in " + named.By + ", computes no prompts for other " +
			"nodes of this model" + theseDo(nodes),
	}
}

func theseDo(nodes []string) string {
	if len(nodes) == 0 {
		return ""
	}
	return "; these do: " + listed(nodes)
}

// shortened returns a client's name of a node for an error.
func shortened(name string) string {
	const longest = 64 // bytes
	if len(name) > longest {
		return strconv.Quote(name[:longest]) + "..."
	}
	return strconv.Quote(name)
}

// errAllowed returns the error for a list of workers of which none can answer. field is the field
// or header with the list. known says that one of them serves the model.
func errAllowed(field string, known bool) *apierror.Error {
	if known {
		return unavailable("no_eligible_node",
			"no node in "+field+" that serves this model can take requests now")
	}
	return &apierror.Error{
		Status: 404, Code: "node_not_found", Param: field, Message: "no node in " + field + " serves this model",
	}
}

// errNotAllowed returns the error for a named node that the client's own list of workers leaves
// out. by is the field or header that names the node, and list the one with the list.
func errNotAllowed(by, list string) *apierror.Error {
	return &apierror.Error{
		Status: 400, Code: scan.CodeValue, Param: list,
		Message: list + " does not have the node named in " + by + "; add it, or send one of the two",
	}
}

// ErrFleetUnknown is the error of a request that needs a node while etcd has never answered.
var ErrFleetUnknown = unavailable("fleet_not_known_yet", "the fleet is not known yet: etcd has not been reached")

// ErrClientLeft is returned when the client has closed its connection.
var ErrClientLeft = &apierror.Error{Status: 499, Code: "client_left", Message: "the client closed its connection"}

// Ended returns the error of a request that was ended from outside.
func Ended(r *request.Request) *apierror.Error {
	switch r.Life.Ended() {
	case request.Shutdown:
		return errShutdown
	case request.Revoked:
		return errRevoked
	}
	return ErrClientLeft
}

// Resolve finds the model with the given name or alias in s. Without a name Resolve returns the
// only model of s. Resolve's error fits a request for an unknown model.
func Resolve(s *fleet.Snapshot, name []byte) (view *fleet.ModelView, err *apierror.Error) {
	if len(name) == 0 {
		view = s.Sole()
	} else {
		view = s.Model(name)
	}
	if view == nil {
		return nil, UnknownModel(s, name)
	}
	return view, nil
}

// ResolveFor is Resolve for a principal. A model that it may not use is unknown to it. A name that
// it may use gives it the model behind the name.
func ResolveFor(who *trust.Principal, s *fleet.Snapshot, name []byte) (*fleet.ModelView, *apierror.Error) {
	view, err := Resolve(s, name)
	if err == nil && !who.Uses(view.Name) && !who.Uses(string(name)) {
		return nil, UnknownModel(s, name)
	}
	return view, err
}

// Served finds the model with the given name or alias in s. Served's error fits a request for a
// model that is unknown, or that no node serves now.
func Served(s *fleet.Snapshot, name []byte) (*fleet.ModelView, *apierror.Error) {
	view := s.Model(name)
	switch {
	case view == nil:
		return nil, UnknownModel(s, name)
	case len(view.Nodes) == 0:
		return nil, ErrNoNode
	}
	return view, nil
}

// UnknownModel returns the error for an unknown model. An unknown model is not the client's mistake
// while a backend may still name the model.
func UnknownModel(s *fleet.Snapshot, name []byte) *apierror.Error {
	switch {
	case s.Unheard():
		return ErrFleetUnknown
	case (len(name) > 0 || len(s.Models()) == 0) && s.MayCome(time.Now()):
		return errNotKnownYet
	case len(name) == 0:
		return errModelMissing
	}
	const longest = 256 // bytes of a name in an error
	return apierror.ModelNotFound(name[:min(len(name), longest)])
}

// errHolder returns the error for a stored response whose node cannot answer. why is the reason.
func errHolder(node, why string) *apierror.Error {
	return unavailable("response_node_unavailable", "the node that stored this response ("+node+") "+why)
}

// errOverload returns the error of a request while every node that could take it is busy by its
// thresholds. Status 529 has the members that NVIDIA Dynamo gives it.
func errOverload(status int) *apierror.Error {
	e := unavailable("overloaded", "every node that could take this request is busy; try again later")
	if status == statusOverloaded {
		e.Status, e.Type, e.NumericCode = status, "Overloaded", true
	}
	return e
}

// statusOverloaded is no status of HTTP itself. Anthropic and Dynamo use it.
const statusOverloaded = 529

// errNoAPI returns the error of a request for an endpoint that the model's engines lack. The status
// is that of an unknown endpoint. Clients do not try such a request again.
func errNoAPI(path string, engines []string) *apierror.Error {
	return &apierror.Error{
		Status: 404, Code: "unsupported_api",
		Message: path + " is not served for this model: its engines (" + strings.Join(engines, ", ") + ") lack it",
	}
}

// These fields of a request restrict its nodes.
const (
	labelsField  = "nvext.routing_constraints.required_taints"
	expertsField = "nvext.router.moe_query"
)

// errLabels returns the error of a request whose required labels no node in service has. among says
// which nodes the request leaves.
func errLabels(required []string, among string) *apierror.Error {
	e := unavailable("no_eligible_node", "no node with all labels of "+labelsField+" ("+listed(required)+
		") can take requests now"+among)
	e.Param = labelsField
	return e
}

// errExperts returns the error of a request whose experts no node in service hosts all. among says
// which nodes the request leaves.
func errExperts(experts []string, among string) *apierror.Error {
	e := unavailable("no_eligible_node", "no node that hosts all experts of "+expertsField+" ("+
		listed(experts)+") can take requests now"+among+"; with fallback_to_unlabeled true other nodes may answer")
	e.Param = expertsField
	return e
}

// listed lists the first of the names.
func listed(names []string) string {
	const most = 16
	if rest := len(names) - most; rest > 0 {
		return strings.Join(names[:most], ", ") + " and " + strconv.Itoa(rest) + " more"
	}
	return strings.Join(names, ", ")
}

// holderOut returns errHolder for the bound node that the pick refused.
func (l *Leg) holderOut(now time.Time) *apierror.Error {
	for _, n := range l.pool.members {
		if n.node.ID != l.Node {
			continue
		}
		if ok, why := n.node.Eligible(now); !ok {
			return errHolder(n.node.ID, "takes no requests now: "+why)
		}
		return errHolder(n.node.ID, "is at its limit")
	}
	return ErrNoResponse // the node now serves other models
}

// Failure returns the error that ends a begun stream that err has broken. events is the number of
// delivered events.
func (d *Dispatcher) Failure(r *request.Request, err error, events int64) *apierror.Error {
	e := &apierror.Error{
		Status: 502, Code: "backend_failed", Sequence: events,
		Message: "the backend failed before the stream was complete",
	}
	cause, known := errors.AsType[*relay.Error](err)
	own, later := errors.AsType[*apierror.Error](err) // error of a later leg
	switch timeout := known && cause.Kind == relay.KindTimeout; {
	case r.Life.Ended() == request.Shutdown:
		e.Status, e.Code, e.Message = 503, "shutting_down", "the router is shutting down and ended the stream"
	case r.Life.Ended() == request.Revoked:
		e.Status, e.Type, e.Code, e.Message = errRevoked.Status, errRevoked.Type, errRevoked.Code, errRevoked.Message
	case later:
		e.Status, e.Code, e.Message = own.Status, own.Code, own.Message
	case timeout && r.Expired():
		e.Status, e.Code, e.Message = 504, "deadline_exceeded", "the stream was not complete within the deadline"
	case timeout:
		e.Status, e.Code = 504, "backend_timeout"
		e.Message = "the backend stopped sending before the stream was complete"
	}
	d.metrics.StreamErrors.WithLabelValues(e.Code).Inc()
	return e
}
