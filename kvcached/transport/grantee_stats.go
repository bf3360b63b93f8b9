package transport

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// readCounters count the reads from all peers.
type readCounters struct {
	sessions, unmade, broken atomic.Uint64
	asked, wanted, releases  atomic.Uint64
	reads, bytes, corrupt    atomic.Uint64
	open                     atomic.Int64
	fallen                   [fallbacks]atomic.Uint64
}

// ReadStats is a snapshot of a Pool's reads from peers' memory.
type ReadStats struct {
	Sessions  uint64 // sessions made
	Unmade    uint64 // times that no session could be made, or one broke
	Broken    uint64 // sessions that broke
	Asked     uint64 // requests for blocks
	Wanted    uint64 // blocks in those requests
	Releases  uint64 // messages that only gave blocks back
	Reads     uint64 // blocks read
	Bytes     uint64
	Corrupt   uint64            // blocks with a wrong checksum, which then came by a stream
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

// Carried is the traffic over one lane between this host and another.
type Carried struct {
	Lane     Lane
	Pulls    uint64 // blocks read
	Received uint64 // their bytes
	Puts     uint64
	Sent     uint64
	Failed   uint64 // reads and puts that failed over all lanes, the last attempt over this one
	Fell     uint64 // reads and puts that went, or were tried, over another lane instead
	Error    string // last error of Failed and Fell, or the reason why the lane does not get through; empty: none yet
	At       time.Time
}

// PeerStatus describes the paths to a peer.
type PeerStatus struct {
	Target  Target
	Lane    Lane     // lane of small requests, and of blocks that RDMA does not read
	RDMA    bool     // large blocks are read by RDMA
	Why     string   // why RDMA is not used; empty: no block was asked for yet
	Cards   []string // cards of this host that RDMA uses
	Grants  int64    // blocks that may be read now
	Carried []Carried
	Missed  time.Time // last time that a block for RDMA was asked for without a session; zero: never
	Error   string    // last reason for which there was no session; empty: none yet
	At      time.Time
}

// Status returns the status of all peers, sorted by address.
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
	ge := p.grantee
	if ge == nil {
		s.Why = "it is not wanted, or no card is to be used"
		return s
	}
	ge.mu.Lock()
	defer ge.mu.Unlock()
	s.Error, s.At, s.Missed = ge.lastError, ge.lastAt, ge.missed
	if ge.s == nil && ge.why == "" && len(ge.rails.usable(ge.must)) == 0 {
		s.Why = ge.rails.lack().Error()
		return s
	}
	if s.RDMA, s.Why = ge.s != nil, ge.why; ge.s != nil {
		s.Grants = ge.s.grants
		for i, r := range ge.s.rails {
			if ge.s.pairs[i] != nil {
				s.Cards = append(s.Cards, r.name)
			}
		}
	}
	return s
}
