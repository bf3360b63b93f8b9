package resp

import "sync/atomic"

// Stats is a snapshot of a server's counters.
type Stats struct {
	Connections    int64  // open now
	Accepted       uint64 // connections accepted
	Refused        uint64 // connections refused: too many, or no file descriptor
	Buffered       int64  // bytes of arguments held now, large values aside
	Commands       uint64 // commands executed or refused
	Errors         uint64 // error replies
	ProtocolErrors uint64 // connections closed because the client did not send RESP
	CrossProtocol  uint64 // connections closed because the client sent HTTP
	AuthFailures   uint64 // wrong passwords
	Stalled        uint64 // connections closed because a command or a reply took too long
	Hits           uint64 // values found by commands that read them
	Misses         uint64 // values not found
	ReadFailures   uint64 // reads that failed in the store and were answered as misses
	StoreFailures  uint64 // commands that failed in the store, except for lack of room
	HostsFailures  uint64 // commands refused because other hosts could not be asked
	Full           uint64 // writes refused because the arena or a quota is full
	Writes         uint64 // values stored
	Aborted        uint64 // values that did not arrive completely
	BytesIn        uint64 // payload bytes of values stored
	BytesOut       uint64 // payload bytes of values sent
}

type counters struct {
	accepted, refused, commands, errors, protocolErrors, crossProtocol, authFailures, stalled, hits, misses,
	readFailures, storeFailures, hostsFailures, full, writes, aborted, bytesIn, bytesOut atomic.Uint64
}

// Stats returns a snapshot of the counters.
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
