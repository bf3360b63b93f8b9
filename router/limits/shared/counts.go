package shared

import "sync/atomic"

// counts are what Stats reads.
type counts struct {
	trips, failures, waits, late, full, refused, dropped, local, open, closed atomic.Int64
}

// Stats are what a limiter has done since it began.
type Stats struct {
	RoundTrips int64 // to Redis
	Failures   int64 // round trips without an answer in time, or with an error
	Waits      int64 // requests that found their lease empty and waited
	Late       int64 // requests that waited as long as they may
	Full       int64 // requests that could not wait because too many did
	Refused    int64 // requests for which a limit had no room
	Dropped    int64 // settlements that were not told Redis: what was reserved stays counted
	Local      int64 // requests admitted without Redis, by the router's share
	Open       int64 // requests admitted without Redis, without a limit
	Closed     int64 // requests refused because Redis was away
	Away       bool  // Redis does not answer
	Routers    int64 // that Redis last knew
	Unsettled  int64 // settlements that Redis has not seen
}

// Stats returns what the limiter has done.
func (l *Limiter) Stats() Stats {
	c := &l.counts
	return Stats{
		RoundTrips: c.trips.Load(), Failures: c.failures.Load(), Waits: c.waits.Load(), Late: c.late.Load(),
		Full: c.full.Load(), Refused: c.refused.Load(), Dropped: c.dropped.Load(), Local: c.local.Load(),
		Open: c.open.Load(), Closed: c.closed.Load(), Away: l.away.Load(), Routers: l.routers.Load(),
		Unsettled: l.pending.Load(),
	}
}
