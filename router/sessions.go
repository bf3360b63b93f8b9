package router

import (
	"time"

	"github.com/cognitora/dataplane/internal/metric"
)

// These are the indices of sessionDefs.
const (
	sessionsKnown = iota
	sessionsDropped
)

var sessionDefs = []metric.Def{
	sessionsKnown: {
		Name: "cgn_router_sessions",
		Help: "Sessions whose node the router remembers; 0 with router.session.affinity off.",
	},
	sessionsDropped: {
		Name: "cgn_router_sessions_dropped_total", Kind: metric.Counter,
		Help: "Sessions whose node was forgotten before router.session.ttl, because router.session.max were known.",
	},
}

func (r *Router) readSessions(emit func(def int, value float64, labels ...string)) {
	known, dropped := 0, uint64(0)
	if r.sessions != nil {
		known, dropped = r.sessions.Len(time.Now()), r.sessions.Dropped()
	}
	emitter(emit).all([]float64{sessionsKnown: float64(known), sessionsDropped: float64(dropped)})
}
