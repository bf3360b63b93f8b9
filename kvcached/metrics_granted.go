package kvcached

import (
	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/kvcached/transport"
)

// readRows are the metrics of blocks that this host reads from other hosts' memory.
var readRows = []row[transport.ReadStats]{
	{"rdma_sessions", "Other caches whose blocks are read by RDMA now.", func(s *transport.ReadStats) float64 { return float64(s.Open) }},
	{"rdma_sessions_failed_total", "Times that queue pairs to another cache failed to open, or broke.", func(s *transport.ReadStats) float64 { return float64(s.Unmade) }},
	{"rdma_reads_total", "Blocks read by RDMA.", func(s *transport.ReadStats) float64 { return float64(s.Reads) }},
	{"rdma_read_bytes_total", "Payload of the blocks read by RDMA.", func(s *transport.ReadStats) float64 { return float64(s.Bytes) }},
	{"rdma_corrupt_total", "Blocks read by RDMA with a wrong checksum. They are then requested over QUIC or TLS.", func(s *transport.ReadStats) float64 { return float64(s.Corrupt) }},
}

// grantRows are the metrics of blocks that other hosts read from this host's memory.
var grantRows = []row[transport.GrantStats]{
	{"rdma_granted_sessions", "Other caches that may read this host's memory by RDMA now.", func(s *transport.GrantStats) float64 { return float64(s.Open) }},
	{"rdma_granted_sessions_refused_total", "Times that this host refused to let another cache read its memory by RDMA: no device can be used, none is in a trusted network, or too many caches read already.", func(s *transport.GrantStats) float64 { return float64(s.Refused) }},
	{"rdma_granted_messages_total", "Requests of other caches to read blocks of this host by RDMA; one request may name several blocks.", func(s *transport.GrantStats) float64 { return float64(s.Asked) }},
	{"rdma_granted_total", "Blocks of this host that were granted to other caches for reads by RDMA.", func(s *transport.GrantStats) float64 { return float64(s.Blocks) }},
	{"rdma_granted_bytes_total", "Payload of the blocks that were granted to other caches for reads by RDMA.", func(s *transport.GrantStats) float64 { return float64(s.Bytes) }},
	{"rdma_granted_expired_total", "Grants that ended before the other cache reported that it had read the blocks.", func(s *transport.GrantStats) float64 { return float64(s.Expired) }},
	{"rdma_granted_held_bytes", "Payload of the blocks of this host that are granted to other caches now.", func(s *transport.GrantStats) float64 { return float64(s.Granted) }},
}

// fallbackDefs are the metrics of blocks that did not come by RDMA.
var fallbackDefs = []metric.Def{
	{Name: "cgn_kvcached_rdma_fallbacks_total", Kind: metric.Counter, Labels: []string{"reason"}, Help: "Blocks that came over QUIC or TLS instead of by RDMA: no queue pairs exist yet (no_session), too many blocks wait (queue), the other cache did not answer in time or refused all blocks (no_grant), it did not grant the block (not_granted), the grant ended before the block's turn (grant_over), the device does not know the memory (not_registered), the other device refused (access) or did not answer (unreachable), a device was removed or released (card_gone), a queue pair broke (broken), the read took too long (timeout), the bytes were not the block's (checksum), or the memory to read into could not be locked (memlock)."},
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
