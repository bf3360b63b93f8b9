package transport

import (
	"slices"
	"strings"
)

// LendStats is a snapshot of what a Server has lent.
type LendStats struct {
	Sessions uint64 // made
	Refused  uint64 // that could not be
	Grants   uint64 // messages that asked for blocks
	Blocks   uint64 // lent
	Bytes    uint64
	ByStream uint64 // blocks that were to be had, and not lent
	Expired  uint64 // leases that ended before the peer said that it had done
	Leases   int64  // now
	Leased   int64  // bytes now
	Open     int64  // sessions now
}

// Lending returns a snapshot.
func (s *Server) Lending() LendStats {
	l := s.lender
	if l == nil {
		return LendStats{}
	}
	l.mu.Lock()
	open := int64(len(l.sessions))
	l.mu.Unlock()
	c := &l.count
	return LendStats{Sessions: c.sessions.Load(), Refused: c.refused.Load(), Grants: c.grants.Load(),
		Blocks: c.blocks.Load(), Bytes: c.bytes.Load(), ByStream: c.byStream.Load(),
		Expired: c.ended.Load(), Leases: c.leases.Load(), Leased: c.leased.Load(), Open: open}
}

// Lent is what one peer may read, and over which cards.
type Lent struct {
	Host   string
	Cards  []string
	Leases int
	Blocks int
	Bytes  int64
}

// Lent tells of all sessions, by host.
func (s *Server) Lent() (out []Lent) {
	if s.lender == nil {
		return nil
	}
	s.lender.mu.Lock()
	var all []*session
	for _, one := range s.lender.sessions {
		all = append(all, one)
	}
	s.lender.mu.Unlock()
	for _, one := range all {
		out = append(out, one.status())
	}
	slices.SortFunc(out, func(a, b Lent) int { return strings.Compare(a.Host, b.Host) })
	return out
}

func (s *session) status() Lent {
	t := Lent{Host: s.remote.Host}
	for _, e := range s.ends {
		if e != nil {
			t.Cards = append(t.Cards, e.rail.name)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Leases = len(s.leases)
	for _, l := range s.leases {
		t.Blocks, t.Bytes = t.Blocks+l.lent, t.Bytes+int64(l.bytes)
	}
	return t
}
