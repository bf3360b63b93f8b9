package router

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/fleet"
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
// set lasts until the router ends. A model that does not exist can be asked for, and has the
// thresholds that it would have. Its thresholds cannot be set, as a mistyped name would have no
// effect.
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
	snap := r.fleet.Load()
	model, fail := leg.Resolve(snap, []byte(name))
	switch {
	case fail == nil:
		name = model.Name
	case !limits.IsZero():
		if fail.Status == http.StatusNotFound {
			fail = withModels(fail, snap, name)
		}
		writeError(w, fail)
		return
	}
	set := r.busy.Set(name, limits)
	if !limits.IsZero() {
		r.log.Info("busy thresholds set", "model", name, "client", req.RemoteAddr)
	}
	writeJSON(w, http.StatusOK, busy.DocumentFor(name, set))
}

// withModels returns the error of a model that does not exist, with the models that do.
func withModels(fail *apierror.Error, s *fleet.Snapshot, name string) *apierror.Error {
	const most = 10
	var names []string
	for _, m := range s.Models() {
		names = append(names, m.Name)
	}
	named := *fail
	if named.Message += "; there are " + strings.Join(names[:min(len(names), most)], ", "); len(names) > most {
		named.Message += fmt.Sprintf(" and %d more", len(names)-most)
	}
	if near := config.Nearest(name, names); near != "" {
		named.Message += "; did you mean " + near + "?"
	}
	if len(names) == 0 {
		named.Message = fail.Message + "; no model does now"
	}
	return &named
}

// removeThresholds removes the thresholds that were set for the model of the query, and answers
// with the model's thresholds by the policy.
func (r *Router) removeThresholds(w http.ResponseWriter, req *http.Request) {
	if refused := mayChange(req); refused != nil {
		writeError(w, refused)
		return
	}
	names := req.URL.Query()["model"]
	if len(names) == 0 || names[0] == "" {
		writeError(w, &apierror.Error{Status: 400, Code: scan.CodeMissing, Param: "model",
			Message: "name the model in the query, as in DELETE /busy_threshold?model=NAME"})
		return
	}
	if len(names) > 1 {
		writeError(w, &apierror.Error{Status: 400, Code: scan.CodeValue, Param: "model",
			Message: "the query names several models; name one at a time, as in DELETE /busy_threshold?model=NAME"})
		return
	}
	snap := r.fleet.Load()
	name := names[0]
	model, fail := leg.Resolve(snap, []byte(name))
	switch {
	case fail == nil:
		name = model.Name
	case r.busy.Given(name).IsZero(): // otherwise they are those of a model that is gone
		if fail.Status == http.StatusNotFound {
			fail = withModels(fail, snap, name)
		}
		writeError(w, fail)
		return
	}
	r.log.Info("busy thresholds removed", "model", name, "client", req.RemoteAddr)
	writeJSON(w, http.StatusOK, busy.DocumentFor(name, r.busy.Unset(name)))
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
