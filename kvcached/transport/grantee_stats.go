package transport

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// readCounters are those of all peers.
type readCounters struct {
	sessions, unmade, broken atomic.Uint64
	asked, wanted, releases  atomic.Uint64
	reads, bytes, corrupt    atomic.Uint64
	open                     atomic.Int64
	fallen                   [fallbacks]atomic.Uint64
}

// ReadStats is a snapshot of what a Pool has read from peers' memory.
type ReadStats struct {
	Sessions  uint64 // made
	Unmade    uint64 // times that none could be made, or one broke
	Broken    uint64 // that broke
	Asked     uint64 // messages that asked for blocks
	Wanted    uint64 // blocks that they asked for
	Releases  uint64 // messages that only gave blocks back
	Reads     uint64 // blocks
	Bytes     uint64
	Corrupt   uint64            // blocks that had not their checksum, and were asked for by a stream
	Open      int64             // sessions now
	Fallbacks map[string]uint64 // blocks that came by a stream instead, by reason
}

func (c *readCounters) stats() ReadStats {
	s := ReadStats{Sessions: c.sessions.Load(), Unmade: c.unmade.Load(), Broken: c.broken.Load(),
		Asked: c.asked.Load(), Wanted: c.wanted.Load(), Releases: c.releases.Load(),
		Reads: c.reads.Load(), Bytes: c.bytes.Load(), Corrupt: c.corrupt.Load(), Open: c.open.Load(),
		Fallbacks: map[string]uint64{}}
	for i, name := range fallbackNames {
		s.Fallbacks[name] = c.fallen[i].Load()
	}
	return s
}

// Carried is what went over one lane, between this host and one other.
type Carried struct {
	Lane     Lane
	Pulls    uint64 // blocks read
	Received uint64 // their bytes
	Puts     uint64
	Sent     uint64
	Failed   uint64 // reads and puts that were not done at all, this lane being the last one that was tried
	Fell     uint64 // those that were done, or tried, over another lane instead
	Error    string // of the last of both, or why the lane did not get through, whatever was asked; empty: none yet
	At       time.Time
}

// PeerStatus is how a peer is spoken to.
type PeerStatus struct {
	Target  Target
	Lane    Lane     // that small questions, and what is not read by RDMA, go over
	RDMA    bool     // large blocks are read by RDMA
	Why     string   // RDMA is not used; empty: nothing was asked for yet
	Cards   []string // of this host, that RDMA uses
	Grants  int64    // blocks that may be read now
	Carried []Carried
	Missed  time.Time // a block that was to be read by RDMA was last asked for while there was no session; zero: never
	Error   string    // why there was no session, or none any more, the last time; empty: there has always been one
	At      time.Time
}

// Status tells of all peers, by address.
func (p *Pool) Status() []PeerStatus {
	p.mu.Lock()
	peers := make([]*Peer, 0, len(p.peers))
	for _, peer := range p.peers {
		peers = append(peers, peer)
	}
	p.mu.Unlock()
	out := make([]PeerStatus, 0, len(peers))
	for _, peer := range peers {
		out = append(out, peer.status())
	}
	slices.SortFunc(out, func(a, b PeerStatus) int { return strings.Compare(a.Target.Address, b.Target.Address) })
	return out
}

func (p *Peer) status() PeerStatus {
	s := PeerStatus{Target: p.target, Lane: laneNames[p.choice.pick(false)]}
	for i := range p.carried {
		s.Carried = append(s.Carried, p.carried[i].told([]Lane{QUIC, TLS, RDMA}[i]))
	}
	b := p.grantee
	if b == nil {
		s.Why = "it is not wanted, or no card is to be used"
		return s
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s.Error, s.At, s.Missed = b.lastError, b.lastAt, b.missed
	if b.s == nil && b.why == "" && len(b.rails.usable(b.must)) == 0 {
		s.Why = b.rails.lack().Error()
		return s
	}
	if s.RDMA, s.Why = b.s != nil, b.why; b.s != nil {
		s.Grants = b.s.grants
		for i, r := range b.s.rails {
			if b.s.pairs[i] != nil {
				s.Cards = append(s.Cards, r.name)
			}
		}
	}
	return s
}
