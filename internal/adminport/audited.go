package adminport

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"

	"github.com/cognitora/dataplane/internal/audit"
)

// Changes says what the requests to an admin port change. The zero Changes are of a port whose
// routes change nothing.
type Changes struct {
	Reads   []string                                    // routes that change nothing with another method than GET
	Object  func(req *http.Request, body []byte) string // what a request changes, without secrets
	MaxBody int                                         // most bytes of the body that Object gets
}

// whoActs is the key of a request's context for its *sender.
type whoActs struct{}

// sender is who asks the admin port: the id of its key, or the name in its certificate; and why it
// was refused.
type sender struct{ by, refused string }

// ActsAs names the sender of a request in the audit log, and why it was refused, if it was.
func ActsAs(req *http.Request, by, refused string) {
	if at, ok := req.Context().Value(whoActs{}).(*sender); ok {
		*at = sender{by, refused}
	}
}

// Audited returns a handler that records in log the requests that change something, and those that
// are refused with 401 or 403. A nil log records nothing.
func Audited(log *audit.Log, c Changes, next http.Handler) http.Handler {
	if log == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		var from sender
		req = req.WithContext(context.WithValue(req.Context(), whoActs{}, &from))
		begin := &beginning{most: c.MaxBody}
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
			log.Refuse(audit.Refusal{
				Reason: "admin_" + strconv.Itoa(s.status), Detail: from.refused, Key: from.by, Client: req.RemoteAddr,
				Port: "admin", Asked: cmp.Or(req.Pattern, req.Method),
			})
		case !reads && c.Object != nil && req.Pattern != "" && !slices.Contains(c.Reads, req.Pattern):
			log.Act(audit.Act{
				Action: req.Pattern, Object: c.Object(req, begin.Bytes()), By: from.by, Client: req.RemoteAddr,
				Outcome: strconv.Itoa(s.status),
			})
		}
	})
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
type beginning struct {
	bytes.Buffer
	most int
}

// Write implements io.Writer.
func (b *beginning) Write(p []byte) (int, error) {
	b.Buffer.Write(p[:min(len(p), b.most-b.Len())])
	return len(p), nil
}
