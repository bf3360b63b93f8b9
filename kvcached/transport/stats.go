package transport

import (
	"sync/atomic"

	"github.com/cognitora/dataplane/kvcached/wire"
)

// ServerStats is a snapshot of a Server's counters.
type ServerStats struct {
	Ops      [wire.Ops]uint64      // ended operations by wire.Op; 0: unknown ones
	Statuses [wire.Statuses]uint64 // ended operations by wire.Status
	GaveUp   uint64                // operations that the peer broke off
	// Stalled operations neither read nor wrote for ServerOptions.Stall.
	Stalled      uint64
	Sent         uint64 // payload bytes of blocks
	Received     uint64 // payload bytes of blocks
	RefusedConns uint64 // connections beyond MaxPeers, MaxConnections or Tuning.Receive
	Handshakes   uint64 // failed handshakes of the TLS lane
	AcceptErrors uint64
	Conns        int64 // connections now
	InFlight     int64 // payload bytes of operations now
	Windows      int64 // bytes that peers may make this side buffer now
}

// Stats returns a snapshot.
func (s *Server) Stats() ServerStats {
	c := &s.count
	out := ServerStats{
		GaveUp: c.gaveUp.Load(), Stalled: c.stalled.Load(), Sent: c.sent.Load(),
		Received: c.received.Load(), RefusedConns: c.refusedConns.Load(),
		Handshakes: c.handshakes.Load(), AcceptErrors: c.acceptErrors.Load(), Conns: c.conns.Load(),
		InFlight: s.bytes.Load(), Windows: s.budget.sum(),
	}
	for i := range c.byOp {
		out.Ops[i] = c.byOp[i].Load()
	}
	out.Ops[0] = c.unknown.Load()
	for i := range c.byStatus {
		out.Statuses[i] = c.byStatus[i].Load()
	}
	return out
}

// laneCounters count for all peers on one lane.
type laneCounters struct {
	dials, dialErrors, retried atomic.Uint64
	sent, received, striped    atomic.Uint64
	ranOut, chosen             atomic.Uint64
}

// LaneStats is a snapshot of a Pool's counters of one lane.
type LaneStats struct {
	Dials      uint64 // connections made
	DialErrors uint64 // connections that failed to open
	Retried    uint64 // operations tried again because a kept connection was dead
	Sent       uint64 // payload bytes of blocks
	Received   uint64 // payload bytes of blocks
	Striped    uint64 // pulls over several connections
	RanOut     uint64 // pulls that timed out
	Chosen     uint64 // times that Auto changed to this lane
}

// PoolStats is a snapshot of a Pool's counters.
type PoolStats struct {
	QUIC, TLS LaneStats
	RDMA      ReadStats
	Evicted   uint64 // peers closed to make room
	Peers     int64  // peers now, including those that are being closed
	Windows   int64  // bytes that peers may make this side buffer now
}

// Stats returns a snapshot.
func (p *Pool) Stats() PoolStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return PoolStats{QUIC: p.quic.stats(), TLS: p.tcp.stats(), RDMA: p.grantee.stats(), Evicted: p.evicted.Load(),
		Peers: int64(len(p.peers) + len(p.going)), Windows: p.budget.sum()}
}

func (c *laneCounters) stats() LaneStats {
	return LaneStats{Dials: c.dials.Load(), DialErrors: c.dialErrors.Load(), Retried: c.retried.Load(),
		Sent: c.sent.Load(), Received: c.received.Load(), Striped: c.striped.Load(), RanOut: c.ranOut.Load(),
		Chosen: c.chosen.Load()}
}
