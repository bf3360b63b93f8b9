package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/accesslog"
	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/logfile"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/trust"
)

// ReopenLogs opens the access log and the audit log anew after a rotation. On an error the old
// files stay in use. ReopenLogs waits 2 s at most for each log whose write hangs.
func (r *Router) ReopenLogs() error {
	var errs []error
	if err := r.audit.Reopen(); err != nil {
		errs = append(errs, fmt.Errorf("audit.log: %w", err))
	}
	if r.records.access != nil {
		if err := r.records.access.Reopen(); err != nil {
			errs = append(errs, fmt.Errorf("log.access: %w", err))
		}
	}
	logfile.Advise(r.log, r.config.Logs()...)
	return errors.Join(errs...)
}

// Logs returns the logs of the settings about requests and acts, which need not exist.
func (c *Config) Logs() []logfile.Place {
	return []logfile.Place{
		c.Audit.File(), {Setting: "log.access", File: c.Log.Access, Mode: accesslog.FileMode},
	}
}

// acted records an act of nobody who asks the admin port: of a signal, of a file or of etcd.
func (r *Router) acted(by, action, object string, err error) {
	outcome := "ok"
	if err != nil {
		outcome = err.Error()
	}
	r.audit.Act(audit.Act{By: by, Action: action, Object: object, Outcome: outcome})
}

// started records the router's start.
func (r *Router) started() {
	r.acted("", "start", "version "+buildinfo.String()+", "+r.ports.serving.Addr().String(), nil)
}

// cordoned records the cordon of a node; empty: it was lifted.
func (r *Router) cordoned(node, what string) {
	action := "cordon"
	if what == "" {
		action = "uncordon"
	}
	r.acted("etcd", action, strings.TrimSpace("node "+node+" "+what), nil)
}

// stored records a change of a model's settings in etcd.
func (r *Router) stored(model string, deleted bool) {
	action := "model set"
	if deleted {
		action = "model deleted"
	}
	r.acted("etcd", action, model, nil)
}

// keyChanged records a change of an API key.
func (r *Router) keyChanged(c keys.Change) {
	r.acted(r.callers.keys.Source(), "key "+c.What, c.ID+" of tenant "+c.Tenant, nil)
}

// readsOnly are the routes of the admin port that change nothing with another method than GET.
var readsOnly = []string{"POST /debug/route", "/", "/v1/"}

// changes says what the admin port's requests change.
func changes() adminport.Changes {
	return adminport.Changes{
		Reads: readsOnly, MaxBody: maxThresholds,
		Object: func(req *http.Request, body []byte) string { return objectOf(req.URL.Query().Get("model"), body) },
	}
}

// auditedThresholds answers a request to /busy_threshold at the serving port, and records one that
// may change something.
func (r *Router) auditedThresholds(ctx *fasthttp.RequestCtx, who *trust.Principal) (any, *apierror.Error) {
	doc, fail := r.thresholds.serving(ctx, who)
	method := string(ctx.Method())
	if r.audit != nil && method != http.MethodGet && method != http.MethodHead {
		outcome := http.StatusOK
		if fail != nil {
			outcome = fail.Status
		}
		r.audit.Act(audit.Act{
			Action: method + " /busy_threshold", By: who.ID, Client: ctx.RemoteAddr().String(),
			Object: objectOf(string(ctx.QueryArgs().Peek("model")), ctx.Request.Body()), Outcome: strconv.Itoa(outcome),
		})
	}
	return doc, fail
}

// recorded are the members of bodies that the audit log has. Others, such as a path, may have a
// password.
var recorded = []string{
	"active_decode_blocks_threshold", "active_prefill_tokens_threshold", "active_prefill_tokens_threshold_frac",
	"adapter", "model", "seconds",
}

// objectOf says what a request changes: the model of its query, and the recorded members of its
// body.
func objectOf(model string, body []byte) string {
	var parts []string
	if model != "" {
		parts = append(parts, "model="+model)
	}
	var members map[string]json.RawMessage
	if len(body) > maxThresholds || len(body) > 0 && json.Unmarshal(body, &members) != nil {
		return strings.Join(append(parts, "and a body that was not read"), " ")
	}
	for _, name := range recorded {
		value := members[name]
		if value == nil || value[0] == '[' || value[0] == '{' || string(value) == "null" {
			continue
		}
		var v any
		_ = json.Unmarshal(value, &v) // it was read before
		parts = append(parts, fmt.Sprint(name, "=", v))
	}
	return strings.Join(parts, " ")
}
