package router

import (
	"github.com/cognitora/dataplane/internal/accesslog"
	"github.com/cognitora/dataplane/internal/logfile"
	"github.com/cognitora/dataplane/router/tally"
	"github.com/cognitora/dataplane/router/traces"
)

// records are what the router writes down about requests. The audit log has acts instead.
type records struct {
	access *accesslog.Logger // nil: off
	traces *traces.Tracer    // nil: off
	tally  *tally.Tally      // nil: off
}

// open opens the records that r's settings name.
func (s *records) open(r *Router) (err error) {
	if err = s.openAccess(r); err != nil {
		return err
	}
	if s.traces, err = r.config.Traces.open(r.metrics, r.log); err != nil {
		return err
	}
	s.tally, err = r.config.Usage.open(r)
	return err
}

// openAccess opens the access log, if there is one.
func (s *records) openAccess(r *Router) (err error) {
	if r.config.Log.Access == "" {
		return nil
	}
	outage := logfile.Outage{Log: r.log, Name: "access log"}
	s.access, err = accesslog.New(accesslog.Options{
		Path: r.config.Log.Access, Queue: r.config.Log.AccessQueue, Dropped: r.metrics.AccessDropped.Inc,
		Failed: func(err error, lines int) {
			r.metrics.AccessDropped.Add(float64(lines))
			outage.Failed(err, lines)
		},
		Worked: outage.Worked,
	})
	if err != nil {
		return accessLogProblem(err)
	}
	return nil
}

// close writes what is left. An error says what use is lost.
func (s *records) close() error {
	err := s.tally.Close() // before the log, which may hang
	if s.access != nil {
		s.access.Close()
	}
	s.traces.Close()
	return err
}
