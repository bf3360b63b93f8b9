//go:build linux

package lease

import "sync/atomic"

// Stats has the counters of a Server.
type Stats struct {
	Clients      int64 // connections that are open or still hold leases
	Users        int64 // users with such connections
	Leases       int64 // held now
	LeasedBytes  int64 // under leases now, counted twice for a block under two leases
	StagingBytes int64 // of staging segments now

	Connections   uint64 // accepted
	Denied        uint64 // connections refused for their user and groups
	Busy          uint64 // connections refused because there were too many
	BadFrames     uint64 // connections ended with a typed error frame
	Stalled       uint64 // connections ended because a frame or the reading of an answer took too long
	Requests      uint64 // frames answered or acted on
	Hits          uint64 // addresses of Get that were leased
	HitBytes      uint64 // payload of these blocks, a block counts for each of its leases
	Misses        uint64 // addresses of Get without a block
	Refused       uint64 // addresses of Get, and Stage frames, over a quota
	Puts          uint64 // commits that made a block
	PutBytes      uint64 // payload of these blocks
	FailedPuts    uint64 // commits that made no block
	Released      uint64 // leases that the client gave back
	Expired       uint64 // leases that ended by themselves
	TakenBack     uint64 // leases of connections that closed
	UnknownLeases uint64 // ids in Release and Renew without a lease, because it had ended
	Failed        uint64 // operations that failed in the store for a reason without a status of its own
}

type counters struct {
	leases, leasedBytes, stagingBytes atomic.Int64

	connections, denied, busy, badFrames, stalled, requests, hits, hitBytes, misses, refused, puts, putBytes,
	failedPuts, released, expired, takenBack, unknown, failed atomic.Uint64
}

// Stats returns a snapshot. It reads the counters one after another.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	clients, users := len(s.conns), len(s.users)
	s.mu.Unlock()
	c := &s.count
	return Stats{
		Clients: int64(clients), Users: int64(users), Leases: c.leases.Load(), LeasedBytes: c.leasedBytes.Load(),
		StagingBytes: c.stagingBytes.Load(),
		Connections:  c.connections.Load(), Denied: c.denied.Load(), Busy: c.busy.Load(), BadFrames: c.badFrames.Load(),
		Stalled: c.stalled.Load(), Requests: c.requests.Load(), Hits: c.hits.Load(), Misses: c.misses.Load(),
		Refused: c.refused.Load(), HitBytes: c.hitBytes.Load(),
		Puts: c.puts.Load(), PutBytes: c.putBytes.Load(), FailedPuts: c.failedPuts.Load(),
		Released: c.released.Load(),
		Expired:  c.expired.Load(), TakenBack: c.takenBack.Load(), UnknownLeases: c.unknown.Load(),
		Failed: c.failed.Load(),
	}
}
