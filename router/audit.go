package router

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/accesslog"
	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/logfile"
	"github.com/cognitora/dataplane/internal/rights"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/trust"
)

// AuditConfig sets the audit log.
type AuditConfig struct {
	Log      string `toml:"log" empty:"refused" flag:"audit-log" help:"file of the audit log, which only its owner may read; -: standard output; syslog: the host's syslog (/dev/log, facility authpriv); empty: no audit log"`
	Refusals int    `toml:"refusals_per_second" default:"10" help:"most lines a second about refused identities with one reason; the next line tells how many were left out"`
}

// open opens the audit log. The result is nil without one.
func (a *AuditConfig) open(r *Router) (*audit.Log, error) {
	if a.Log == "" {
		return nil, nil
	}
	outage := logfile.Outage{Log: r.log, Name: "audit log"}
	log, err := audit.New(audit.Options{
		To: a.Log, Program: "cgn-router", RefusalsPerSecond: a.Refusals, Suppressed: r.metrics.Audit.Suppressed.Inc,
		Lost: func(lines int, err error) {
			r.metrics.Audit.Lost.Add(float64(lines))
			if err != nil {
				outage.Failed(err, lines)
			}
		},
		Worked: outage.Worked,
	})
	return log, auditProblem(err)
}

// examine checks that the audit log can be written.
func (a *AuditConfig) examine() error {
	if a.Log == "" || a.Log == "-" || a.Log == "syslog" {
		return nil
	}
	return auditProblem(rights.Appendable(a.Log))
}

func auditProblem(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("audit.log: %w; name a file in a directory that the router can write to (--audit-log FILE), "+
		"or - for standard output, or syslog", err)
}

// ReopenLogs opens the access log and the audit log anew after a rotation. On an error the old
// files stay in use. ReopenLogs waits 2 s at most for each log whose write hangs.
func (r *Router) ReopenLogs() error {
	var errs []error
	if err := r.audit.Reopen(); err != nil {
		errs = append(errs, fmt.Errorf("audit.log: %w", err))
	}
	if r.access != nil {
		if err := r.access.Reopen(); err != nil {
			errs = append(errs, fmt.Errorf("log.access: %w", err))
		}
	}
	r.adviseLogs()
	return errors.Join(errs...)
}

// adviseLogs warns of logs that other users can read or change.
func (r *Router) adviseLogs() {
	for _, l := range r.config.Logs() {
		if mode, ok := l.Wide(); ok {
			r.log.Warn("other users can read or change a log", "setting", l.Setting, "file", l.File,
				"mode", fmt.Sprintf("%#o", mode), "fix", fmt.Sprintf("chmod %#o %s", mode&l.Mode, l.File))
		}
	}
}

// LogFile is a file or pipe that the router writes lines about requests to.
type LogFile struct {
	Setting string
	File    string
	Mode    fs.FileMode // with which the router makes it
}

// Logs returns the log files of the settings, which need not exist.
func (c *Config) Logs() (all []LogFile) {
	for _, l := range []LogFile{
		{"audit.log", c.Audit.Log, audit.FileMode}, {"log.access", c.Log.Access, accesslog.FileMode},
	} {
		if l.File != "" && l.File != "-" && l.File != "syslog" {
			all = append(all, l)
		}
	}
	return all
}

// Wide returns the mode of an existing file that more users can read or change than the router
// would let.
func (l LogFile) Wide() (mode fs.FileMode, wide bool) {
	info, err := os.Stat(l.File)
	if err != nil || info.Mode().Type()&^fs.ModeNamedPipe != 0 {
		return 0, false // missing, or a device
	}
	mode = info.Mode().Perm()
	return mode, mode&^l.Mode != 0
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
	r.acted("", "start", "version "+buildinfo.String()+", "+r.serving.Addr().String(), nil)
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
	r.acted(r.keys.Source(), "key "+c.What, c.ID+" of tenant "+c.Tenant, nil)
}

// readsOnly are the routes of the admin port that change nothing with another method than GET.
var readsOnly = []string{"POST /debug/route", "/", "/v1/"}

// whoActs is the key of a request's context for its *sender.
type whoActs struct{}

// sender is who asks the admin port: the id of its key, or the name in its certificate; and why it
// was refused.
type sender struct{ by, refused string }

// actsAs names the sender of a request to the admin port in the audit log.
func actsAs(req *http.Request, who sender) {
	if at, ok := req.Context().Value(whoActs{}).(*sender); ok {
		*at = who
	}
}

// audited records the requests to the admin port that change something, and the refused ones.
func (r *Router) audited(next http.Handler) http.Handler {
	if r.audit == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var from sender
		req = req.WithContext(context.WithValue(req.Context(), whoActs{}, &from))
		begin := new(beginning)
		if req.Body != nil {
			req.Body = struct {
				io.Reader
				io.Closer
			}{io.TeeReader(req.Body, begin), req.Body}
		}
		s := &statusOf{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(s, req)
		reads := req.Method == http.MethodGet || req.Method == http.MethodHead || req.Method == http.MethodOptions
		switch {
		case s.status == http.StatusUnauthorized, s.status == http.StatusForbidden:
			r.audit.Refuse(audit.Refusal{
				Reason: "admin_" + strconv.Itoa(s.status), Detail: from.refused, Key: from.by, Client: req.RemoteAddr,
				Port: "admin", Asked: cmp.Or(req.Pattern, req.Method+" "+req.URL.Path),
			})
		case !reads && req.Pattern != "" && !slices.Contains(readsOnly, req.Pattern):
			r.audit.Act(audit.Act{
				Action: req.Pattern, Object: objectOf(req.URL.Query().Get("model"), begin.Bytes()),
				By: from.by, Client: req.RemoteAddr, Outcome: strconv.Itoa(s.status),
			})
		}
	})
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

// statusOf notes the status of an answer.
type statusOf struct {
	http.ResponseWriter
	status int
}

// WriteHeader implements http.ResponseWriter.
func (s *statusOf) WriteHeader(status int) {
	s.status = status
	s.ResponseWriter.WriteHeader(status)
}

// Unwrap returns the writer below, for http.ResponseController.
func (s *statusOf) Unwrap() http.ResponseWriter { return s.ResponseWriter }

// beginning keeps the first bytes of a body, as many as a handler reads.
type beginning struct{ bytes.Buffer }

// Write implements io.Writer.
func (b *beginning) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), maxThresholds-b.Len())])
	return len(p), nil
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
