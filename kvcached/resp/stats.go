package resp

import "sync/atomic"

// Stats is a snapshot of what a server has done.
type Stats struct {
	Connections    int64  // open now
	Accepted       uint64 // connections accepted
	Refused        uint64 // connections refused: too many, or no file descriptor
	Buffered       int64  // bytes of arguments held now, large values aside
	Commands       uint64 // commands executed or refused
	Errors         uint64 // error replies
	ProtocolErrors uint64 // connections closed because what they sent is not RESP
	CrossProtocol  uint64 // connections closed because they spoke HTTP
	AuthFailures   uint64 // wrong passwords
	Stalled        uint64 // connections closed because a command or a reply took too long
	Hits           uint64 // values found by commands that read them
	Misses         uint64 // values not found
	ReadFailures   uint64 // values that the store has but could not give, answered as misses
	StoreFailures  uint64 // writes that the store failed, out of room aside
	HostsFailures  uint64 // commands refused because other hosts could not be asked
	Full           uint64 // writes refused because the arena or a quota is full
	Writes         uint64 // values stored
	Aborted        uint64 // values whose connection broke, or whose command failed, on the way
	BytesIn        uint64 // payload bytes of values stored
	BytesOut       uint64 // payload bytes of values sent
}

type counters struct {
	accepted, refused, commands, errors, protocolErrors, crossProtocol, authFailures, stalled, hits, misses,
	readFailures, storeFailures, hostsFailures, full, writes, aborted, bytesIn, bytesOut atomic.Uint64
}

// Stats returns what the server has done so far.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	open := len(s.conns)
	s.mu.Unlock()
	c := &s.counters
	return Stats{
		Connections: int64(open), Accepted: c.accepted.Load(), Refused: c.refused.Load(), Buffered: s.buffered.Load(),
		Commands: c.commands.Load(), Errors: c.errors.Load(), ProtocolErrors: c.protocolErrors.Load(),
		CrossProtocol: c.crossProtocol.Load(),
		AuthFailures:  c.authFailures.Load(), Stalled: c.stalled.Load(),
		Hits: c.hits.Load(), Misses: c.misses.Load(), ReadFailures: c.readFailures.Load(),
		StoreFailures: c.storeFailures.Load(), HostsFailures: c.hostsFailures.Load(), Full: c.full.Load(),
		Writes: c.writes.Load(), Aborted: c.aborted.Load(),
		BytesIn: c.bytesIn.Load(), BytesOut: c.bytesOut.Load(),
	}
}
