package router

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/trust"
)

// thresholds answers requests to /busy_threshold, at the admin port and, with API keys, at the
// serving port.
type thresholds struct {
	fleet *fleet.Fleet
	busy  *busy.Settings
	log   *slog.Logger
}

// asker is a client of /busy_threshold.
type asker struct {
	who    *trust.Principal // models that it may not use do not exist for it; nil: it may use all
	client string           // its address
	may    mayChange
}

// mayChange says whether a client may change thresholds, and names the client for the log.
type mayChange func() (by string, fail *apierror.Error)

// maxThresholds bounds the body of a request to /busy_threshold, in bytes.
const maxThresholds = 64 << 10

// answer answers a request. names are the models that its query names.
func (t *thresholds) answer(method string, names []string, body []byte, a asker) (any, *apierror.Error) {
	switch method {
	case http.MethodPost:
		return t.set(body, a)
	case http.MethodDelete:
		return t.remove(names, a)
	}
	return t.list(a.who), nil
}

// admin answers a request to the admin port.
func (t *thresholds) admin(rights *adminRights) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(io.LimitReader(req.Body, maxThresholds+1))
		if err != nil {
			return // the client is gone
		}
		doc, fail := t.answer(req.Method, req.URL.Query()["model"], body, asker{
			client: req.RemoteAddr, may: func() (string, *apierror.Error) { return rights.mayChange(req) },
		})
		if fail != nil {
			writeError(w, fail)
			return
		}
		writeJSON(w, http.StatusOK, doc)
	}
}

// serving answers a request to the serving port, whose client has the scope route.pin.
func (t *thresholds) serving(ctx *fasthttp.RequestCtx, who *trust.Principal) (any, *apierror.Error) {
	var names []string
	for _, name := range ctx.QueryArgs().PeekMulti("model") {
		names = append(names, string(name))
	}
	return t.answer(string(ctx.Method()), names, ctx.Request.Body(), asker{
		who: who, client: ctx.RemoteAddr().String(),
		may: func() (string, *apierror.Error) { return who.ID, nil },
	})
}

// list returns the models that have thresholds, sorted by name.
func (t *thresholds) list(who *trust.Principal) any {
	all := []busy.Document{}
	for _, m := range t.fleet.Load().Models() {
		limits := t.busy.Of(m.Name)
		if limits != nil && (who.Uses(m.Name) || slices.ContainsFunc(m.Aliases, who.Uses)) {
			all = append(all, busy.DocumentFor(m.Name, *limits))
		}
	}
	return map[string]any{"thresholds": all}
}

// set sets the thresholds in the body for the model that it names, and returns the model's
// thresholds. A threshold that the body leaves out, or that is null there, stays. What is set lasts
// until the router ends. A model that does not exist can be asked for, and has the thresholds that
// it would have. Its thresholds cannot be set, as a mistyped name would have no effect.
func (t *thresholds) set(body []byte, a asker) (any, *apierror.Error) {
	if len(body) > maxThresholds {
		return nil, &apierror.Error{Status: 413, Code: "body_too_large", Message: "the body is larger than 64 KiB"}
	}
	name, limits, err := busy.ParseFor(body)
	if err != nil {
		return nil, thresholdsProblem(err)
	}
	by, change := "", !limits.IsZero()
	if change {
		var refused *apierror.Error
		if by, refused = a.may(); refused != nil {
			return nil, refused
		}
	}
	snap := t.fleet.Load()
	model, fail := leg.ResolveFor(a.who, snap, []byte(name))
	switch {
	case fail == nil:
		name = model.Name
	case change || !a.who.Uses(name):
		return nil, withModels(fail, snap, name, a.who)
	}
	set := t.busy.Set(name, limits)
	if change {
		t.log.Info("busy thresholds set", "model", name, "client", a.client, "by", by)
	}
	return busy.DocumentFor(name, set), nil
}

// thresholdsProblem returns the error of a body that cannot be read.
func thresholdsProblem(err error) *apierror.Error {
	e := &apierror.Error{Status: 400, Code: scan.CodeValue, Message: err.Error()}
	if errors.Is(err, busy.ErrNotJSON) {
		e.Code = scan.CodeJSON
	}
	if field, ok := errors.AsType[*busy.FieldError](err); ok {
		e.Param = field.Field
	}
	return e
}

// withModels returns the error of a model that does not exist, with the models that do.
func withModels(fail *apierror.Error, s *fleet.Snapshot, name string, who *trust.Principal) *apierror.Error {
	if fail.Status != http.StatusNotFound {
		return fail
	}
	const most = 10
	var names []string
	for _, m := range s.Models() {
		if who.Uses(m.Name) {
			names = append(names, m.Name)
		}
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

// remove removes the thresholds that were set for the model of the query, and returns the model's
// thresholds by the policy.
func (t *thresholds) remove(names []string, a asker) (any, *apierror.Error) {
	by, refused := a.may()
	if refused != nil {
		return nil, refused
	}
	if len(names) == 0 || names[0] == "" {
		return nil, &apierror.Error{Status: 400, Code: scan.CodeMissing, Param: "model",
			Message: "name the model in the query, as in DELETE /busy_threshold?model=NAME"}
	}
	if len(names) > 1 {
		return nil, &apierror.Error{Status: 400, Code: scan.CodeValue, Param: "model",
			Message: "the query names several models; name one at a time, as in DELETE /busy_threshold?model=NAME"}
	}
	snap := t.fleet.Load()
	name := names[0]
	model, fail := leg.ResolveFor(a.who, snap, []byte(name))
	switch {
	case fail == nil:
		name = model.Name
	case t.busy.Given(name).IsZero() || !a.who.Uses(name): // otherwise they are those of a model that is gone
		return nil, withModels(fail, snap, name, a.who)
	}
	t.log.Info("busy thresholds removed", "model", name, "client", a.client, "by", by)
	return busy.DocumentFor(name, t.busy.Unset(name)), nil
}
