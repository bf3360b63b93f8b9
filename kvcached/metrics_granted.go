package kvcached

import (
	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// readRows are the metrics of blocks that this host reads from other hosts' memory.
var readRows = []row[transport.ReadStats]{
	{"rdma_sessions", "Other caches whose blocks are read by RDMA now.", func(s *transport.ReadStats) float64 { return float64(s.Open) }},
	{"rdma_sessions_failed_total", "Times that queue pairs to another cache could not be made, or broke.", func(s *transport.ReadStats) float64 { return float64(s.Unmade) }},
	{"rdma_reads_total", "Blocks read by RDMA.", func(s *transport.ReadStats) float64 { return float64(s.Reads) }},
	{"rdma_read_bytes_total", "Payload of the blocks read by RDMA.", func(s *transport.ReadStats) float64 { return float64(s.Bytes) }},
	{"rdma_corrupt_total", "Blocks read by RDMA that had not the checksum they should have; they are asked for over QUIC or TLS.", func(s *transport.ReadStats) float64 { return float64(s.Corrupt) }},
}

// grantRows are the metrics of blocks that other hosts read from this host's memory.
var grantRows = []row[transport.GrantStats]{
	{"rdma_granted_sessions", "Other caches that may read this host's memory by RDMA now.", func(s *transport.GrantStats) float64 { return float64(s.Open) }},
	{"rdma_granted_sessions_refused_total", "Times that another cache was not let in to read this host's memory by RDMA: no device for it, none in a trusted network, or too many.", func(s *transport.GrantStats) float64 { return float64(s.Refused) }},
	{"rdma_granted_messages_total", "Messages of other caches that asked for blocks of this host to be read by RDMA.", func(s *transport.GrantStats) float64 { return float64(s.Asked) }},
	{"rdma_granted_total", "Blocks of this host granted to other caches to be read by RDMA.", func(s *transport.GrantStats) float64 { return float64(s.Blocks) }},
	{"rdma_granted_bytes_total", "Payload of the blocks granted to other caches to be read by RDMA.", func(s *transport.GrantStats) float64 { return float64(s.Bytes) }},
	{"rdma_granted_expired_total", "Grants that ended before the other cache had said that it has read them.", func(s *transport.GrantStats) float64 { return float64(s.Expired) }},
	{"rdma_granted_held_bytes", "Payload of the blocks of this host that are granted to other caches now.", func(s *transport.GrantStats) float64 { return float64(s.Granted) }},
}

// fallbackDefs are the metrics of blocks that did not come by RDMA.
var fallbackDefs = []metric.Def{
	{Name: "cgn_kvcached_rdma_fallbacks_total", Kind: metric.Counter, Labels: []string{"reason"}, Help: "Blocks that came over QUIC or TLS instead of by RDMA: no_session, there are no queue pairs (yet); queue, too many blocks wait; no_grant, the other cache did not answer in time or refused all; not_granted, it does not grant the block; grant_over, the grant was over before the block's turn came; not_registered, memory that the device does not know; access, the other device refused; unreachable, it did not answer; card_gone, a device was taken away; broken, a queue pair broke; timeout, the read took longer than it may; checksum, the bytes were not the block's; memlock, the device may not lock the memory to read into."},
}

func (in *instruments) defineGranted() {
	var reads func() transport.ReadStats
	if in.pool != nil {
		reads = func() transport.ReadStats { return in.pool.Stats().RDMA }
	}
	export(in, readRows, reads)
	export(in, grantRows, snapshotOf(in.peers, (*transport.Server).GrantStats))
	in.set.Read(fallbackDefs, func(emit func(def int, value float64, labels ...string)) {
		if reads == nil {
			return
		}
		for why, n := range reads().Fallbacks {
			emit(0, float64(n), why)
		}
	})
}
