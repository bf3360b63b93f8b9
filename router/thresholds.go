package router

import (
	"errors"
	"io"
	"net/http"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/trust"
)

// maxThresholds bounds the body of a request to /busy_threshold, in bytes.
const maxThresholds = 64 << 10

// listThresholds lists the models that have thresholds, sorted by name.
func (r *Router) listThresholds(w http.ResponseWriter, _ *http.Request) {
	all := []busy.Document{}
	for _, m := range r.fleet.Load().Models() {
		if t := r.busy.Of(m.Name); t != nil {
			all = append(all, busy.DocumentFor(m.Name, *t))
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"thresholds": all})
}

// setThresholds sets the thresholds in the body for the model that it names, and answers with the
// model's thresholds. A threshold that the body leaves out, or that is null there, stays. What is
// set lasts until the router ends.
func (r *Router) setThresholds(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxThresholds))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		writeError(w, &apierror.Error{Status: 413, Code: "body_too_large", Message: "the body is larger than 64 KiB"})
		return
	}
	if err != nil {
		return // the client is gone
	}
	name, limits, err := busy.ParseFor(body)
	if err != nil {
		e := &apierror.Error{Status: 400, Code: scan.CodeValue, Message: err.Error()}
		if errors.Is(err, busy.ErrNotJSON) {
			e.Code = scan.CodeJSON
		}
		if field, ok := errors.AsType[*busy.FieldError](err); ok {
			e.Param = field.Field
		}
		writeError(w, e)
		return
	}
	if refused := mayChange(req); !limits.IsZero() && refused != nil {
		writeError(w, refused)
		return
	}
	model, fail := leg.Resolve(r.fleet.Load(), []byte(name))
	if fail != nil {
		writeError(w, fail)
		return
	}
	set := r.busy.Set(model.Name, limits)
	if !limits.IsZero() {
		r.log.Info("busy thresholds set", "model", model.Name, "client", req.RemoteAddr)
	}
	writeJSON(w, http.StatusOK, busy.DocumentFor(model.Name, set))
}

// removeThresholds removes the thresholds that were set for the model of the query, and answers
// with the model's thresholds by the policy.
func (r *Router) removeThresholds(w http.ResponseWriter, req *http.Request) {
	if refused := mayChange(req); refused != nil {
		writeError(w, refused)
		return
	}
	name := req.URL.Query().Get("model")
	if name == "" {
		writeError(w, &apierror.Error{Status: 400, Code: scan.CodeMissing, Param: "model",
			Message: "name the model in the query, as in DELETE /busy_threshold?model=NAME"})
		return
	}
	model, fail := leg.Resolve(r.fleet.Load(), []byte(name))
	if fail != nil {
		writeError(w, fail)
		return
	}
	r.log.Info("busy thresholds removed", "model", model.Name, "client", req.RemoteAddr)
	writeJSON(w, http.StatusOK, busy.DocumentFor(model.Name, r.busy.Unset(model.Name)))
}

// crossOrigin refuses requests that the page of another site has made a browser send.
var crossOrigin = http.NewCrossOriginProtection()

// mayChange returns the error of a client that must not change what the router does. The admin port
// asks for no password or certificate, so only clients on the router's own host may.
func mayChange(req *http.Request) *apierror.Error {
	switch {
	case !trust.OfHost(trust.Peer(req)):
		return &apierror.Error{Status: 403, Code: "not_local", Message: "the admin port asks for no password or " +
			"certificate, so it takes changes only over loopback or its Unix socket; send this on the router's host, to " +
			"127.0.0.1 or to the socket of router.admin"}
	case crossOrigin.Check(req) != nil:
		return &apierror.Error{Status: 403, Code: "cross_origin", Message: "the page of another site sent this; " +
			"the admin port takes changes from programs only"}
	}
	return nil
}
