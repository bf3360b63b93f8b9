package transport

import (
	"slices"
	"strings"
)

// GrantStats is a snapshot of a Server's grants.
type GrantStats struct {
	Sessions uint64 // sessions made
	Refused  uint64 // sessions refused
	Asked    uint64 // requests for blocks
	Blocks   uint64 // blocks granted
	Bytes    uint64
	ByStream uint64 // blocks that were present and not granted
	Expired  uint64 // grants that ended before the peer gave them back
	Grants   int64  // grants that run now
	Granted  int64  // bytes granted now
	Open     int64  // sessions open now
}

// GrantStats returns a snapshot.
func (s *Server) GrantStats() GrantStats {
	gr := s.granter
	if gr == nil {
		return GrantStats{}
	}
	gr.mu.Lock()
	open := int64(len(gr.sessions))
	gr.mu.Unlock()
	c := &gr.count
	return GrantStats{Sessions: c.sessions.Load(), Refused: c.refused.Load(), Asked: c.asked.Load(),
		Blocks: c.blocks.Load(), Bytes: c.bytes.Load(), ByStream: c.byStream.Load(),
		Expired: c.ended.Load(), Grants: c.grants.Load(), Granted: c.granted.Load(), Open: open}
}

// Granted describes what one peer may read now, and over which cards.
type Granted struct {
	Host   string
	Cards  []string
	Grants int
	Blocks int
	Bytes  int64
}

// Granted returns all sessions, sorted by host.
func (s *Server) Granted() (out []Granted) {
	if s.granter == nil {
		return nil
	}
	s.granter.mu.Lock()
	var all []*session
	for _, one := range s.granter.sessions {
		all = append(all, one)
	}
	s.granter.mu.Unlock()
	for _, one := range all {
		out = append(out, one.status())
	}
	slices.SortFunc(out, func(a, b Granted) int { return strings.Compare(a.Host, b.Host) })
	return out
}

func (s *session) status() Granted {
	t := Granted{Host: s.remote.Host}
	for _, e := range s.ends {
		if e != nil {
			t.Cards = append(t.Cards, e.rail.name)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Grants = len(s.grants)
	for _, l := range s.grants {
		t.Blocks, t.Bytes = t.Blocks+l.granted, t.Bytes+int64(l.bytes)
	}
	return t
}
